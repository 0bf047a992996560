"""Expand archives into references to their members, and write tar archives of images.

Of a zip archive, the central directory is read, without an object for each entry. Sections are
those of PKWARE's APPNOTE 6.3.10.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import stat
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import IO, BinaryIO, NamedTuple, Protocol, TypeAlias

from typing_extensions import Self

from shardmill.schemas.dataset.foreign_names import IMAGE_SUFFIXES
from shardmill.schemas.decompress import DecompressionError, decompress
from shardmill.schemas.errors import InputError, format_names
from shardmill.schemas.file_signatures import compression_format
from shardmill.schemas.refs import InputRef, MatchCounts, MemberRange, RejectedError, count_skipped
from shardmill.schemas.storage import RandomReader, ReaderStream, open_storage
from shardmill.schemas.text_file import TextError, decode_text
from shardmill.schemas.tfrecord.framing import starts_record
from shardmill.schemas.tfrecord.reader import ZLIB_REMEDY, has_zlib_records
from shardmill.transforms.match.labels import LabelError, read_label
from shardmill.transforms.match.read_input import DEFLATED, STORED, read_range
from shardmill.transforms.match.walk import escape_name, is_junk, is_other, is_utf8, make_key

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


_HEAD_BYTES = 512
_MAX_LABEL_BYTES = 64 << 10  # of a member with a label
_HELD_BYTES = 8 << 20  # in memory
# By name. Their content decides whether they are archives, but a damaged one must not be skipped.
ARCHIVE_SUFFIXES = (".tar", ".zip", ".tgz", ".tbz2", ".txz", ".parquet", ".tfrecord", ".tfrec")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
Members: TypeAlias = Iterator[InputRef | MatchCounts]


# Why an image has no label, although its path has folders.
_UNCHOSEN = (
    "its archive has .json members for its samples: --label_column=NAME takes labels from them, "
    "--label_pattern='(.*/)?(?P<label>[^/]+)/[^/]+' from folders, and --label_from=none takes none"
)


class MemberOptions(NamedTuple):
    """How the members of tar and zip archives become inputs.

    Attributes:
        label: Name of the labels in ``.json`` members; if it is empty, ``.cls`` members have them.
        image_suffix: What follows the first dot in the names of images; any if it is empty.
        zip_encoding: Encoding of names in zip archives that are not UTF-8; if it is empty, that of
            the first programs, with a warning.
        by_path: Whether labels are taken from paths also where a sample has a ``.json`` member.
    """

    label: str = ""
    image_suffix: tuple[str, ...] = ()
    zip_encoding: str = ""
    by_path: bool = True


def unchosen_kind(image_suffix: Collection[str]) -> str:
    """Return how images that ``--image_suffix`` leaves out are listed among skipped files."""
    return f"images without --image_suffix={','.join(image_suffix)}"


class Spooler(Protocol):
    """Reads archives that have no random access."""

    @property
    def members(self) -> MemberOptions:
        """How members of tar and zip archives become inputs."""

    def __call__(self, ref: InputRef, reader: RandomReader, kind: str) -> Members:
        """Yield the members of an archive: of its reference, the open file and its kind."""


def archive_kind(reader: RandomReader) -> str:
    """Return the kind of an archive by its content, or an empty text for another file.

    The members of ``tar`` and ``zip`` are read in place. The others are read in sequence:
    ``packed`` (a compressed tar archive), ``parquet`` and ``tfrecord``. ``zlib``, TFRecords with
    ZLIB compression, is not read.
    """
    head = reader.read_at(0, _HEAD_BYTES)
    compression = compression_format(head)
    if compression:
        content = b""
        try:
            for piece in decompress(reader, compression):
                content += piece
                if len(content) >= _HEAD_BYTES:
                    break
        except DecompressionError:
            return "packed"  # reading it gives the error
        kind = _kind_of(content)
        if kind == "tfrecord" and compression == "gzip":
            return kind
        if kind == "tar":
            return "packed"
        return ""
    return _kind_of(head)


def _kind_of(head: bytes) -> str:
    if head[257:262] == b"ustar" or _starts_with_tar_header(head):  # IEEE Std 1003.1, pax: magic
        return "tar"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head.startswith(b"PAR1"):
        return "parquet"
    if has_zlib_records(head):
        return "zlib"
    if starts_record(head):
        return "tfrecord"
    return ""


def _starts_with_tar_header(head: bytes) -> bool:
    """Return whether a header of tar with its checksum begins: those of version 7 have no magic."""
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def is_archive(uri: str) -> bool:
    """Return whether a file is an archive; False for one that cannot be read."""
    with suppress(OSError), open_storage(uri).open_at(uri) as reader:
        return bool(archive_kind(reader))
    return False


def expand(ref: InputRef, spool: Spooler | None = None) -> Members:
    """Yield the members of an archive; another file as it is, or skipped by its name.

    Args:
        ref: A file of any kind.
        spool: Without it, files that have no random access are not archives.

    Raises:
        InputError: An archive is damaged.
        StorageError: Reading it failed.
    """
    if ref.error:
        # One archive has many inputs, which are not to be one reject.
        if is_other(ref.key):
            raise unreadable_archive(path=ref.uri, why=ref.message)
        yield ref
        return
    try:
        with open_storage(ref.uri).open_at(ref.uri) as reader:
            kind = archive_kind(reader)
            if kind == "zlib":
                why = f"its TFRecords have ZLIB compression, which is not read: {ZLIB_REMEDY}"
                raise unreadable_archive(path=ref.uri, why=why)
            if kind in ("tar", "zip"):
                file = MemberRange(ref.uri, reader.size, reader.version, 0, 0)
                options = spool.members if spool else MemberOptions()
                if kind == "tar":
                    members = list_tar(reader, ref.uri)
                else:
                    members = list_zip(reader, ref.uri, options.zip_encoding or ZIP_ENCODING)
                yield from expand_members(ref, reader, file, members, options)
                return
            if kind and spool:
                yield from spool(ref, reader, kind)
                return
    except FileNotFoundError as error:
        raise unreadable_archive(path=ref.uri, why="it was deleted") from error
    name = ref.uri.lower()
    base, suffix = os.path.splitext(name)
    inner = base if suffix in _COMPRESSED else name
    if inner.endswith(ARCHIVE_SUFFIXES):
        why = "its content is not that of such an archive"
        raise damaged_archive(path=ref.uri, why=why)
    if is_other(ref.key):
        yield count_skipped(escape_name(ref.key))
    else:
        yield ref


def expand_members(
    ref: InputRef,
    reader: RandomReader,
    file: MemberRange,
    members: Iterable[ArchiveMember],
    options: MemberOptions,
) -> Members:
    """Yield the references of members, with the labels that other members of their samples have.

    As in WebDataset, the name of a sample ends at the first dot of the name of a file; a label may
    also be that of one file, as in ``a.b.cls`` for ``a.b.jpg``. Members may have any order.

    Args:
        ref: The archive.
        reader: The open file that holds the members: the archive or its spool.
        file: The path, size and version of that file.
        members: The members.
        options: What is read of them.

    Raises:
        InputError: A sample has several images.
    """
    text = f"{file.file_size} {file.file_version} {ref.ctime}"
    changed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
    labels = _SampleLabels(options)
    if options.image_suffix:
        yield MatchCounts(used_options=("image_suffix",))
    with _HeldMembers() as held:
        for member in members:
            name = _inner_path(member.name)
            path = "/".join(filter(None, (ref.key, name)))
            if any(is_junk(part) for part in name.split("/") if part != ".."):
                yield count_skipped(escape_name(path))
            elif labels.has(name):
                where = _place(file, member)
                yield labels.add(name, _read_label(reader, where, member, options.label))
            elif is_other(name):
                yield count_skipped(escape_name(path))
            elif options.image_suffix and _divide(name)[1].lower() not in options.image_suffix:
                kind = unchosen_kind(options.image_suffix)
                yield MatchCounts(1, kinds=((kind, 1, escape_name(path)),))
            else:
                held.add(member)
                if member.guessed:
                    yield _count_guessed(path, options)
        for member in held:
            made = _reference(ref, member, _place(file, member))
            label = labels.find(make_key(_inner_path(member.name)), ref.uri)
            if label is not None:
                made = made._replace(label=label.text, message=made.message or label.problem)
            yield made._replace(ctime=changed)


def _count_guessed(path: str, options: MemberOptions) -> MatchCounts:
    """Return the counts of a name in a zip archive whose encoding the archive does not say."""
    if options.zip_encoding:
        return MatchCounts(used_options=("zip_encoding",))
    example = path if is_utf8(path) else escape_name(path)
    return MatchCounts(guessed=((ZIP_ENCODING, 1, example),))


class _Label(NamedTuple):
    """The label in a member.

    Attributes:
        text: It, or empty.
        problem: Why it cannot be used.
    """

    text: str
    problem: str = ""


class _SampleLabels:
    """The labels of the samples of an archive, and which of them have an image."""

    def __init__(self, options: MemberOptions) -> None:
        self._options = options
        self._suffix = ".json" if options.label else ".cls"
        self._labels: dict[str, _Label] = {}  # by the path of the member, without its suffix
        self._images: dict[str, str] = {}  # by sample
        self._with_json: set[str] = set()  # samples

    def has(self, name: str) -> bool:
        """Return whether a member is one for labels, and note the sample of a ``.json``."""
        suffix = os.path.splitext(name)[1].lower()
        if suffix == ".json":
            self._with_json.add(_divide(make_key(name))[0])
        return suffix in (".cls", self._suffix)

    def add(self, name: str, label: _Label) -> MatchCounts:
        """Add the label of a member; without an effect if others have the labels."""
        stem, suffix = os.path.splitext(make_key(name))
        is_label = suffix.lower() == self._suffix
        if is_label:
            self._labels[stem] = label
        return MatchCounts(skipped=1, has_labels=is_label)

    def find(self, name: str, path: str) -> _Label | None:
        """Return the label of an image, or None to use the label of its path.

        Args:
            name: Its name in the archive.
            path: The archive, for messages.

        Raises:
            InputError: Its sample has another image.
        """
        options = self._options
        stem, suffix = os.path.splitext(name)
        sample, _ = _divide(name)
        if not self._labels and not options.label:
            # Other .json members may describe all images of a folder; none is named like archives.
            has_data = sample in self._with_json or (self._with_json and "/" not in name)
            if has_data and not options.by_path:
                return _Label("", _UNCHOSEN)
            return None
        if stem != sample and stem in self._labels:
            return self._labels[stem]
        label = self._labels.get(sample)
        if label is not None and suffix.lower() in IMAGE_SUFFIXES and not options.image_suffix:
            other = self._images.setdefault(sample, name)
            if other != name:
                raise InputError(
                    f"{path} has several images of the sample {sample!r}, {other!r} and {name!r}: "
                    f"name what follows the first dot, as in --image_suffix={_divide(other)[1]}."
                )
        without = f"it has no .json for --label_column={options.label}" if options.label else ""
        return label or _Label("", without)


class _HeldMembers:
    """Keeps members on the disk if they are many, until it is known which labels they have."""

    def __init__(self) -> None:
        self._lines = tempfile.SpooledTemporaryFile(_HELD_BYTES)  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def add(self, member: ArchiveMember) -> None:
        """Keep a member."""
        self._lines.write(json.dumps(member).encode() + b"\n")

    def __iter__(self) -> Iterator[ArchiveMember]:
        self._lines.seek(0)
        for line in self._lines:
            yield ArchiveMember(*json.loads(line))


def _inner_path(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _divide(name: str) -> tuple[str, str]:
    """Return the name of a sample and what follows the first dot, as WebDataset does."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return f"{folder}{slash}{stem}", extension


def _place(file: MemberRange, member: ArchiveMember) -> MemberRange:
    return file._replace(offset=member.offset, length=member.length, crc32=member.crc32)


def _read_label(
    reader: RandomReader, where: MemberRange, member: ArchiveMember, column: str
) -> _Label:
    name = _inner_path(member.name)
    source = f"the member {escape_name(name)!r}"
    if member.error:
        return _Label("", f"{source} with its label is {member.error}")
    if member.size > _MAX_LABEL_BYTES:
        return _Label("", f"{source} has {member.size:,} bytes, too many for a label")
    try:
        text = decode_text(read_range(reader, where, member.size))
        if not column or not name.lower().endswith(".json"):
            return _Label(read_label(make_key(text.strip())))
        record = json.loads(text)
        if not isinstance(record, dict):
            return _Label("", f"{source} is not a JSON object")
        if column not in record:
            names = format_names([*record]) if record else "{}"
            return _Label("", f"{source} has no --label_column={column}, only {names}")
        source = f"{column!r} in {source}"
        return _Label(read_label(record[column]).strip())
    except RejectedError as error:
        return _Label("", f"{source}: {error.message}")
    except TextError as error:
        return _Label("", f"{source} is {error}")
    except LabelError as error:
        return _Label("", f"{source} {error}")
    except (ValueError, RecursionError):  # or a nesting that is too deep
        return _Label("", f"{source} is not JSON")


def _reference(ref: InputRef, member: ArchiveMember, where: MemberRange) -> InputRef:
    """Return the reference of a member."""
    name = _inner_path(member.name)
    path = "/".join(filter(None, (ref.key, name)))
    made = InputRef(make_key(path), f"{ref.uri}/{name}", member.size, member.version)
    made = made._replace(member=tuple(where))
    if not is_utf8(name):
        key, uri = map(escape_name, (path, made.uri))
        made = made._replace(key=key, uri=uri)
        return made.rejected("bad_name", "the name is not valid UTF-8")
    if member.name.startswith("/") or ".." in name.split("/") or "\0" in name:
        return made.rejected("member", "its name leads outside of the archive")
    if member.error:
        return made.rejected("member", f"it is {member.error}")
    return made
