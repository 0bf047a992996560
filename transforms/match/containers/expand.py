"""Expand archives into references to their members."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeAlias

from typing_extensions import Self

from shardmill.schemas.dataset.foreign_names import IMAGE_SUFFIXES
from shardmill.schemas.decompress import DecompressionError, decompress
from shardmill.schemas.errors import InputError, format_names
from shardmill.schemas.file_signatures import compression_format
from shardmill.schemas.refs import InputRef, MatchCounts, MemberRange, RejectedError, count_skipped
from shardmill.schemas.storage import RandomReader, open_storage
from shardmill.schemas.text_file import TextError, decode_text
from shardmill.schemas.tfrecord.framing import starts_record
from shardmill.schemas.tfrecord.open_file import ZLIB_REMEDY, has_zlib_records
from shardmill.transforms.match.containers.members import (
    ZIP_ENCODING,
    ArchiveMember,
    damaged_archive,
    list_tar,
    list_zip,
    unreadable_archive,
)
from shardmill.transforms.match.labels import LabelError, read_label
from shardmill.transforms.match.read_input import read_range
from shardmill.transforms.match.walk import escape_name, is_junk, is_other, is_utf8, make_key

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
        return "packed" if kind == "tar" else ""
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
    return "tfrecord" if starts_record(head) else ""


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
            elif not _is_chosen(name, options.image_suffix):
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
            return _Label("", _UNCHOSEN) if has_data and not options.by_path else None
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


def _is_chosen(name: str, suffixes: Collection[str]) -> bool:
    return not suffixes or _divide(name)[1].lower() in suffixes


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
