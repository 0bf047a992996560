"""Messages between a worker and its decoder processes.

A worker sends a pickled ``Request``. A decoder answers with replies, in the order of the images:
the length of a reply, and its MessagePack. It sends no pickles: a decoder that a hostile file took
over must not run code in the worker.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import msgspec

from shardmill.schemas.refs import EncodedImage
from shardmill.schemas.schema_pbtxt.image_features import DEPTH_REDUCED, FeatureSet
from shardmill.transforms.images.convert import ImageSpec
from shardmill.transforms.images.fields import BoxesFrame
from shardmill.transforms.images.image_options import DecoderLimits

LENGTH = struct.Struct("<Q")
GO = b"\1"  # answers ``Opened``: decode it now
NO_MEMORY_EXIT = 77  # exit code where the memory does not suffice for the file itself


@dataclass(frozen=True)
class DecoderOptions:
    """Options of a decoder process.

    Attributes:
        image: How it is converted.
        features: Features of its record.
        limits: Memory and time.
        boxes_frame: See ``place_boxes``.
    """

    image: ImageSpec
    features: FeatureSet
    limits: DecoderLimits
    boxes_frame: BoxesFrame = ""

    @cached_property
    def pickled(self) -> bytes:
        """The options as bytes."""
        return pickle.dumps(self)

    @cached_property
    def column_types(self) -> dict[str, type]:
        """Types of the columns of the catalog, which hold hashes and numbers."""
        kinds = self.features.catalogued
        types: dict[str, type] = dict.fromkeys(kinds, int)
        types |= {name: str for name, kind in kinds.items() if kind == "bytes"}
        return types | {DEPTH_REDUCED: int}

    def can_have_made(self, image: EncodedImage) -> bool:
        """Return whether these options give such an image; a hostile file may have forged it."""
        sums, squares = image.pixel_sums, image.pixel_squares
        numbers = [image.width, image.height, image.pixels, *sums, *squares]
        types = {name: type(value) for name, value in image.features.items()}
        return (
            0 <= min(numbers) <= max(numbers) < 1 << 63
            and len(sums) == len(squares) == self.image.channels
            and types | {DEPTH_REDUCED: types.get(DEPTH_REDUCED, int)} == self.column_types
        )


class RequestedImage(NamedTuple):
    """An image of a request.

    Attributes:
        uri: As in ``InputRef``; so are size, version and member.
        size: Bytes of the image.
        version: Version of the file.
        member: Place in an archive; empty for a file.
        fields: Values of features that do not come from the file, by ``Feature.field``.
        data: Content of the image; None to read it from a local file.
    """

    uri: str
    size: int
    version: str
    member: tuple[Any, ...]
    fields: dict[str, Any]
    data: bytes | None


class Request(NamedTuple):
    """Images to make records of.

    Attributes:
        options: The pickled ``DecoderOptions``, which are the same for many requests.
        announce: Whether to send ``Opened`` for each image.
        images: The images.
    """

    options: bytes
    announce: bool
    images: list[RequestedImage]


class Ready(msgspec.Struct, tag=True):
    """The process has started."""


class Opened(msgspec.Struct, tag=True):
    """The header of a large image is read; the decoder waits for ``GO``.

    Attributes:
        width: Width in pixels.
        height: Height in pixels.
        needed: Estimated bytes of memory that decoding and converting it need.
        fits: Whether they fit the limit of the process.
        inherited: Whether this limit is that of the machine or the shell and below
            ``DecoderLimits.decoder_memory``.
    """

    width: int = 0
    height: int = 0
    needed: int = 0
    fits: bool = True
    inherited: bool = False


class Encoded(msgspec.Struct, tag=True):
    """The facts of an image, and its record."""

    image: EncodedImage
    record: bytes


class Rejected(msgspec.Struct, tag=True):
    """The fields of a ``Reject``."""

    stage: str
    error: str
    message: str


class Unread(msgspec.Struct, tag=True):
    """The image cannot be read, or its file has changed."""


class NoMemory(msgspec.Struct, tag=True):
    """The memory did not suffice for an image; ``inherited`` is that of ``Opened``."""

    inherited: bool


class Bug(msgspec.Struct, tag=True):
    """An exception that is not the file's fault."""

    traceback: str


Reply: TypeAlias = Ready | Opened | Encoded | Rejected | Unread | NoMemory | Bug

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def append_reply(buffer: bytearray, reply: Reply) -> None:
    """Append the length and the MessagePack of a reply."""
    start = len(buffer)
    buffer += bytes(LENGTH.size)
    _encoder.encode_into(reply, buffer, -1)
    LENGTH.pack_into(buffer, start, len(buffer) - start - LENGTH.size)


def parse_reply(message: bytes) -> Reply:
    """Parse a reply that a hostile file may have written.

    Raises:
        ValueError: It is not one.
    """
    try:
        return _decoder.decode(message)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError("it is not a reply") from error
