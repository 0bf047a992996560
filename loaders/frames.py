"""Records inside a member: where each begins, and how one is read without the others.

The content of a stored member lies in the file as it is, cut by the 5-byte headers of deflate's
stored blocks; so a record's place in the file follows from its place in the content.
"""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES, mask
from shardmill.schemas.tfrecord.gzip_member import (
    GZIP_TRAILER_BYTES,
    STORED_HEADER_BYTES,
    deflate_offset,
)
from shardmill.schemas.tfrecord.gzip_member import STORED_BLOCK_BYTES as BLOCK

Starts = npt.NDArray[Any]
_LENGTHS = struct.Struct("<QI")
_CRC = struct.Struct("<I")


class FrameError(Exception):
    """Bytes that are no sound records; the message says what is wrong with which, from 0."""


def walk_frames(content: bytes) -> Starts:
    """Returns where each record of some content begins, and where the last one ends.

    Args:
        content: Whole records, framed.

    Returns:
        Offsets, shape [records + 1]; uint32 where they fit, else uint64.

    Raises:
        FrameError: A length is damaged or leads behind the end.
    """
    starts = [0]
    at, end = 0, len(content)
    unpack, value = _LENGTHS.unpack_from, google_crc32c.value
    while at < end:
        if end - at < HEADER_BYTES:
            raise FrameError(f"record {len(starts) - 1} is cut")
        length, crc = unpack(content, at)
        if mask(value(content[at : at + 8])) != crc:
            raise FrameError(f"the length of record {len(starts) - 1} is damaged")
        at += HEADER_BYTES + length + FOOTER_BYTES
        if at > end:
            raise FrameError(f"record {len(starts) - 1} is cut")
        starts.append(at)
    return np.array(starts, np.uint32 if end < 1 << 32 else np.uint64)


def payload_of(frame: bytes) -> bytes:
    """Returns the payload of one framed record, both of its CRCs checked.

    Raises:
        FrameError: It is damaged.
    """
    length = len(frame) - HEADER_BYTES - FOOTER_BYTES
    payload = frame[HEADER_BYTES : HEADER_BYTES + length]
    if length < 0 or _LENGTHS.unpack_from(frame) != (length, mask(google_crc32c.value(frame[:8]))):
        raise FrameError("its length is damaged")
    if _CRC.unpack_from(frame, HEADER_BYTES + length)[0] != mask(google_crc32c.value(payload)):
        raise FrameError("its bytes do not have the CRC-32C that stands behind them")
    return payload


def stored_at(member: bytes, content_bytes: int) -> int:
    """Returns where the first block of a stored member begins, or -1 unless it is laid out so.

    Args:
        member: The whole gzip member.
        content_bytes: Bytes of its content.
    """
    at = deflate_offset(member)
    blocks = max(1, -(-content_bytes // BLOCK))
    if (
        at < 0
        or len(member) != at + blocks * STORED_HEADER_BYTES + content_bytes + GZIP_TRAILER_BYTES
    ):
        return -1
    for number in range(blocks):
        here = at + number * (BLOCK + STORED_HEADER_BYTES)
        size = min(BLOCK, content_bytes - number * BLOCK)
        if member[here] != (number == blocks - 1):
            return -1
        if member[here + 1 : here + 3] != size.to_bytes(2, "little"):
            return -1
    return at


def stored_range(start: int, end: int) -> tuple[int, int]:
    """Returns where content from start to end lies, counted from the first stored block."""
    first, last = start // BLOCK, (end - 1) // BLOCK
    return start + STORED_HEADER_BYTES * (first + 1), end + STORED_HEADER_BYTES * (last + 1)


def without_headers(data: bytes, start: int) -> bytes:
    """Returns content that was read with the headers of stored blocks in it.

    Args:
        data: The bytes of the file that ``stored_range`` names.
        start: Where they begin in the content.
    """
    first = BLOCK - start % BLOCK
    if len(data) <= first:
        return data
    pieces = [data[:first]]
    step = BLOCK + STORED_HEADER_BYTES
    pieces += [data[at + STORED_HEADER_BYTES : at + step] for at in range(first, len(data), step)]
    return b"".join(pieces)
