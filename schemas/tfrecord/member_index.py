"""The index: a field in a gzip header that lists the members which follow it.

The first member of every run of members carries it in its header (RFC 1952 FEXTRA), so every gzip
reader skips it, and a shard made by joining indexed files is indexed again. It always takes 512
bytes, little-endian::

    1f 8b 08 04  00000000  00 ff        gzip header with FEXTRA, no time, unknown system
    f4 01                               length of the extra field: 500
    53 4d  f0 01                        one subfield 'SM' of 496 bytes
      u8  version                       1
      u16 members                       how many members the index lists, itself the first
      u64 span                          how many bytes they take, this header included
      varint size, varint records ...   one pair a member, in file order
      zeros                             up to 492 bytes
      u32 crc32c                        of the 492 bytes before it

A reader starts at offset 0; each index must end where the next begins, and the last at the end of
the file, else the file counts as not indexed. So truncation shows.

There is no empty member at the end that could carry a longer list: TensorFlow's reader stops at
an empty member when all that follows is in its buffer, and would lose the rest of ``cat a b``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shardmill.schemas.tfrecord.framing import crc32c
from shardmill.schemas.tfrecord.gzip_member import HEADER, Member, stored_member

VERSION = 1
INDEX_BYTES = 512  # busybox gunzip refuses extra fields near 30,000 bytes
_PLAIN = struct.Struct("<10sH2sH")
_HEAD = struct.Struct("<BHQ")
_CRC = struct.Struct("<I")
_FEXTRA = HEADER[:3] + b"\x04" + HEADER[4:]
_START = _PLAIN.pack(_FEXTRA, INDEX_BYTES - 12, b"SM", INDEX_BYTES - 16)
_BODY_BYTES = INDEX_BYTES - len(_START) - _CRC.size
_ROOM = _BODY_BYTES - _HEAD.size


class IndexedMember(NamedTuple):
    """A member and where it starts in the file."""

    offset: int
    num_bytes: int
    records: int


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def entry_bytes(member: Member) -> int:
    """Returns how many bytes of an index a member takes."""
    return len(_varint(member.num_bytes)) + len(_varint(member.records))


def fits(members_bytes: int) -> bool:
    """Tells whether entries of so many bytes in all fit one index."""
    return members_bytes <= _ROOM


def build_index(members: Sequence[Member]) -> bytes:
    """Returns the 512 bytes that stand in place of the first member's own 10-byte header.

    Args:
        members: All members up to the next index. The first one's size counts these 512 bytes.

    Raises:
        ValueError: There are no members, or too many.
    """
    entries = b"".join(_varint(m.num_bytes) + _varint(m.records) for m in members)
    if not members or not fits(len(entries)):
        raise ValueError(f"{len(members)} members do not fit an index of {INDEX_BYTES} bytes")
    span = sum(member.num_bytes for member in members)
    body = (_HEAD.pack(VERSION, len(members), span) + entries).ljust(_BODY_BYTES, b"\0")
    return _START + body + _CRC.pack(crc32c(body))


def parse_index(header: bytes) -> list[Member] | None:
    """Returns the members that an index lists, or None when the bytes are no sound index."""
    if len(header) < INDEX_BYTES or not header.startswith(_START):
        return None
    body = header[len(_START) : INDEX_BYTES - _CRC.size]
    (crc,) = _CRC.unpack_from(header, INDEX_BYTES - _CRC.size)
    version, count, span = _HEAD.unpack_from(body)
    if crc != crc32c(body) or version != VERSION or not count:
        return None
    numbers = _read_varints(body[_HEAD.size :], 2 * count)
    members = [Member(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=False)]
    if len(members) != count or not all(member.num_bytes for member in members):
        return None
    if sum(member.num_bytes for member in members) != span:
        return None
    return members


def read_index(read_at: Callable[[int, int], bytes], size: int) -> list[IndexedMember] | None:
    """Returns a file's members from its indexes, or None when it is not (soundly) indexed.

    Args:
        read_at: Reads ``length`` bytes at ``offset``: ``read_at(offset, length)``.
        size: The file's size in bytes.
    """
    found: list[IndexedMember] = []
    offset = 0
    while offset < size:
        members = parse_index(read_at(offset, INDEX_BYTES))
        if members is None:
            return None
        for member in members:
            found.append(IndexedMember(offset, *member))
            offset += member.num_bytes
    return found if found and offset == size else None


def empty_shard() -> bytes:
    """Returns a shard without records: one empty member that lists itself."""
    body = stored_member(b"")[len(HEADER) :]
    return build_index([Member(INDEX_BYTES + len(body), 0)]) + body


def _read_varints(data: bytes, count: int) -> list[int]:
    values: list[int] = []
    value = shift = 0
    for byte in data:
        if len(values) == count:
            break
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value)
            value = shift = 0
    return values
