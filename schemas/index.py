"""The index: an empty gzip member at the end of a shard that lists the shard's members.

Every gzip reader skips it. Its bytes, little-endian::

    1f 8b 08 04  00000000  00 ff        gzip header with FEXTRA, no time, unknown system
    u16 xlen                            length of the extra field
    53 4d  u16 length                   one subfield 'SM'
      varint size, varint records ...   one pair a member, in file order
      u32 members                       how many pairs
      u64 span                          how many bytes before this index it describes
      u32 own length                    of this whole gzip member
      u32 crc32c                        of the subfield up to here
      u8  version                       1
      53 4d 49 58                       magic 'SMIX', ends 10 bytes before the end of the member
    03 00  00000000  00000000           an empty deflate stream, its CRC and size

A list too long for one index is cut into several, each standing behind the members that it
describes. A reader walks back from the end of the file: each index must start where its span
ends, and the spans must reach offset 0, else the file counts as not indexed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shardmill.schemas.framing import crc32c
from shardmill.schemas.members import Member

MAGIC = b"SMIX"
VERSION = 1
MAX_INDEX_BYTES = 16_000  # busybox gunzip refuses extra fields near 30,000 bytes
_HEADER = b"\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff"
_EMPTY_STREAM = b"\x03\x00" + b"\x00" * 8
_TAIL = struct.Struct("<IQI")
_SEAL = struct.Struct("<IB4s")
_FIXED_BYTES = len(_HEADER) + 2 + 4 + _TAIL.size + _SEAL.size + len(_EMPTY_STREAM)


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


def _entry(member: Member) -> bytes:
    return _varint(member.num_bytes) + _varint(member.records)


def build_indexes(parts: Sequence[Sequence[Member]]) -> list[tuple[int, bytes]]:
    """Returns the indexes of a shard that is made of whole parts.

    Args:
        parts: The members of each part, in file order.

    Returns:
        Pairs (after how many parts, the index); one for all but very long shards.
    """
    indexes: list[tuple[int, bytes]] = []
    group: list[Member] = []
    room = MAX_INDEX_BYTES - _FIXED_BYTES
    used = 0
    for number, members in enumerate(parts):
        size = sum(len(_entry(member)) for member in members)
        if used + size > room:
            indexes.append((number, build_index(group)))
            group, used = [], 0
        group.extend(members)
        used += size
    indexes.append((len(parts), build_index(group)))
    return indexes


def build_index(members: Sequence[Member]) -> bytes:
    """Returns the index that describes members, which stand right before it.

    Raises:
        ValueError: The list does not fit; cut it with ``build_indexes``.
    """
    entries = b"".join(map(_entry, members))
    own = _FIXED_BYTES + len(entries)
    if own > MAX_INDEX_BYTES:
        raise ValueError(f"an index of {own} bytes exceeds {MAX_INDEX_BYTES}")
    body = entries + _TAIL.pack(len(members), sum(m.num_bytes for m in members), own)
    body += _SEAL.pack(crc32c(body), VERSION, MAGIC)
    field = b"SM" + struct.pack("<H", len(body)) + body
    return _HEADER + struct.pack("<H", len(field)) + field + _EMPTY_STREAM


def read_index(read_at: Callable[[int, int], bytes], size: int) -> list[IndexedMember] | None:
    """Returns a file's members from its indexes, or None when it is not (soundly) indexed.

    Args:
        read_at: Reads ``length`` bytes at ``offset``: ``read_at(offset, length)``.
        size: The file's size in bytes.
    """
    found: list[list[IndexedMember]] = []
    end = size
    while end > 0:
        start = max(0, end - MAX_INDEX_BYTES)
        parsed = parse_index(read_at(start, end - start))
        if parsed is None:
            return None
        members, own = parsed
        offset = end - own - sum(m.num_bytes for m in members)
        if offset < 0:
            return None
        end = offset
        group = []
        for member in members:
            group.append(IndexedMember(offset, *member))
            offset += member.num_bytes
        found.append(group)
    return [member for group in reversed(found) for member in group] if found else None


def parse_index(tail: bytes) -> tuple[list[Member], int] | None:
    """Returns the members and own length of the index that ends a tail of a file, or None."""
    end = len(tail) - len(_EMPTY_STREAM)
    if end < _FIXED_BYTES - len(_EMPTY_STREAM) or tail[end:] != _EMPTY_STREAM:
        return None
    crc, version, magic = _SEAL.unpack_from(tail, end - _SEAL.size)
    if magic != MAGIC or version != VERSION:
        return None
    sealed = end - _SEAL.size
    count, span, own = _TAIL.unpack_from(tail, sealed - _TAIL.size)
    body = len(tail) - own + len(_HEADER) + 6
    if own > len(tail) or body > sealed - _TAIL.size or crc32c(tail[body:sealed]) != crc:
        return None
    if tail[len(tail) - own :][: len(_HEADER)] != _HEADER:
        return None
    numbers = _read_varints(tail[body : sealed - _TAIL.size])
    members = [Member(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=False)]
    if len(numbers) != 2 * count or sum(m.num_bytes for m in members) != span:
        return None
    return members, own


def _read_varints(data: bytes) -> list[int]:
    values: list[int] = []
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value)
            value = shift = 0
    return values
