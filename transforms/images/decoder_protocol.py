"""Messages between a worker and its decoder processes: numbers and bytes.

Replies contain no pickles: a decoder that a hostile file took over must not run code in the worker.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

from shardmill.schemas.schema_pbtxt.image_features import FeatureNames
from shardmill.transforms.images.convert import ImageSpec

# Bytes of the spec, number of inputs, and whether to send ``Opened`` for each; then the spec, the
# ``INPUT`` of each input, and the key, label and content of each. Each input has one reply.
# A request of zeros only answers ``Opened``: decode it now.
REQUEST = struct.Struct("<II?")
# Bytes of key, label and file; class id, or -1 for no label; where the file is: its modification
# time in nanoseconds if a descriptor comes with the request, else ``CONTENT`` or ``MISSING``.
INPUT = struct.Struct("<IIQqq")
CONTENT, MISSING = -1, -2
MAX_FILES = 250  # descriptors that a message can have on every system
# Kind, number of frames (1, or 2 for more), number of channels, bytes of the payload; of an encoded
# image also width and height of the file's image and BLAKE3 of the file.
REPLY = struct.Struct("<BBBQII32s")
CHANNEL = struct.Struct("<QQQ")  # number, sum and sum of the squares of its values
OPENED = struct.Struct("<QQQ??")
NO_MEMORY_EXIT = 77  # exit code where the memory does not suffice for the file itself


class Kind(IntEnum):
    """Kind of a reply, and its payload."""

    READY = 1  # after the start; empty
    OPENED = 2  # the header of a large image is read; ``Opened``
    ENCODED = 3  # the sums of the channels, then the record
    REJECTED = 4  # JSON of stage, reason and message
    NO_MEMORY = 5  # ``Opened``
    BUG = 6  # a traceback
    UNREAD = 7  # the file cannot be read, or has changed; empty


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
    features: FeatureNames
    limits: Limits

    @cached_property
    def pickled(self) -> bytes:
        """The spec as bytes."""
        return pickle.dumps(self)
