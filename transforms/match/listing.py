"""Listings: files with the path, label, split and group of each input."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from shardmill.schemas.errors import InputError
from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.refs import InputRef
from shardmill.schemas.storage import join, open_storage, scheme_of
from shardmill.transforms.match.counts import MatchCounts, keep_first
from shardmill.transforms.match.walk import OUTSIDE_ROOT, leads_outside, make_key


def parse_paths(data: bytes, source: str, root: str) -> Iterator[InputRef]:
    """Yield a reference for each line of a list of paths, except empty and ``#`` lines.

    Raises:
        InputError: It is not UTF-8, or an entry has another scheme or leads outside the root.
    """
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError("listing-encoding", source=source) from error
    for number, line in enumerate(lines, 1):
        entry = line.strip()
        if entry and not entry.startswith("#"):
            yield InputRef(*key_of_entry(entry, root, f"{source}, line {number}"))


def key_of_entry(entry: str, root: str, where: str) -> tuple[str, str]:
    """Return the key and the URI of an entry of a listing.

    Args:
        entry: A path, relative to the root or absolute, or a URI.
        root: Folder that the entry must not leave.
        where: Place of the entry, for messages.

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
    relative = path[len(prefix) :]
    return make_key(relative), join(root, relative)


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
    mine = _values(first)
    for theirs in map(_values, others):
        for field in {**mine, **theirs}:
            one, two = mine.get(field), theirs.get(field)
            if one != two:
                raise InputError("listing-entry-twice", key=key, field=field, mine=one, theirs=two)
    yield from keep_first(ordered)


def _values(ref: InputRef) -> dict[str, Any]:
    """Return what a listing says of an input, apart from its path."""
    attached = parse_example(ref.attached).items() if ref.attached else ()
    columns = {name.removeprefix("listing/"): [*each.values] for name, each in attached}
    return {"label": ref.label, "split": ref.split, "group": ref.group, **columns}
