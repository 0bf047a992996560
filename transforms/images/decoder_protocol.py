"""Messages between a worker and its decoder processes.

A request is the length of a pickled ``Request``, that, and the content of each input that has it.
A reply has fields and bytes, and no pickles: a decoder that a hostile file took over must not run
code in the worker.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

from shardmill.schemas.refs import EncodedImage
from shardmill.schemas.schema_pbtxt.image_features import FeatureSet
from shardmill.transforms.images.convert import ImageSpec
from shardmill.transforms.images.fields import BoxesFrame

# Kind of a reply, bytes of its fields, and of the payload that follows.
HEAD = struct.Struct("<BIQ")
LENGTH = struct.Struct("<Q")
GO = b"\1"  # answers ``OPENED``: decode it now
MAX_FIELDS = 1 << 20  # bytes of the fields of a reply
NO_MEMORY_EXIT = 77  # exit code where the memory does not suffice for the file itself
_OPENED = struct.Struct("<QQQ??")


class Kind(IntEnum):
    """Kind of a reply, with its fields and payload."""

    READY = 1  # after the start
    OPENED = 2  # the header of a large image is read; ``Opened``
    ENCODED = 3  # ``EncodedImage``; the record
    REJECTED = 4  # stage, error and message of the ``Reject``, with zero bytes between them
    NO_MEMORY = 5  # ``Opened``
    BUG = 6  # the payload is a traceback
    UNREAD = 7  # the file cannot be read, or has changed


class Opened(NamedTuple):
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

    def pack(self) -> bytes:
        """Return the fields as bytes."""
        return _OPENED.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Opened:
        """Return the fields of bytes that a hostile file may have written.

        Raises:
            struct.error: They are not those of an image.
        """
        return cls._make(_OPENED.unpack(data))


class Input(NamedTuple):
    """An image of a request.

    Attributes:
        fields: Values of features that do not come from the file, by ``Feature.field``.
        size: Bytes of the file.
        version: Version of the file, as in ``InputRef``.
        path: Path of the local file; empty if its content follows the request.
    """

    fields: dict[str, Any]
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
        boxes_frame: See ``place_boxes``.
    """

    image: ImageSpec
    features: FeatureSet
    limits: Limits
    boxes_frame: BoxesFrame = ""

    @cached_property
    def pickled(self) -> bytes:
        """The spec as bytes."""
        return pickle.dumps(self)

    @cached_property
    def layout(self) -> str:
        """Format of the fields of ``EncodedImage``, each of the type that the catalog needs."""
        kinds = self.features.catalogued.values()
        columns = "".join("32s" if kind == "bytes" else "q" for kind in kinds)
        return f"<32sii?q{2 * self.image.channels}q{columns}"

    def pack(self, image: EncodedImage) -> bytes:
        """Return the fields of an encoded image as bytes."""
        digest, *numbers, sums, squares, features = image
        columns = (bytes.fromhex(v) if isinstance(v, str) else v for v in features.values())
        return struct.pack(self.layout, bytes.fromhex(digest), *numbers, *sums, *squares, *columns)

    def unpack(self, data: bytes) -> EncodedImage:
        """Return the fields of bytes that a hostile file may have written.

        Raises:
            struct.error: They are not those of an image.
        """
        digest, *rest = struct.unpack(self.layout, data)
        bands = self.image.channels
        numbers, values = rest[: 4 + 2 * bands], rest[4 + 2 * bands :]
        if min(numbers) < 0:
            raise struct.error("a number is negative")
        columns = {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in zip(self.features.catalogued, values, strict=True)
        }
        sums, squares = numbers[4:-bands], numbers[-bands:]
        return EncodedImage._make([digest.hex(), *numbers[:4], sums, squares, columns])
