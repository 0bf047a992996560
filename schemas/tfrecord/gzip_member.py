"""Gzip members whose bytes depend on nothing but their content.

Headers carry no time, no name and no operating system (RFC 1952: MTIME=0, XFL=0, OS=255).
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

import deflate

Packing = Literal["stored", "deflated", "none"]
COMPRESSIONS = ("gzip", "none")  # of a dataset

HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_STORED_BLOCK = 65_535
DEFLATE_LEVEL = 6


class Member(NamedTuple):
    """One gzip member of a shard.

    Attributes:
        num_bytes: Its size in the file, header and trailer included.
        records: How many records it holds.
    """

    num_bytes: int
    records: int


def stored_member(data: bytes) -> bytes:
    """Returns data as one gzip member of stored (uncompressed) deflate blocks."""
    pieces = [HEADER]
    view = memoryview(data)
    last = max(0, (len(data) - 1) // _STORED_BLOCK)
    for number in range(last + 1):
        block = view[number * _STORED_BLOCK : (number + 1) * _STORED_BLOCK]
        size = len(block)
        pieces.append(struct.pack("<BHH", number == last, size, size ^ 0xFFFF))
        pieces.append(block)  # type: ignore[arg-type]
    pieces.append(_trailer(data))
    return b"".join(pieces)


def deflated_member(data: bytes, level: int = DEFLATE_LEVEL) -> bytes:
    """Returns data as one gzip member compressed by libdeflate."""
    return b"".join((HEADER, deflate.deflate_compress(data, level), _trailer(data)))


def pack_member(data: bytes, packing: Packing) -> bytes:
    """Returns data packed as asked: a stored member, a deflated one, or as it is."""
    if packing == "stored":
        return stored_member(data)
    return deflated_member(data) if packing == "deflated" else data


def _trailer(data: bytes) -> bytes:
    return struct.pack("<II", deflate.crc32(data), len(data) & 0xFFFFFFFF)
