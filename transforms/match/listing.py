"""Listings: a CSV file with the path, label, split and group of each input."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator

from shardmill.schemas.errors import InputError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.storage import join, open_storage, scheme_of
from shardmill.transforms.match.counts import MatchCounts, keep_first
from shardmill.transforms.match.walk import OUTSIDE_ROOT, leads_outside, make_key

_MAX_HEADER = 64 << 10  # bytes
_REMEDY = (
    "a listing is a CSV with a header and the columns uri or path, label, and perhaps split, "
    "group; for a table use `shardmill rows`"
)


def parse_listing(
    data: bytes, source: str, root: str, *, labelled: bool, split: bool
) -> Iterator[InputRef]:
    """Yield a reference for each row of a listing; without sizes.

    Args:
        data: Bytes of the listing: UTF-8, with or without a byte-order mark.
        source: Name of the listing, for messages.
        root: Folder that entries are relative to and must not leave.
        labelled: Whether the column ``label`` is needed.
        split: Whether the column ``split`` is needed.

    Raises:
        InputError: The CSV is malformed, or an entry has another scheme or leads outside the root.
    """
    _decode(data, source, _REMEDY)
    # Decoded line by line: the whole text would need five times the memory of the bytes.
    lines = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline="")
    reader = csv.DictReader(lines, strict=True)
    try:
        columns = [name.strip() for name in reader.fieldnames or []]
        reader.fieldnames = columns
        where = next((name for name in ("uri", "path") if name in columns), None)
        if where is None:
            raise InputError("listing-without-uri", source=source, columns=columns)
        for name, needed in (("label", labelled), ("split", split)):
            if needed and name not in columns:
                raise InputError(
                    "listing-column-missing", source=source, name=name, columns=columns
                )
        for row in reader:
            entry = (row[where] or "").strip()
            if not entry:
                raise InputError(
                    "listing-cell-empty", source=source, line=reader.line_num, where=where
                )
            key = _key(entry, root, f"{source}, line {reader.line_num}")
            yield InputRef(
                key=make_key(key),
                uri=join(root, key),
                label=make_key((row.get("label") or "").strip()) or None,
                split=(row.get("split") or "").strip(),
                group=(row.get("group") or "").strip(),
            )
    except csv.Error as error:
        raise InputError(
            "listing-malformed", source=source, line=reader.line_num, error=error
        ) from error


def warn_of_unused(source: str, *, labelled: bool, split: bool) -> Iterator[str]:
    """Yield a warning for each column ``label`` or ``split`` of a listing that is not used.

    Args:
        source: Path of the listing.
        labelled: Whether the column ``label`` is used.
        split: Whether the column ``split`` is used.
    """
    with open_storage(source).open_at(source) as reader:
        head = reader.read_at(0, _MAX_HEADER).decode("utf-8-sig", "replace")
    lines = head.replace("\0", "").splitlines()[:1]
    columns = {name.strip() for row in csv.reader(lines) for name in row}
    for name, flag, used in (("label", "label_from", labelled), ("split", "splits", split)):
        if name in columns and not used:
            yield f"the column {name!r} of the listing is not used: --{flag}=listing uses it"


def parse_paths(data: bytes, source: str, root: str) -> Iterator[InputRef]:
    """Yield a reference for each line of a list of paths, except empty and ``#`` lines.

    Raises:
        InputError: It is not UTF-8, or an entry has another scheme or leads outside the root.
    """
    lines = _decode(data, source, "a list has one path per line").splitlines()
    for number, line in enumerate(lines, 1):
        entry = line.strip()
        if entry and not entry.startswith("#"):
            key = _key(entry, root, f"{source}, line {number}")
            yield InputRef(key=make_key(key), uri=join(root, key))


def _decode(data: bytes, source: str, remedy: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            "listing-not-utf8", source=source, reason=error.reason, byte=error.start, remedy=remedy
        ) from error


def _key(entry: str, root: str, where: str) -> str:
    """Return the path of an entry, relative to the root.

    Raises:
        InputError: The entry is outside the root.
    """
    if scheme_of(entry) != scheme_of(root) and (scheme_of(entry) or entry.startswith("/")):
        raise InputError("listing-entry-other-root", where=where, entry=entry, root=root)
    absolute = scheme_of(entry) or entry.startswith("/")
    path = entry if absolute else join(root, entry)
    prefix = root.rstrip("/") + "/"
    leaves = ".." in path[len(prefix) :].split("/") or "\0" in path
    if not scheme_of(path):
        path = os.path.normpath(path)
    if leaves or not path.startswith(prefix):
        raise InputError("listing-entry-outside-root", where=where, entry=entry, root=root)
    return path[len(prefix) :]


def find_sizes(ref: InputRef, root: str, *, follow_links: bool) -> InputRef:
    """Return a listed reference with its size and version, or rejected if it cannot be read."""
    try:
        entry = open_storage(ref.uri).stat(ref.uri)
    except OSError as error:
        return ref.rejected("not_found", str(error))
    if entry is None:
        return ref.rejected("not_found", "the file does not exist")
    if not scheme_of(ref.uri) and not follow_links and leads_outside(ref.uri, root):
        return ref.rejected(*OUTSIDE_ROOT)
    if entry.kind != "file":
        return ref.rejected("not_a_file", "a folder, pipe, socket or device")
    return ref._replace(size=entry.size, version=entry.version, ctime=entry.ctime)


def merge_entries(key: str, refs: Iterable[InputRef]) -> Iterator[InputRef | MatchCounts]:
    """Yield one reference of a key that is listed once or more, and a count for each other.

    Raises:
        InputError: Two entries of the key disagree.
    """
    first, *others = ordered = sorted(refs, key=lambda ref: (ref.label or "", ref))
    for other in others:
        for field in ("label", "split", "group"):
            mine, theirs = getattr(first, field), getattr(other, field)
            if mine != theirs:
                raise InputError(
                    "listing-entry-twice", key=key, field=field, mine=mine, theirs=theirs
                )
    yield from keep_first(ordered)
