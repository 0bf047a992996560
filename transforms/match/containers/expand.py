"""Expand archives into references to their members."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from contextlib import suppress

from shardmill.schemas.errors import InputError
from shardmill.schemas.refs import InputRef, MemberRange
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.storage import RandomReader, open_storage
from shardmill.transforms.match.containers.member_reader import read_range
from shardmill.transforms.match.containers.tar_members import ArchiveMember, list_tar
from shardmill.transforms.match.containers.zip_members import list_zip
from shardmill.transforms.match.counts import MatchCounts, count_skipped
from shardmill.transforms.match.walk import escape_name, is_junk, is_other, is_utf8, make_key

_HEAD_BYTES = 512
_LISTERS = {"tar": list_tar, "zip": list_zip}
_MAX_LABEL_BYTES = 4 << 10


def archive_kind(reader: RandomReader) -> str:
    """Return the kind of an archive by its content, or an empty text for another file."""
    head = reader.read_at(0, _HEAD_BYTES)
    if head[257:262] == b"ustar":  # IEEE Std 1003.1, pax: magic
        return "tar"
    return "zip" if head.startswith((b"PK\x03\x04", b"PK\x05\x06")) else ""


def is_archive(uri: str) -> bool:
    """Return whether a file is an archive; False for one that cannot be read."""
    with suppress(OSError), open_storage(uri).open_at(uri) as reader:
        return bool(archive_kind(reader))
    return False


def expand(ref: InputRef) -> Iterator[InputRef | MatchCounts]:
    """Yield the members of an archive; another file as it is, or skipped by its name.

    Args:
        ref: A file of any kind.

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
            if kind:
                yield from _expand_members(ref, reader, _LISTERS[kind](reader, ref.uri))
                return
    except FileNotFoundError as error:
        raise InputError("archive-rejected", path=ref.uri, why="it was deleted") from error
    yield count_skipped(escape_name(ref.key)) if is_other(ref.key) else ref


def _expand_members(
    ref: InputRef, reader: RandomReader, members: Iterator[ArchiveMember]
) -> Iterator[InputRef | MatchCounts]:
    """Yield the references of members; ``NAME.cls`` has the label of its neighbor ``NAME.jpg``."""
    labelled = False
    text = f"{reader.size} {reader.version} {ref.ctime}"
    changed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
    for _, group in itertools.groupby(members, lambda member: os.path.splitext(member.name)[0]):
        # Without a label where others have one, a member gets none of its folder or archive.
        label = "" if labelled else None
        found = []
        for member in group:
            where = MemberRange(
                ref.uri, reader.size, reader.version, member.offset, member.length, member.crc32
            )
            if member.name.endswith(".cls") and not member.error:
                labelled, label = True, _read_label(reader, where, member.size)
                yield MatchCounts(skipped=1)
            else:
                found.append((member, where))
        for member, where in found:
            made = _reference(ref, member, where)
            if isinstance(made, InputRef):
                made = made._replace(label=label, ctime=changed)
            yield made


def _read_label(reader: RandomReader, where: MemberRange, size: int) -> str:
    try:
        data = read_range(reader, where, size) if size <= _MAX_LABEL_BYTES else b""
        return make_key(data.decode().strip())
    except (RejectedError, UnicodeDecodeError):
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
