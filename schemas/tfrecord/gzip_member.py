"""Gzip members whose bytes depend only on their content.

Headers have no time, name or operating system (RFC 1952 section 2.3.1: MTIME=0, XFL=0, OS=255).
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

import deflate

Packing = Literal["stored", "deflated", "none"]
COMPRESSIONS = ("gzip", "none")  # values of --compression

HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
GZIP_HEADER_BYTES, GZIP_TRAILER_BYTES = 10, 8
FEXTRA, FHCRC = 4, 2  # bits of FLG
STORED_BLOCK_BYTES = 65_535  # RFC 1951 section 3.2.4: LEN has 16 bits
STORED_HEADER_BYTES = 5
DEFLATE_LEVEL = 6


class Member(NamedTuple):
    """One gzip member of a shard.

    Attributes:
        num_bytes: Size in the file, with header and trailer.
        records: Number of records.
    """

    num_bytes: int
    records: int


def stored_member(data: bytes) -> bytes:
    """Return data as one gzip member of stored (uncompressed) deflate blocks."""
    pieces = [HEADER]
    view = memoryview(data)
    last = max(0, (len(data) - 1) // STORED_BLOCK_BYTES)
    for number in range(last + 1):
        block = view[number * STORED_BLOCK_BYTES : (number + 1) * STORED_BLOCK_BYTES]
        size = len(block)
        pieces.append(struct.pack("<BHH", number == last, size, size ^ 0xFFFF))
        pieces.append(block)  # type: ignore[arg-type]
    pieces.append(_trailer(data))
    return b"".join(pieces)


def deflated_member(data: bytes, level: int = DEFLATE_LEVEL) -> bytes:
    """Return data as one gzip member compressed by libdeflate."""
    return b"".join((HEADER, deflate.deflate_compress(data, level), _trailer(data)))


def pack_member(data: bytes, packing: Packing) -> bytes:
    """Return data as a stored member, as a deflated member, or unchanged."""
    if packing == "stored":
        return stored_member(data)
    return deflated_member(data) if packing == "deflated" else data


def deflate_offset(member: bytes) -> int:
    """Return the offset of a member's deflate data, or -1 for a header with a name or comment."""
    flags = member[3]
    if flags == FEXTRA:
        return GZIP_HEADER_BYTES + 2 + int.from_bytes(member[10:12], "little")
    return -1 if flags else GZIP_HEADER_BYTES


def _trailer(data: bytes) -> bytes:
    return struct.pack("<II", deflate.crc32(data), len(data) & 0xFFFFFFFF)
