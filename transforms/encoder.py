"""What the sink asks of a pipeline: a way to turn a part's refs into records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from shardmill.schemas.members import Packing
from shardmill.schemas.refs import Ref
from shardmill.schemas.rejects import Reject


class Example(NamedTuple):
    """One record to write.

    Attributes:
        record: The payload, a serialized tf.train.Example or whatever the encoder makes.
        label: Label text for the counts in the manifest, or None.
        multi_frame: Whether only the first of several frames was taken.
    """

    record: bytes
    label: str | None = None
    multi_frame: bool = False


class Encoder(Protocol):
    """Turns refs into records; a small picklable value that travels to every worker.

    The same refs must give the same records in the same order, whatever the machine, or datasets
    are not reproducible.
    """

    @property
    def packing(self) -> Packing:
        """How members of a gzip shard are packed."""
        ...

    @property
    def expected_bytes(self) -> int | None:
        """About how many bytes a record takes; None: as many as its input."""
        ...

    def encode(self, refs: Sequence[Ref], labels: Sequence[str]) -> Iterator[Example | Reject]:
        """Yields one example or reject for each ref, in the order of refs.

        Args:
            refs: The part's refs in their final order.
            labels: All labels in the order of their class ids.
        """
        ...

    def versions(self) -> dict[str, str]:
        """Returns the versions of all code that decides the records' bytes."""
        ...

    def schema(self, labels: Sequence[str]) -> str:
        """Returns the text of ``schema.pbtxt``."""
        ...

    def features(self) -> list[dict[str, Any]]:
        """Returns the features as the manifest lists them."""
        ...
