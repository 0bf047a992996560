"""Refs: small pointers to inputs. They cross shuffles so that payload bytes need not."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from shardmill.schemas.rejects import Reject


class Ref(NamedTuple):
    """A pointer to one input file.

    Attributes:
        key: Stable identity: the NFC-normalised path relative to the root.
        uri: Where to read it.
        size: Bytes at matching.
        version: Modification time in nanoseconds, or an object's generation, as text.
        label: Label text, or None where the dataset has no labels.
        split: Name of its split; empty until it is placed.
        group: What keeps examples on one side of a split; empty means the key itself.
        error: Why it cannot become a record (a reason of ``rejects.REASONS``), or empty.
        message: Details of the error.
    """

    key: str
    uri: str
    size: int = 0
    version: str = ""
    label: str | None = None
    split: str = ""
    group: str = ""
    error: str = ""
    message: str = ""

    def digest(self) -> int:
        """Returns a 128-bit digest of all that identifies the input and its content."""
        text = "\0".join(
            (self.key, str(self.size), self.version, self.error, self.split, self.group)
            + (() if self.label is None else (self.label,))
        )
        raw = hashlib.blake2b(text.encode(), digest_size=16, person=b"shardmill-ref").digest()
        return int.from_bytes(raw, "big")

    def rejected(self, error: str, message: str) -> Ref:
        """Returns this ref marked as one that cannot become a record."""
        return self._replace(error=error, message=message)

    def to_reject(self) -> Reject:
        """Returns the reject of a ref that was refused while matching."""
        return Reject(self.key, self.uri, "match", self.error, self.message)
