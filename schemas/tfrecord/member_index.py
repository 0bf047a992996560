"""The member index: a field in a gzip header that lists the members that follow it.

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
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shardmill.schemas.example.parse import NotCanonicalError, parse_varints
from shardmill.schemas.example.serialize import varint
from shardmill.schemas.tfrecord.framing import crc32c
from shardmill.schemas.tfrecord.gzip_member import HEADER, Member, stored_member

VERSION = 1
INDEX_BYTES = 512  # busybox gunzip rejects extra fields of about 30,000 bytes
_PLAIN = struct.Struct("<10sH2sH")
_HEAD = struct.Struct("<BHQ")
_CRC = struct.Struct("<I")
_FEXTRA = HEADER[:3] + b"\x04" + HEADER[4:]
_START = _PLAIN.pack(_FEXTRA, INDEX_BYTES - 12, b"SM", INDEX_BYTES - 16)
_BODY_BYTES = INDEX_BYTES - len(_START) - _CRC.size
_ROOM = _BODY_BYTES - _HEAD.size


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
    return members if len(members) == count and min(sizes) > 0 and sum(sizes) == span else None


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
    return listed if listed and offset == size else None


def empty_shard() -> bytes:
    """Return a shard without records: one empty member with an index of itself."""
    body = stored_member(b"")[len(HEADER) :]
    return build_index([Member(INDEX_BYTES + len(body), 0)]) + body
