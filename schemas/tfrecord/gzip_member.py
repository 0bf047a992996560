"""Gzip members whose bytes depend only on their content.

Headers have no time, name or operating system (RFC 1952 section 2.3.1: MTIME=0, XFL=0, OS=255).

The content of a stored member is in the file as it is, except for the 5-byte headers of deflate's
stored blocks. The range of a record in the file therefore follows from its range in the content,
and one record can be read without the others.
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
    # Joined once: libdeflate writes the same blocks, but replacing its header would copy them.
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


def find_blocks(member: bytes, content_bytes: int) -> int:
    """Return the offset of the first stored block of a member that ``stored_member`` wrote.

    Args:
        member: The whole gzip member.
        content_bytes: The size of its content.

    Returns:
        An offset in the member, or -1 if its content is not cut into such blocks.
    """
    start = deflate_offset(member)
    blocks = max(1, -(-content_bytes // STORED_BLOCK_BYTES))
    size = start + blocks * STORED_HEADER_BYTES + content_bytes + GZIP_TRAILER_BYTES
    # Other writers may cut stored blocks anywhere (RFC 1951 section 3.2.4). Offsets are computed
    # only for the cut that all of our members have: full blocks, the last one shorter.
    if start < 0 or len(member) != size:
        return -1
    for number in range(blocks):
        at = start + number * (STORED_BLOCK_BYTES + STORED_HEADER_BYTES)
        length = min(STORED_BLOCK_BYTES, content_bytes - number * STORED_BLOCK_BYTES)
        is_last = number == blocks - 1
        if member[at : at + 3] != bytes([is_last]) + length.to_bytes(2, "little"):
            return -1
    return start


def stored_range(start: int, end: int) -> tuple[int, int]:
    """Return the range of content[start:end], as offsets from the first stored block."""
    # Before a byte of the content there is one header for its block and one for each earlier block.
    first, last = start // STORED_BLOCK_BYTES, (end - 1) // STORED_BLOCK_BYTES
    return start + STORED_HEADER_BYTES * (first + 1), end + STORED_HEADER_BYTES * (last + 1)


def strip_block_headers(data: bytes | memoryview, start: int) -> bytes:
    """Return the content in the bytes that ``stored_range`` delimits.

    Args:
        data: Bytes of the file, including the headers of the blocks after the first.
        start: Offset of the first byte in the content.
    """
    # The data begins inside a block: what is left of it has no header.
    first = STORED_BLOCK_BYTES - start % STORED_BLOCK_BYTES
    step = STORED_BLOCK_BYTES + STORED_HEADER_BYTES
    pieces = [data[:first]]
    pieces += [data[at + STORED_HEADER_BYTES : at + step] for at in range(first, len(data), step)]
    return b"".join(pieces)
