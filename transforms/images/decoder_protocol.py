"""Messages between a worker and its decoder processes.

A request is the length of a pickled ``Request``, that, and the content of each input that has it.
A reply has named fields and bytes, and no pickles: a decoder that a hostile file took over must not
run code in the worker.
"""

from __future__ import annotations

import json
import pickle
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple, TypeVar

from shardmill.schemas.schema_pbtxt.image_features import FeatureSet
from shardmill.transforms.images.convert import ImageSpec

# Kind of a reply, bytes of its fields, which are a JSON object, and of the payload that follows.
HEAD = struct.Struct("<BIQ")
LENGTH = struct.Struct("<Q")
GO = b"\1"  # answers ``OPENED``: decode it now
MAX_FIELDS = 1 << 20  # bytes of the fields of a reply
NO_MEMORY_EXIT = 77  # exit code where the memory does not suffice for the file itself
FieldsT = TypeVar("FieldsT", bound="Fields")


class Kind(IntEnum):
    """Kind of a reply, with its fields and payload."""

    READY = 1  # after the start
    OPENED = 2  # the header of a large image is read; ``Opened``
    ENCODED = 3  # ``Encoded``; the record
    REJECTED = 4  # ``Rejected``
    NO_MEMORY = 5  # ``Opened``
    BUG = 6  # the payload is a traceback
    UNREAD = 7  # the file cannot be read, or has changed


@dataclass(frozen=True)
class Fields:
    """Named fields of a reply; a subclass gives each a default of its type."""

    def pack(self, kind: Kind, payload: int = 0) -> bytes:
        """Return the reply without its payload.

        Args:
            kind: Kind of the reply.
            payload: Bytes of the payload that follows.
        """
        text = json.dumps(vars(self), separators=(",", ":")).encode()
        return HEAD.pack(kind, len(text), payload) + text


def parse_fields(kind: type[FieldsT], text: bytes) -> FieldsT:
    """Return the fields of a reply that a hostile file may have written.

    Raises:
        ValueError: They are not those of this kind of reply.
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
    """Why an image is rejected: fields of ``Reject``."""

    stage: str = ""
    error: str = ""
    message: str = ""


class Input(NamedTuple):
    """An image of a request.

    Attributes:
        key: Its key.
        label: Its label, or None.
        class_id: Number of the label.
        size: Bytes of the file.
        version: Version of the file, as in ``InputRef``.
        path: Path of the local file; empty if its content follows the request.
    """

    key: str
    label: str | None
    class_id: int
    size: int
    version: str
    path: str


class Request(NamedTuple):
    """Images to make records of.

    Attributes:
        spec: The pickled ``DecoderSpec``, which is the same for many requests.
        announce: Whether to send ``OPENED`` for each image.
        inputs: The images.
    """

    spec: bytes
    announce: bool
    inputs: list[Input]


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
