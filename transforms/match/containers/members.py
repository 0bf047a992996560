"""List the members of tar and zip archives, and write tar archives of images that have no file.

Of a zip archive, the central directory is read, without an object for each entry. Sections are
those of PKWARE's APPNOTE 6.3.10.
"""

from __future__ import annotations

import base64
import io
import json
import stat
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, BinaryIO, NamedTuple

from shardmill.schemas.errors import InputError
from shardmill.schemas.refs import InputRef, MemberRange
from shardmill.schemas.storage import RandomReader, ReaderStream, open_storage
from shardmill.transforms.match.read_input import DEFLATED, STORED

_MAX_HEADER = 1 << 20  # bytes of the extended header of a member
RECORD = "SHARDMILL.record"  # keyword of extended headers: see ``pack_images``
_BLOCK = 512  # IEEE Std 1003.1, pax: an archive ends with two blocks of zeros
# 4.3.12: system that made it, flags, method, time, CRC-32, sizes, lengths of name, extra field and
# comment, attributes, offset of the local header.
_ENTRY = struct.Struct("<4sxB2xHHIIIIHHH4xII")
# 4.3.16 and 4.3.14: number of entries, size and offset of the directory, and length of the comment.
_END = struct.Struct("<4s6xHIIH")
_END_64 = struct.Struct("<4s28xQQQ")
_LOCATOR_BYTES = 20  # 4.3.15: between the two
_MAX_COMMENT = (1 << 16) - 1
_ENCRYPTED, _UTF8 = 1, 1 << 11  # 4.4.4
_ZIP64, _IN_ZIP64 = 1, 0xFFFFFFFF  # 4.5.3: the value is in the extra field
_DOS_SYSTEMS = (0, 10)  # 4.4.2.2: FAT and NTFS
_UNICODE_PATH = 0x7075  # 4.6.9: version, CRC-32 of the name in the header, and the name in UTF-8
ZIP_ENCODING = "cp437"  # appendix D: of names that do not say theirs
_READ_BYTES = 1 << 20


class ArchiveMember(NamedTuple):
    """A member of an archive.

    Attributes:
        name: Its name, with surrogates for bytes that are not UTF-8.
        size: Bytes of its content.
        version: Text that most likely changes with its content.
        offset: See ``MemberRange``.
        length: See ``MemberRange``.
        crc32: See ``MemberRange``.
        error: Why it cannot be read, or empty.
        record: Value of the keyword ``RECORD`` of its extended header.
        guessed: Whether nothing says how its name is encoded, and it is not UTF-8.
    """

    name: str
    size: int
    version: str
    offset: int
    length: int
    crc32: int = -1
    error: str = ""
    record: str = ""
    guessed: bool = False


class _Headers(io.BufferedReader):
    """Reads the headers of a tar archive; a damaged header may state any length."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return bytes of a header."""
        if size is None or not 0 <= size <= _MAX_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


def list_tar(reader: RandomReader, path: str) -> Iterator[ArchiveMember]:
    """Yield the members of a tar archive, except folders.

    Args:
        reader: The archive.
        path: Its path, for messages.

    Raises:
        InputError: The archive is damaged or cut short.
    """
    # What is between two headers is read if that is as fast as a second request.
    with _Headers(ReaderStream(reader), reader.gap) as stream:
        try:
            archive = tarfile.open(fileobj=stream, mode="r:", errors="surrogateescape")  # noqa: SIM115
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined] # it keeps all for lookups
                if info.offset_data + info.size > reader.size:
                    raise tarfile.ReadError("the last member is cut short")
                if not info.isdir():
                    is_plain = info.isreg() and not info.issparse()
                    error = "" if is_plain else "a link, device or sparse file"
                    yield ArchiveMember(
                        info.name,
                        info.size,
                        str(info.mtime),
                        info.offset_data,
                        info.size,
                        error=error,
                        record=info.pax_headers.get(RECORD, ""),
                    )
            # A damaged header ends the iteration, too.
            _check_end(stream, archive.offset)
        except (tarfile.TarError, ValueError, OverflowError) as error:
            raise damaged_archive(path=path, why=str(error)) from error


def _check_end(stream: io.BufferedReader, offset: int) -> None:
    """Check that an archive ends at an offset, and not only what could be read of it."""
    stream.seek(offset)
    end = stream.read(_BLOCK)
    if len(end) < _BLOCK:
        raise tarfile.ReadError("it has no end mark, so it is cut short")
    while end:
        if end.strip(b"\0"):
            raise tarfile.ReadError(f"there is no header at byte {offset}")
        end = stream.read(_MAX_HEADER)


class SpooledImage(NamedTuple):
    """An image without a file.

    Attributes:
        number: Its place in the source.
        key: See ``InputRef``.
        label: See ``InputRef``.
        split: See ``InputRef``.
        version: A digest of the content.
        data: The content, if any.
        attached: See ``InputRef``.
        error: Why it is rejected, a reason of ``refs.REASONS``, or empty.
        message: Details of the error, or why it has no label.
    """

    number: int
    key: str
    label: str | None
    split: str
    version: str
    data: bytes
    attached: bytes = b""
    error: str = ""
    message: str = ""


def pack_images(images: Iterable[SpooledImage], file: IO[bytes]) -> None:
    """Write an uncompressed tar archive of images to a new file."""
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for image in images:
            info = tarfile.TarInfo(str(image.number))
            info.size = len(image.data)
            record = [image.key, image.label, image.split, image.version]
            if image.attached or image.message:
                record += [base64.b64encode(image.attached).decode(), image.error, image.message]
            info.pax_headers = {RECORD: json.dumps(record)}
            archive.addfile(info, io.BytesIO(image.data))


def list_images(ref: InputRef) -> Iterator[InputRef]:
    """Yield the references of the images in the archive of a Python source.

    Args:
        ref: The archive.

    Raises:
        InputError: It was deleted or is damaged.
        StorageError: Reading it failed.
    """
    if ref.error:
        raise unreadable_archive(path=ref.uri, why=ref.message)
    # The archive will be deleted, so names do not contain its path.
    return list_spool(ref.uri, ref.uri, lambda number, key: (key, f"record:{number}"))


def list_spool(
    path: str, display_path: str, name: Callable[[str, str], tuple[str, str]]
) -> Iterator[InputRef]:
    """Yield the references of the images in an archive.

    Args:
        path: Path of the archive, whose content follows from its name.
        display_path: The path that messages name.
        name: Returns the key and the URI of an image, given its number and key.

    Raises:
        InputError: It is damaged.
        StorageError: Reading it failed.
    """
    with open_storage(path).open_at(path) as reader:
        for member in list_tar(reader, display_path):
            key, label, split, version, *more = json.loads(member.record)
            where = MemberRange(path, reader.size, "", member.offset, member.length)
            key, uri = name(member.name, key)
            ref = InputRef(key, uri, member.size, version, label, split, member=tuple(where))
            if more:
                attached, error, message = more
                ref = ref.rejected(error, message)._replace(attached=base64.b64decode(attached))
            yield ref


def list_zip(
    reader: RandomReader, path: str, encoding: str = ZIP_ENCODING
) -> Iterator[ArchiveMember]:
    """Yield the members of a zip archive, except folders.

    Args:
        reader: The archive.
        path: Its path, for messages.
        encoding: Encoding of names that are not UTF-8.

    Raises:
        InputError: The archive is damaged or cut short.
    """
    try:
        start, end, entries, shift = _find_directory(reader)
        with io.BufferedReader(ReaderStream(reader), _READ_BYTES) as stream:
            stream.seek(start)
            number = 0
            while stream.tell() < end:
                number += 1
                member = _read_entry(stream, shift, encoding)
                if not member.name.endswith("/"):
                    yield member
        if (number - entries) % (1 << 16):
            raise ValueError(f"its directory has {number:,} members, not {entries:,}")
    except (ValueError, struct.error) as error:
        raise damaged_archive(path=path, why=str(error)) from error


def damaged_archive(path: object, why: object) -> InputError:
    """Return the error for an archive that must be replaced."""
    return InputError(
        f"The archive {path} cannot be read: {why}. Replace it, or leave it out of --input."
    )


def unreadable_archive(path: object, why: object) -> InputError:
    """Return the error for an archive that cannot be read."""
    return InputError(f"The archive {path} cannot be read: {why}.")


def _find_directory(reader: RandomReader) -> tuple[int, int, int, int]:
    """Locate the central directory of a zip archive by the record at its end.

    Returns its offset, the offset after it, the number of entries (modulo 65,536 without ZIP64),
    and the bytes before the archive, such as a program that extracts it.
    """
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
    return start, start + size, entries, start - offset


def _read_entry(stream: BinaryIO, shift: int, encoding: str) -> ArchiveMember:
    """Return the next member of the directory."""
    head = _ENTRY.unpack(stream.read(_ENTRY.size))
    signature, system, flags, method, _, crc, length, size, *lengths, mode, offset = head
    raw, extra, _ = map(stream.read, lengths)
    if signature != b"PK\x01\x02" or len(raw) != lengths[0]:
        raise ValueError("an entry of its directory is damaged")
    fields = [*_extra_fields(extra)]
    size, length, offset = _long_values(fields, [size, length, offset])
    error = ""
    if flags & _ENCRYPTED:
        error = "encrypted"
    elif method not in (STORED, DEFLATED):
        error = f"compressed by method {method}, not deflate"
    elif stat.S_ISLNK(mode >> 16):
        error = "a link"
    name, guessed = _read_name(raw, fields, encoding, is_utf8=bool(flags & _UTF8))
    # Against 4.4.17, the .NET Framework wrote backslashes, which PowerShell used. As for Info-ZIP's
    # unzip, a name with slashes may have a backslash, but not on systems that do not allow it.
    if system in _DOS_SYSTEMS or "/" not in name:
        name = name.replace("\\", "/")
    return ArchiveMember(
        name, size, f"{crc:08x}", shift + offset, length, crc, error, guessed=guessed
    )


def _extra_fields(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the kind and the data of each extra field of an entry (4.5.1)."""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        yield kind, extra[4 : 4 + length]
        extra = extra[4 + length :]


def _long_values(fields: Iterable[tuple[int, bytes]], values: list[int]) -> list[int]:
    """Return sizes and offset; an extra field holds the values that do not fit 32 bits."""
    for kind, data in fields:
        if kind == _ZIP64:
            longs = (value for (value,) in struct.iter_unpack("<Q", data[: len(data) // 8 * 8]))
            values = [next(longs, value) if value == _IN_ZIP64 else value for value in values]
    return values


def _read_name(
    raw: bytes, fields: Iterable[tuple[int, bytes]], encoding: str, *, is_utf8: bool
) -> tuple[str, bool]:
    """Return the name of an entry, and whether its encoding was guessed.

    Info-ZIP and macOS write UTF-8 without the flag that says so.
    """
    for kind, data in fields:
        if kind == _UNICODE_PATH and data[1:5] == zlib.crc32(raw).to_bytes(4, "little"):
            raw, is_utf8 = data[5:], True
    guessed = False
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        guessed = not is_utf8
        if is_utf8:
            encoding = "utf-8"
        name = raw.decode(encoding, "surrogateescape")
    return name, guessed
