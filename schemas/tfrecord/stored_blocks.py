"""Byte ranges of records inside a stored gzip member.

The content of a stored member is in the file as it is, except for the 5-byte headers of deflate's
stored blocks. The range of a record in the file therefore follows from its range in the content,
and one record can be read without the others.
"""

from __future__ import annotations

from shardmill.schemas.tfrecord.gzip_member import (
    GZIP_TRAILER_BYTES,
    STORED_BLOCK_BYTES,
    STORED_HEADER_BYTES,
    deflate_offset,
)


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
