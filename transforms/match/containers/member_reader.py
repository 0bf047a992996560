"""Read one member of an archive."""

from __future__ import annotations

import struct
import zlib

from shardmill.schemas.errors import ChangedError
from shardmill.schemas.refs import InputRef, MemberRange
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.storage import RandomReader, open_storage

# APPNOTE 4.3.7: signature, compression method, and the lengths of the name and the extra field.
_LOCAL_HEADER = struct.Struct("<4s4xH16xHH")
_LOCAL_SIGNATURE = b"PK\x03\x04"
_USUAL_HEADER = 512  # bytes that most local headers have at most
STORED, DEFLATED = 0, 8  # compression methods


def read_member(ref: InputRef) -> bytes:
    """Return the content of a member, if its archive still has the given size and version.

    Raises:
        ChangedError: The archive changed.
        RejectedError: The member is damaged.
    """
    where = MemberRange(*ref.member)
    with open_storage(where.path).open_at(where.path) as reader:
        changed = where.file_version and reader.version != where.file_version
        if changed or reader.size != where.file_size:
            raise ChangedError("changed-size", size=where.file_size, found=reader.size)
        return read_range(reader, where, ref.size)


def read_range(reader: RandomReader, where: MemberRange, size: int) -> bytes:
    """Return the content of a member of an open archive.

    Args:
        reader: The archive.
        where: Where the member is.
        size: Bytes of the content.

    Raises:
        ChangedError: The archive is shorter than it was.
        RejectedError: The member is damaged.
    """
    if where.crc32 >= 0:
        return _read_zipped(reader, where, size)
    data = reader.read_at(where.offset, where.length)
    if len(data) != where.length:
        raise ChangedError("changed-size", size=where.file_size, found=reader.size)
    return data


def _read_zipped(reader: RandomReader, where: MemberRange, size: int) -> bytes:
    data = reader.read_at(where.offset, _USUAL_HEADER + where.length)
    if len(data) < _LOCAL_HEADER.size:
        raise _damaged("its header is cut short")
    signature, method, name, extra = _LOCAL_HEADER.unpack_from(data)
    if signature != _LOCAL_SIGNATURE:
        raise _damaged("its header is not that of a member")
    start = _LOCAL_HEADER.size + name + extra
    if start > _USUAL_HEADER:
        data, start = reader.read_at(where.offset + start, where.length), 0
    content = data[start : start + where.length]
    if method == DEFLATED:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            # One byte more shows that the content is longer than declared, as that of a bomb.
            content = inflater.decompress(content, size + 1)
        except zlib.error as error:
            raise _damaged(str(error)) from error
    if len(content) != size or zlib.crc32(content) != where.crc32:
        raise _damaged("its size or CRC-32 is not that of the directory")
    return content


def _damaged(why: str) -> RejectedError:
    return RejectedError("read", "member", f"the member of the zip archive is damaged: {why}")
