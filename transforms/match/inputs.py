"""Find the inputs that ``--input`` names: a folder, a glob, a listing or a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.storage import absolute, join, open_storage
from shardmill.transforms.match.counts import (
    Linked,
    MatchCounts,
    count_unused,
    keep_first,
    sum_counts,
)
from shardmill.transforms.match.listing import find_sizes, merge_entries, parse_listing, parse_paths
from shardmill.transforms.match.next_steps import next_step
from shardmill.transforms.match.walk import (
    Found,
    PathFilter,
    WalkTask,
    Wanted,
    first_level,
    glob_folders,
    glob_regex,
    glob_root,
    is_other,
    make_key,
    may_list,
    walk,
)

PathKind = Literal["directory", "glob", "listing", "file"]
_MAX_LISTING_BYTES = 2 << 30
# Suffixes of files that list inputs, one path per line or as a CSV; a table's CSV is an input.
_LISTS: dict[Wanted, tuple[str, ...]] = {
    "images": (".csv",),
    "records": (".csv", ".txt"),
    "rows": (".txt",),
    "any": (),
}


@dataclass(frozen=True)
class MatchSpec:
    """An input and what to match in it; made by ``find_input``.

    Attributes:
        kind: Kind of the input.
        input: The input as an absolute path or URI.
        root: Folder that keys are relative to.
        follow_links: Whether symlinks may lead outside the root.
        wanted: Kind of files to match in folders and globs.
    """

    kind: PathKind
    input: str
    root: str
    follow_links: bool = False
    wanted: Wanted = "images"

    @property
    def top(self) -> str:
        """Folder in which the walk of a folder or glob starts."""
        return self.input if self.kind == "directory" else glob_root(self.input)


def find_input(
    pattern: str, root: str = "", *, listing: bool = False, follow_links: bool = False,
    wanted: Wanted = "images",
) -> MatchSpec:  # fmt: skip
    """Return the input that an ``--input`` value names.

    An existing path is a folder or file, even if its name has glob characters; else a pattern
    with such characters is a glob.

    Args:
        pattern: The value.
        root: Folder that keys are relative to; by default the longest literal folder of the input.
        listing: Whether a file is a listing; files named ``.csv`` always are.
        follow_links: See ``MatchSpec``.
        wanted: See ``MatchSpec``; with ``records``, a ``.txt`` is a list too, one path per line.

    Raises:
        InputError: The input does not exist.
        UsageError: The input is not inside the root.
    """
    if not pattern:
        raise UsageError("input-empty")
    path = absolute(pattern)
    entry = open_storage(path).stat(path)
    kind: PathKind
    if entry is not None and entry.kind == "dir":
        kind, literal = "directory", path
    elif entry is not None:
        is_listing = listing or path.lower().endswith(_LISTS[wanted])
        kind, literal = ("listing" if is_listing else "file"), path.rsplit("/", 1)[0] or "/"
    elif re.search(r"[*?\[]", path.split("://", 1)[-1]):
        kind, literal = "glob", glob_root(path)
        folder = open_storage(path).stat(literal)
        if folder is None or folder.kind != "dir":
            raise InputError("input-glob-folder-missing", pattern=pattern, literal=literal)
    else:
        raise InputError("input-missing", pattern=pattern)
    if kind == "file" and wanted == "images" and is_other(path):
        step = next_step(path, "images", "give an image, a folder, or a listing (.csv)")
        raise InputError("input-not-image", pattern=pattern, step=step)
    if kind in ("directory", "glob") and not may_list(literal):
        raise InputError("input-folder-denied", pattern=pattern, literal=literal)
    top = absolute(root) if root else literal
    if kind != "listing" and literal != top and not literal.startswith(top.rstrip("/") + "/"):
        raise UsageError("input-outside-root", pattern=pattern, root=root)
    return MatchSpec(kind, path, top, follow_links, wanted)


def walk_input(spec: MatchSpec, task: WalkTask) -> Iterator[Found]:
    """Yield what one piece of a folder or glob holds, with keys relative to the root."""
    prefix, wanted = spec.top[len(spec.root) :].strip("/"), spec.wanted
    options: dict[str, PathFilter] = {}
    if spec.kind == "glob":
        file, folder = glob_regex(spec.input), glob_folders(spec.input)
        options["matches"] = PathFilter(
            lambda path: file.fullmatch(join(spec.top, path)) is not None,
            lambda path: folder.fullmatch(join(spec.top, path)) is not None,
        )
        # A pattern for tables means all files that it matches, with any suffix.
        wanted = "any" if wanted == "rows" else wanted
    for each in walk(
        spec.top, task, follow_links=spec.follow_links, wanted=wanted,
        **options,
    ):  # fmt: skip
        yield _with_prefix(each, prefix) if prefix else each


def _with_prefix(found: Found, prefix: str) -> Found:
    if isinstance(found, MatchCounts):
        return found
    if isinstance(found, Linked):
        return found._replace(ref=found.ref._replace(key=f"{prefix}/{found.ref.key}"))
    return found._replace(key=f"{prefix}/{found.key}")


def find_single(spec: MatchSpec) -> InputRef:
    """Return the reference of an input that is one file."""
    key = make_key(spec.input[len(spec.root.rstrip("/")) + 1 :])
    return find_sizes(InputRef(key, spec.input), spec.root, follow_links=True)


def match_now(spec: MatchSpec) -> tuple[list[InputRef], MatchCounts]:
    """Match an input in this process.

    Returns:
        All references sorted by key, and the counts of what gives none.

    Raises:
        ShardmillError: A listing is broken, or a folder cannot be listed.
    """
    found: list[Found]
    if spec.kind == "file":
        found = [find_single(spec)]
    elif spec.kind == "listing":
        listed: dict[str, list[InputRef]] = {}
        for ref in read_listing(spec, labelled=False, split=False):
            listed.setdefault(ref.key, []).append(ref)
        merged = (each for key, refs in listed.items() for each in merge_entries(key, refs))
        found = [find_listed(each, spec) if isinstance(each, InputRef) else each for each in merged]
    else:
        walked = [each for task in first_level(spec.top) for each in walk_input(spec, task)]
        linked: dict[str, list[InputRef]] = {}
        for each in walked:
            if isinstance(each, Linked):
                linked.setdefault(each.path, []).append(each.ref)
        found = [each for each in walked if not isinstance(each, Linked)]
        found += (each for refs in linked.values() for each in keep_first(sorted(refs)))
    unused = (each for each in found if not isinstance(each, InputRef | Linked))
    counts = sum_counts(map(count_unused, unused))
    return sorted(each for each in found if isinstance(each, InputRef)), counts


def find_listed(ref: InputRef, spec: MatchSpec) -> InputRef:
    """Return a reference of a listing with its size and version."""
    return ref if ref.error else find_sizes(ref, spec.root, follow_links=spec.follow_links)


def read_listing(spec: MatchSpec, *, labelled: bool, split: bool) -> Iterator[InputRef]:
    """Yield the references of a listing, without sizes.

    Raises:
        ShardmillError: The listing is broken or too large.
    """
    data = open_storage(spec.input).read(spec.input)
    if len(data) > _MAX_LISTING_BYTES:
        raise InputError("listing-too-large", input=spec.input)
    if spec.input.lower().endswith(".txt"):
        yield from parse_paths(data, spec.input, spec.root)
        return
    yield from parse_listing(data, spec.input, spec.root, labelled=labelled, split=split)
