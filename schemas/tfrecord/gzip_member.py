"""Gzip members whose bytes depend only on their content, and the index of the members of a file.

Headers have no time, name or operating system (RFC 1952 section 2.3.1: MTIME=0, XFL=0, OS=255).

A stored member holds its content uncompressed, interrupted only by the 5-byte headers of deflate's
stored blocks. The range of a record in the file therefore follows from its range in the content,
and one record can be read without the others.

The member index is a field in a gzip header that lists the members that follow it.

The header of the first member of each group of members contains the index as an extra field
(RFC 1952 section 2.3.1.1), which every gzip reader skips. Concatenated indexed files are therefore
indexed too. An index has 512 bytes, little-endian::

    1f 8b 08 04  00000000  00 ff        gzip header with FEXTRA, no time, unknown system
    f4 01                               length of the extra field: 500
    53 4d  f0 01                        one subfield 'SM' of 496 bytes
      u8  version                       1
      u16 members                       number of listed members, with the one that has the index
      u64 span                          their size in bytes, with this header
      varint size, varint records ...   one pair for each member, in file order
      zeros                             up to 492 bytes
      u32 crc32c                        of the 492 bytes before it

The first index is at offset 0. Each span must end where the next index begins, and the last one at
the end of the file; otherwise the file counts as not indexed. This detects truncation.

A longer list cannot be put into an empty member at the end: TensorFlow's reader stops at an empty
member when all following bytes are in its buffer, and would lose the rest of ``cat a b``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import deflate

from shardmill.schemas.example.parse import NotCanonicalError, parse_varints
from shardmill.schemas.example.serialize import varint
from shardmill.schemas.tfrecord.framing import crc32c

Packing = Literal["stored", "deflated", "none"]
Piece = bytes | memoryview

HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
GZIP_HEADER_BYTES, GZIP_TRAILER_BYTES = 10, 8
LENGTH_BYTES = 4  # of the length of the content, at the end of a member (RFC 1952: ISIZE)
FEXTRA, FHCRC = 4, 2  # bits of FLG
STORED_BLOCK_BYTES = 65_535  # RFC 1951 section 3.2.4: LEN has 16 bits
STORED_HEADER_BYTES = 5
DEFLATE_LEVEL = 6
VERSION = 1
INDEX_BYTES = 512  # busybox gunzip rejects extra fields of about 30,000 bytes
_PLAIN = struct.Struct("<10sH2sH")
_HEAD = struct.Struct("<BHQ")
_CRC = struct.Struct("<I")
_BLOCK = struct.Struct("<BHH")  # RFC 1951 section 3.2.4: BFINAL, LEN and NLEN
_TRAILER = struct.Struct("<II")
_U32 = 0xFFFFFFFF
_FEXTRA = HEADER[:3] + b"\x04" + HEADER[4:]
_START = _PLAIN.pack(_FEXTRA, INDEX_BYTES - 12, b"SM", INDEX_BYTES - 16)
_BODY_BYTES = INDEX_BYTES - len(_START) - _CRC.size
_ROOM = _BODY_BYTES - _HEAD.size


class Member(NamedTuple):
    """One gzip member of a shard.

    Attributes:
        num_bytes: Size in the file, with header and trailer.
        records: Number of records.
    """

    num_bytes: int
    records: int


def pack_body(pieces: Sequence[Piece], packing: Packing) -> Sequence[Piece]:
    """Return the pieces of a member without its header; ``none`` leaves the data as it is.

    Args:
        pieces: The data. Most pieces are not copied into stored blocks.
        packing: How it is packed.
    """
    if packing == "none":
        return pieces
    if packing == "stored":
        return [*_stored(pieces)]
    data = b"".join(pieces)
    trailer = _TRAILER.pack(deflate.crc32(data), len(data) & _U32)
    return deflate.deflate_compress(data, DEFLATE_LEVEL), trailer


def _stored(pieces: Sequence[Piece]) -> Iterator[bytes]:
    left = size = sum(map(len, pieces))
    room = crc = 0  # bytes that the current block has room for
    if not size:
        yield _BLOCK.pack(1, 0, STORED_BLOCK_BYTES)
    for piece in pieces:
        crc, at = deflate.crc32(piece, crc), 0
        while at < len(piece):
            if not room:
                room = min(left, STORED_BLOCK_BYTES)
                yield _BLOCK.pack(room == left, room, room ^ 0xFFFF)
            part = bytes(piece[at : at + room])  # not a copy of bytes
            at, room, left = at + len(part), room - len(part), left - len(part)
            yield part
    yield _TRAILER.pack(crc, size & _U32)


def deflate_offset(member: bytes) -> int:
    """Return the offset of a member's deflate data, or -1 for a header with a name or comment."""
    flags = member[3]
    if flags == FEXTRA:
        return GZIP_HEADER_BYTES + 2 + int.from_bytes(member[10:12], "little")
    if flags:
        return -1
    return GZIP_HEADER_BYTES


def find_blocks(member: bytes, content_bytes: int) -> int:
    """Return the offset of the first stored block of a member that was packed as ``stored``.

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
    # The data begins inside a block, whose rest has no header.
    first = STORED_BLOCK_BYTES - start % STORED_BLOCK_BYTES
    step = STORED_BLOCK_BYTES + STORED_HEADER_BYTES
    pieces = [data[:first]]
    pieces += [data[at + STORED_HEADER_BYTES : at + step] for at in range(first, len(data), step)]
    return b"".join(pieces)


class IndexedMember(NamedTuple):
    """A ``Member`` and its offset in the file."""

    offset: int
    num_bytes: int
    records: int


def entry_bytes(member: Member) -> int:
    """Return the size of a member's entry in an index, in bytes."""
    return len(varint(member.num_bytes)) + len(varint(member.records))


def fits(members_bytes: int) -> bool:
    """Return whether entries of this size in total fit one index."""
    return members_bytes <= _ROOM


def build_index(members: Sequence[Member]) -> bytes:
    """Return the 512 bytes that replace the 10-byte header of the first member.

    Args:
        members: All members up to the next index. The size of the first one includes these 512
            bytes.

    Raises:
        ValueError: There are no members, or more than fit.
    """
    entries = b"".join(varint(m.num_bytes) + varint(m.records) for m in members)
    if not members or not fits(len(entries)):
        raise ValueError(f"{len(members)} members do not fit an index of {INDEX_BYTES} bytes")
    span = sum(member.num_bytes for member in members)
    body = (_HEAD.pack(VERSION, len(members), span) + entries).ljust(_BODY_BYTES, b"\0")
    return _START + body + _CRC.pack(crc32c(body))


def parse_index(header: bytes) -> list[Member] | None:
    """Return the members that an index lists, or None if the bytes are not a valid index."""
    if len(header) < INDEX_BYTES or not header.startswith(_START):
        return None
    # A file may begin with these bytes by chance, or hold a stale index: only one whose CRC, sizes
    # and span agree is used, and a scan of records compares their number too.
    body = header[len(_START) : INDEX_BYTES - _CRC.size]
    (crc,) = _CRC.unpack_from(header, INDEX_BYTES - _CRC.size)
    version, count, span = _HEAD.unpack_from(body)
    if crc != crc32c(body) or version != VERSION or not count:
        return None
    try:
        numbers = parse_varints(body, _HEAD.size, len(body))[: 2 * count]
    except (IndexError, NotCanonicalError):
        return None
    members = list(map(Member, numbers[::2], numbers[1::2]))
    # A member without bytes would make a reader of the index loop forever.
    sizes = [member.num_bytes for member in members]
    is_whole = len(members) == count and min(sizes) > 0 and sum(sizes) == span
    if is_whole:
        return members
    return None


def read_index(read_at: Callable[[int, int], bytes], size: int) -> list[IndexedMember] | None:
    """Return the members of a file from its indexes, or None if it is not validly indexed.

    Args:
        read_at: Function of ``(offset, length)`` that reads bytes of the file.
        size: Size of the file in bytes.
    """
    listed: list[IndexedMember] = []
    offset = 0
    # Each index leads to the next one, so this reads 512 bytes for about a hundred members.
    while offset < size:
        members = parse_index(read_at(offset, INDEX_BYTES))
        if members is None:
            return None
        for member in members:
            listed.append(IndexedMember(offset, *member))
            offset += member.num_bytes
    if listed and offset == size:
        return listed
    return None


def empty_shard() -> bytes:
    """Return a shard without records: one empty member with an index of itself."""
    body = b"".join(_stored([]))
    return build_index([Member(INDEX_BYTES + len(body), 0)]) + body
