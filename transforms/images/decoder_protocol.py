"""Messages between a worker and its decoder processes: named fields and bytes.

Replies contain no pickles: a decoder that a hostile file took over must not run code in the worker.
"""

from __future__ import annotations

import json
import pickle
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from shardmill.schemas.schema_pbtxt.image_features import FeatureSet
from shardmill.transforms.images.convert import ImageSpec

# Kind of a message, bytes of its fields, which are a JSON object, and of the payload that follows.
HEAD = struct.Struct("<BIQ")
MAX_FILES = 250  # descriptors that a message can have on every system
MAX_FIELDS = 1 << 20  # bytes of the fields of a reply
NO_MEMORY_EXIT = 77  # exit code where the memory does not suffice for the file itself
FieldsT = TypeVar("FieldsT", bound="Fields")


class Kind(IntEnum):
    """Kind of a message, with its fields and payload."""

    READY = 1  # after the start
    OPENED = 2  # the header of a large image is read; ``Opened``
    ENCODED = 3  # ``Encoded``; the record
    REJECTED = 4  # ``Rejected``
    NO_MEMORY = 5  # ``Opened``
    BUG = 6  # the payload is a traceback
    UNREAD = 7  # the file cannot be read, or has changed
    ENCODE = 8  # a request: ``Request``; the spec, then the content of each input that has it
    CONTINUE = 9  # a request that answers ``OPENED``: decode it now


@dataclass(frozen=True)
class Fields:
    """Named fields of a message; a subclass gives each a default of its type."""

    def pack(self, kind: Kind, payload: int = 0) -> bytes:
        """Return the message without its payload.

        Args:
            kind: Kind of the message.
            payload: Bytes of the payload that follows.
        """
        text = json.dumps(vars(self), separators=(",", ":")).encode()
        return HEAD.pack(kind, len(text), payload) + text


def parse_fields(kind: type[FieldsT], text: bytes) -> FieldsT:
    """Return the fields of a message that a hostile file may have written.

    Raises:
        ValueError: They are not those of this kind of message.
    """
    try:
        made = kind(**json.loads(text))
    except (RecursionError, TypeError) as error:
        raise ValueError(str(error)) from error
    values = vars(made)
    if any(type(values[name]) is not type(default) for name, default in vars(kind()).items()):
        raise ValueError("a field has another type")
    if any(type(value) is int and value >> 63 for value in values.values()):
        raise ValueError("a number is out of range")
    return made


NONE = Fields()
GO = NONE.pack(Kind.CONTINUE)


@dataclass(frozen=True)
class Opened(Fields):
    """What is known of an image before it is decoded.

    Attributes:
        width: Width in pixels.
        height: Height in pixels.
        needed: Estimated bytes of memory that decoding and converting it need.
        fits: Whether they fit the limit of the process.
        inherited: Whether this limit is that of the machine or the shell and below
            ``DecoderSpec.memory``.
    """

    width: int = 0
    height: int = 0
    needed: int = 0
    fits: bool = True
    inherited: bool = False


@dataclass(frozen=True)
class Encoded(Fields):
    """What is known of an image after it is encoded: fields of ``CatalogRow``."""

    content_hash: str = ""
    width: int = 0
    height: int = 0
    multi_frame: bool = False
    pixels: int = 0
    pixel_sums: list[int] = field(default_factory=list)
    pixel_squares: list[int] = field(default_factory=list)
    features: dict[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True)
class Rejected(Fields):
    """Why an image is rejected; see ``Reject``."""

    stage: str = ""
    error: str = ""
    message: str = ""


@dataclass(frozen=True)
class Request(Fields):
    """Images to encode.

    Attributes:
        spec: Bytes of the pickled ``DecoderSpec``.
        announce: Whether to send ``OPENED`` for each image.
        inputs: Of each input the fields of ``Input``.
    """

    spec: int = 0
    announce: bool = False
    inputs: list[dict[str, Any]] = field(default_factory=list)


class Input(NamedTuple):
    """An image of a request.

    Attributes:
        key: Its key.
        label: Its label, or None.
        class_id: Number of the label.
        size: Bytes of the file.
        modified: Modification time of the file in nanoseconds, if a descriptor comes; else None.
        content: Whether its content follows in the payload.
    """

    key: str
    label: str | None
    class_id: int
    size: int
    modified: int | None
    content: bool


@dataclass(frozen=True)
class Limits:
    """Limits of one image in a decoder process.

    Attributes:
        memory: Bytes of address space.
        seconds: CPU time.
    """

    memory: int = 6 << 30
    seconds: float = 180.0


@dataclass(frozen=True)
class DecoderSpec:
    """What a decoder process does with an image.

    Attributes:
        image: How it is converted.
        features: Features of its record.
        limits: Memory and time.
    """

    image: ImageSpec
    features: FeatureSet
    limits: Limits

    @cached_property
    def pickled(self) -> bytes:
        """The spec as bytes."""
        return pickle.dumps(self)
