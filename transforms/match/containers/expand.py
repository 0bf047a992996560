"""Expand archives into references to their members."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Protocol, TypeAlias

from shardmill.schemas.decompress import DecompressionError, decompress
from shardmill.schemas.errors import InputError
from shardmill.schemas.file_signatures import compression_format
from shardmill.schemas.refs import InputRef, MatchCounts, MemberRange, RejectedError, count_skipped
from shardmill.schemas.storage import RandomReader, open_storage
from shardmill.schemas.tfrecord.framing import starts_record
from shardmill.transforms.match.containers.members import ArchiveMember, list_tar, list_zip
from shardmill.transforms.match.read_input import read_range
from shardmill.transforms.match.walk import escape_name, is_junk, is_other, is_utf8, make_key

_HEAD_BYTES = 512
_LISTERS = {"tar": list_tar, "zip": list_zip}
_MAX_LABEL_BYTES = 64 << 10  # of a member with a label
# By name. Their content decides whether they are archives, but a damaged one must not be skipped.
ARCHIVE_SUFFIXES = (".tar", ".zip", ".tgz", ".tbz2", ".txz", ".parquet", ".tfrecord", ".tfrec")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
Members: TypeAlias = Iterator[InputRef | MatchCounts]


class Spooler(Protocol):
    """Reads archives that have no random access."""

    @property
    def label(self) -> str | None:
        """Name of the labels, or empty: in ``.json`` members, and of columns and features."""

    def __call__(self, ref: InputRef, reader: RandomReader, kind: str) -> Members:
        """Yield the members of an archive: of its reference, the open file and its kind."""


def archive_kind(reader: RandomReader) -> str:
    """Return the kind of an archive by its content, or an empty text for another file.

    The members of ``tar`` and ``zip`` are read in place. The others are read in sequence:
    ``packed`` (a compressed tar archive), ``parquet`` and ``tfrecord``.
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
    if head[257:262] == b"ustar":  # IEEE Std 1003.1, pax: magic
        return "tar"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head.startswith(b"PAR1"):
        return "parquet"
    return "tfrecord" if starts_record(head) else ""


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
            raise InputError("archive-rejected", path=ref.uri, why=ref.message)
        yield ref
        return
    try:
        with open_storage(ref.uri).open_at(ref.uri) as reader:
            kind = archive_kind(reader)
            if kind in _LISTERS:
                file = MemberRange(ref.uri, reader.size, reader.version, 0, 0)
                members, label = _LISTERS[kind](reader, ref.uri), spool and spool.label
                yield from expand_members(ref, reader, file, members, label or "")
                return
            if kind and spool:
                yield from spool(ref, reader, kind)
                return
    except FileNotFoundError as error:
        raise InputError("archive-rejected", path=ref.uri, why="it was deleted") from error
    name = ref.uri.lower()
    base, suffix = os.path.splitext(name)
    if (base if suffix in _COMPRESSED else name).endswith(ARCHIVE_SUFFIXES):
        why = "its content is not that of such an archive"
        raise InputError("archive-damaged", path=ref.uri, why=why)
    yield count_skipped(escape_name(ref.key)) if is_other(ref.key) else ref


def expand_members(
    ref: InputRef, reader: RandomReader, file: MemberRange, members: Iterable[ArchiveMember],
    column: str = "",
) -> Members:  # fmt: skip
    """Yield the references of members; ``NAME.cls`` has the label of its neighbor ``NAME.jpg``.

    Args:
        ref: The archive.
        reader: The open file that holds the members: the archive or its spool.
        file: The path, size and version of that file.
        members: The members.
        column: If given, labels are the values of this name in ``NAME.json`` instead.
    """
    labelled, wanted = bool(column), ".json" if column else ".cls"
    text = f"{file.file_size} {file.file_version} {ref.ctime}"
    changed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
    for _, group in itertools.groupby(members, lambda member: os.path.splitext(member.name)[0]):
        # Without a label where others have one, a member gets none of its folder or archive.
        label = "" if labelled else None
        found = []
        for member in group:
            where = file._replace(offset=member.offset, length=member.length, crc32=member.crc32)
            suffix = os.path.splitext(member.name)[1]
            if suffix in (".cls", wanted) and not member.error:
                if suffix == wanted:
                    labelled, label = True, _read_label(reader, where, member.size, column)
                yield MatchCounts(skipped=1)
            else:
                found.append((member, where))
        for member, where in found:
            made = _reference(ref, member, where)
            if isinstance(made, InputRef):
                made = made._replace(label=label, ctime=changed)
            yield made


def _read_label(reader: RandomReader, where: MemberRange, size: int, column: str) -> str:
    try:
        text = (read_range(reader, where, size) if size <= _MAX_LABEL_BYTES else b"").decode()
        if column:
            value = json.loads(text)[column]
            text = str(value) if type(value) in (str, int) else ""
            text.encode()
        return make_key(text.strip())
    # No UTF-8, JSON, object, such name, or a nesting that is too deep.
    except (RejectedError, ValueError, TypeError, LookupError, RecursionError):
        return ""


def _reference(ref: InputRef, member: ArchiveMember, where: MemberRange) -> InputRef | MatchCounts:
    """Return the reference of a member, or that its name is not that of an image."""
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    name = "/".join(parts)
    path = "/".join(filter(None, (ref.key, name)))
    if is_other(name) or any(is_junk(part) for part in parts if part != ".."):
        return count_skipped(escape_name(path))
    made = InputRef(make_key(path), f"{ref.uri}/{name}", member.size, member.version)
    made = made._replace(member=tuple(where))
    if not is_utf8(name):
        key, uri = map(escape_name, (path, made.uri))
        made = made._replace(key=key, uri=uri)
        return made.rejected("bad_name", "the name is not valid UTF-8")
    if member.name.startswith("/") or ".." in parts or "\0" in name:
        return made.rejected("member", "its name leads outside of the archive")
    return made.rejected("member", f"it is {member.error}") if member.error else made
