"""List the members of zip archives from their central directory, without an object for each.

Sections are those of PKWARE's APPNOTE 6.3.10.
"""

from __future__ import annotations

import io
import stat
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from shardmill.schemas.errors import InputError
from shardmill.schemas.storage import RandomReader
from shardmill.schemas.storage.base import ReaderStream
from shardmill.transforms.match.containers.tar_members import ArchiveMember
from shardmill.transforms.match.read_input import DEFLATED, STORED

# 4.3.12: flags, method, time, CRC-32, sizes, lengths of name, extra field and comment, attributes,
# offset of the local header.
_ENTRY = struct.Struct("<4s4xHHIIIIHHH4xII")
# 4.3.16 and 4.3.14: number of entries, size and offset of the directory, and length of the comment.
_END = struct.Struct("<4s6xHIIH")
_END_64 = struct.Struct("<4s28xQQQ")
_LOCATOR_BYTES = 20  # 4.3.15: between the two
_MAX_COMMENT = (1 << 16) - 1
_ENCRYPTED, _UTF8 = 1, 1 << 11  # 4.4.4
_ZIP64, _IN_ZIP64 = 1, 0xFFFFFFFF  # 4.5.3: the value is in the extra field
_READ_BYTES = 1 << 20


class _Directory(NamedTuple):
    """The central directory.

    Attributes:
        start: Offset in the file.
        end: Offset after it.
        entries: Number of entries; modulo 65,536 in archives without ZIP64.
        shift: Bytes before the archive, such as a program that extracts it.
    """

    start: int
    end: int
    entries: int
    shift: int


def list_zip(reader: RandomReader, path: str) -> Iterator[ArchiveMember]:
    """Yield the members of a zip archive, except folders.

    Args:
        reader: The archive.
        path: Its path, for messages.

    Raises:
        InputError: The archive is damaged or cut short.
    """
    try:
        directory = _find_directory(reader)
        with io.BufferedReader(ReaderStream(reader), _READ_BYTES) as stream:
            stream.seek(directory.start)
            number = 0
            while stream.tell() < directory.end:
                number += 1
                member = _read_entry(stream, directory.shift)
                if not member.name.endswith("/"):
                    yield member
        if (number - directory.entries) % (1 << 16):
            raise ValueError(f"its directory has {number:,} members, not {directory.entries:,}")
    except (ValueError, struct.error) as error:
        raise InputError("archive-damaged", path=path, why=str(error)) from error


def _find_directory(reader: RandomReader) -> _Directory:
    size = _END_64.size + _LOCATOR_BYTES + _END.size + _MAX_COMMENT
    first = max(0, reader.size - size)
    tail = reader.read_at(first, size)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + _END.size:
        raise ValueError("it has no directory, so it is cut short")
    _, entries, size, offset, comment = _END.unpack_from(tail, at)
    if at + _END.size + comment != len(tail):
        raise ValueError("bytes follow its directory, or are missing")
    at_64 = at - _LOCATOR_BYTES - _END_64.size
    if at_64 >= 0 and tail.startswith(b"PK\x06\x06", at_64):
        at, (_, entries, size, offset) = at_64, _END_64.unpack_from(tail, at_64)
    start = first + at - size
    if start < offset:
        raise ValueError("its directory is cut short")
    return _Directory(start, start + size, entries, start - offset)


def _read_entry(stream: BinaryIO, shift: int) -> ArchiveMember:
    """Return the next member of the directory."""
    head = _ENTRY.unpack(stream.read(_ENTRY.size))
    signature, flags, method, _, crc, length, size, *lengths, mode, offset = head
    raw, extra, _ = map(stream.read, lengths)
    if signature != b"PK\x01\x02" or len(raw) != lengths[0]:
        raise ValueError("an entry of its directory is damaged")
    size, length, offset = _long_values(extra, [size, length, offset])
    error = ""
    if flags & _ENCRYPTED:
        error = "encrypted"
    elif method not in (STORED, DEFLATED):
        error = f"compressed by method {method}, not deflate"
    elif stat.S_ISLNK(mode >> 16):
        error = "a link"
    name = raw.decode("utf-8" if flags & _UTF8 else "cp437", "surrogateescape")
    return ArchiveMember(name, size, f"{crc:08x}", shift + offset, length, crc, error)


def _long_values(extra: bytes, values: list[int]) -> list[int]:
    """Return sizes and offset, of which the extra field has those that do not fit 32 bits."""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        if kind == _ZIP64:
            longs = (value for (value,) in struct.iter_unpack("<Q", extra[4 : 4 + length // 8 * 8]))
            values = [next(longs, value) if value == _IN_ZIP64 else value for value in values]
        extra = extra[4 + length :]
    return values
