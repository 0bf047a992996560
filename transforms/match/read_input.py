"""Read matched inputs: what is tried again, and what becomes a reject."""

from __future__ import annotations

import errno
import struct
import time
import zlib
from collections.abc import Sequence
from typing import Any

from shardmill.schemas.errors import ChangedError, StorageError
from shardmill.schemas.refs import TRANSIENT, InputRef, MemberRange, RejectedError
from shardmill.schemas.storage import RandomReader, open_storage, scheme_of
from shardmill.schemas.storage.base import changed_size

MAX_FILE_BYTES = 1 << 29
_ATTEMPTS = 3
_OF_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # errors of a disk that no file causes
_FIRST_DELAY = 0.1  # seconds; each retry waits 4 times longer
# APPNOTE 4.3.7: signature, compression method, and the lengths of the name and the extra field.
_LOCAL_HEADER = struct.Struct("<4s4xH16xHH")
_LOCAL_SIGNATURE = b"PK\x03\x04"
_USUAL_HEADER = 512  # bytes that most local headers have at most
STORED, DEFLATED = 0, 8  # compression methods


def read_input(ref: InputRef) -> bytes:
    """Return the content of an input file; see ``read_inputs``.

    Raises:
        RejectedError: The file is too large, missing or not readable, or has changed since it was
            listed.
        StorageError: Reading failed three times.
    """
    (result,) = read_inputs([ref])
    if isinstance(result, RejectedError):
        raise result
    return result


def read_inputs(refs: Sequence[InputRef]) -> list[bytes | RejectedError]:
    """Return the content of each input file, or why it is rejected.

    Every failure is retried: a network file system may lose a file for a moment, and a file may be
    replaced. The files wait together, so that a folder of missing files does not take minutes.
    Errors of the storage are raised: they say nothing about the input.

    Raises:
        StorageError: Reading failed three times.
    """
    results = [_try_read(ref) for ref in refs]
    for attempt in range(_ATTEMPTS - 1):
        failed = [number for number, result in enumerate(results) if _is_worth_a_retry(result)]
        if not failed:
            break
        time.sleep(_FIRST_DELAY * 4**attempt)
        for number in failed:
            results[number] = _try_read(refs[number])
    read = []
    for result in results:
        if isinstance(result, StorageError):
            raise result
        read.append(result)
    return read


def _is_worth_a_retry(result: bytes | RejectedError | StorageError) -> bool:
    return isinstance(result, StorageError) or (
        isinstance(result, RejectedError) and result.error in TRANSIENT
    )


def _try_read(ref: InputRef) -> bytes | RejectedError | StorageError:
    if ref.size > MAX_FILE_BYTES:
        return RejectedError("read", "too_large", f"{ref.size:,} bytes exceed {MAX_FILE_BYTES:,}")
    try:
        return read_content(ref.uri, ref.size, ref.version, ref.member)
    except FileNotFoundError:
        return RejectedError("read", "not_found", "the file was there when it was listed")
    except PermissionError:
        return RejectedError("read", "unreadable", "reading it is not permitted")
    except RejectedError as error:
        return error
    except ChangedError as error:
        return RejectedError("read", "changed", str(error))
    except StorageError as error:
        cause = error.__cause__
        if scheme_of(ref.file) or not isinstance(cause, OSError) or cause.errno in _OF_PROCESS:
            return error
        return RejectedError("read", "unreadable", cause.strerror or str(cause))


def read_content(uri: str, size: int, version: str, member: tuple[Any, ...]) -> bytes:
    """Return the content of an input, if its file still has the size and version of its listing.

    Args:
        uri: As in ``InputRef``; so are the others.
        size: Bytes of the content.
        version: Version of a file.
        member: Fields of the ``MemberRange`` of a member; empty for a file.

    Raises:
        ChangedError: The file or archive changed.
        FileNotFoundError: It does not exist.
        RejectedError: The member is damaged.
        StorageError: Reading failed.
    """
    if not member:
        return open_storage(uri).read_unchanged(uri, size, version)
    where = MemberRange(*member)
    with open_storage(where.path).open_at(where.path) as reader:
        changed = where.file_version and reader.version != where.file_version
        if changed or reader.size != where.file_size:
            raise changed_size(size=where.file_size, actual=reader.size)
        return read_range(reader, where, size)


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
        raise changed_size(size=where.file_size, actual=reader.size)
    return data


def _read_zipped(reader: RandomReader, where: MemberRange, size: int) -> bytes:
    if where.offset + where.length > where.file_size:
        raise _damaged("the directory places it beyond the end of the archive")
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
