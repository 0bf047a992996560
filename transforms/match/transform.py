"""MatchFiles: an input (folder, glob, listing or one file) becomes refs, in the pipeline."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import apache_beam as beam

import shardmill.transforms.build.coders  # noqa: F401 - registers the coders
from shardmill.schemas.errors import InputError, ShardmillError, UsageError
from shardmill.schemas.refs import Ref
from shardmill.schemas.storage import join, open_storage, scheme_of
from shardmill.transforms.match.labels import LabelSpec
from shardmill.transforms.match.listing import find_sizes, merge_entries, parse_listing, parse_paths
from shardmill.transforms.match.walk import (
    FATAL,
    WalkTask,
    Wanted,
    first_level,
    glob_regex,
    glob_root,
    make_key,
    walk,
)

InputKind = Literal["directory", "glob", "listing", "file"]
_MAX_LISTING_BYTES = 2 << 30
# Suffixes of files that list inputs, one path a line or as a CSV; among rows a CSV is an input.
_LISTS: dict[Wanted, tuple[str, ...]] = {
    "images": (".csv",),
    "records": (".csv", ".txt"),
    "rows": (".txt",),
    "any": (),
}


@dataclass(frozen=True)
class MatchSpec:
    """Where inputs are found; made by ``find_input``.

    Attributes:
        kind: What the input is.
        input: The input as given, absolute.
        root: Folder that keys are relative to.
        follow_links: Whether symlinks may lead outside the root.
        exclude: A folder not to enter: the output, when it lies inside the input.
        wanted: What is looked for in folders and globs.
    """

    kind: InputKind
    input: str
    root: str
    follow_links: bool = False
    exclude: str = ""
    wanted: Wanted = "images"


def absolute(path: str) -> str:
    """Returns a path that means the same in any process; URIs stay as they are."""
    if scheme_of(path):
        return path.rstrip("/") if scheme_of(path.rstrip("/")) else path
    return os.path.abspath(os.path.expanduser(path))


def find_input(
    pattern: str, root: str = "", *, listing: bool = False, follow_links: bool = False,
    exclude: str = "", wanted: Wanted = "images",
) -> MatchSpec:  # fmt: skip
    """Returns what an ``--input`` value means.

    A path that exists is what it is, even if its name has glob characters; else a pattern with
    such characters is a glob.

    Args:
        pattern: The value.
        root: Folder that keys are relative to; by default the longest literal folder of the input.
        listing: Whether a file is a listing; files called ``.csv`` always are.
        follow_links: See ``MatchSpec``.
        exclude: See ``MatchSpec``.
        wanted: See ``MatchSpec``; among records a ``.txt`` is a list too, one path a line.

    Raises:
        InputError: Nothing is there.
        UsageError: The input does not lie under the root.
    """
    if not pattern:
        raise UsageError("--input is empty: give a folder, a glob, a listing (.csv) or a file.")
    path = absolute(pattern)
    entry = open_storage(path).stat(path)
    kind: InputKind
    if entry is not None and entry.kind == "dir":
        kind, literal = "directory", path
    elif entry is not None:
        is_listing = listing or path.lower().endswith(_LISTS[wanted])
        kind, literal = ("listing" if is_listing else "file"), path.rsplit("/", 1)[0] or "/"
    elif re.search(r"[*?\[]", path.split("://", 1)[-1]):
        kind, literal = "glob", glob_root(path)[0]
        folder = open_storage(path).stat(literal)
        if folder is None or folder.kind != "dir":
            raise InputError(f"--input={pattern} matched no files: there is no folder {literal}.")
    else:
        raise InputError(
            f"--input={pattern} does not exist: give a folder, a glob, a listing or a file."
        )
    top = absolute(root) if root else literal
    if kind != "listing" and literal != top and not literal.startswith(top.rstrip("/") + "/"):
        raise UsageError(
            f"--input={pattern} does not lie under --root={root}: choose a root above it."
        )
    return MatchSpec(kind, path, top, follow_links, absolute(exclude) if exclude else "", wanted)


def walk_input(spec: MatchSpec, task: WalkTask) -> Iterator[Ref]:
    """Yields the refs of one piece of a folder or glob, their keys relative to the root."""
    top = spec.input if spec.kind == "directory" else glob_root(spec.input)[0]
    prefix = top[len(spec.root) :].strip("/")
    regex = glob_regex(spec.input) if spec.kind == "glob" else None
    # Whoever writes a pattern for tables means what it matches, whatever its suffix.
    wanted = "any" if spec.kind == "glob" and spec.wanted == "rows" else spec.wanted
    found = walk(top, task, follow_links=spec.follow_links, exclude=spec.exclude, wanted=wanted)
    for ref in found:
        if regex is not None and not regex.fullmatch(
            join(top, ref.key) if not ref.uri else ref.uri
        ):
            continue
        yield ref._replace(key=f"{prefix}/{ref.key}") if prefix else ref


def _single(spec: MatchSpec) -> Ref:
    key = make_key(spec.input[len(spec.root.rstrip("/")) + 1 :])
    return find_sizes(Ref(key, spec.input), spec.root, follow_links=True)


def match_now(spec: MatchSpec) -> list[Ref]:
    """Returns all refs of an input, matched in this process, sorted by key.

    Raises:
        ShardmillError: A listing is broken.
    """
    if spec.kind == "file":
        return [_single(spec)]
    if spec.kind != "listing":
        top = spec.input if spec.kind == "directory" else glob_root(spec.input)[0]
        return sorted(ref for task in first_level(top) for ref in walk_input(spec, task))
    listed: dict[str, list[Ref]] = {}
    for ref in _read_listing(spec, labelled=False, split=False):
        if ref.error == FATAL:
            raise InputError(ref.message)
        listed.setdefault(ref.key, []).append(ref)
    refs = [ref for key, same in sorted(listed.items()) for ref in merge_entries(key, same)]
    return [
        ref if ref.error else find_sizes(ref, spec.root, follow_links=spec.follow_links)
        for ref in refs
    ]


@dataclass(eq=False)
class MatchFiles(beam.PTransform):
    """Matches inputs in the pipeline: ``pipeline | MatchFiles(find_input("photos"))``.

    Gives ``Ref`` elements. What cannot be read is a ref with ``error`` set; skipped junk and
    duplicates are refs marked as such, so that everything matched is accounted for.

    Args:
        spec: Where inputs are found.
        labels: Where their labels come from.
        listed_splits: Whether a listing must have a column ``split``.
    """

    spec: MatchSpec
    labels: LabelSpec = field(default_factory=lambda: LabelSpec("none"))
    listed_splits: bool = False

    def expand(self, root: beam.Pipeline | beam.pvalue.PBegin) -> beam.PCollection[Ref]:
        """Wires the walk of a folder or glob, or the reading of a listing."""
        start = root | "Start" >> beam.Create([0])
        spec = self.spec
        if spec.kind == "file":
            refs = start | "File" >> beam.Map(lambda _: _single(spec)).with_output_types(Ref)
        elif spec.kind == "listing":
            refs = self._listed(start)
        else:
            top = spec.input if spec.kind == "directory" else glob_root(spec.input)[0]
            refs = (
                start
                | "FirstLevel" >> beam.FlatMap(lambda _: map(tuple, first_level(top)))
                | "FanOut" >> beam.Reshuffle()
                | "Walk"
                >> beam.FlatMap(lambda task: walk_input(spec, WalkTask(*task))).with_output_types(
                    Ref
                )
            )
        return refs | "Label" >> beam.Map(self.labels.with_label).with_output_types(Ref)

    def _listed(self, start: beam.PCollection[int]) -> beam.PCollection[Ref]:
        spec, labelled, split = self.spec, self.labels.label_from == "listing", self.listed_splits
        return (
            start
            | "ReadListing"
            >> beam.FlatMap(
                lambda _: _read_listing(spec, labelled=labelled, split=split)
            ).with_output_types(Ref)
            | "ByKey" >> beam.Map(lambda ref: (ref.key, ref)).with_output_types(tuple[str, Ref])
            | "SameKey" >> beam.GroupByKey()
            | "MergeEntries" >> beam.FlatMapTuple(_merged).with_output_types(Ref)
            | "FindSizes"
            >> beam.Map(
                lambda ref: (
                    ref if ref.error else find_sizes(ref, spec.root, follow_links=spec.follow_links)
                )
            ).with_output_types(Ref)
        )


def _read_listing(spec: MatchSpec, *, labelled: bool, split: bool) -> Iterator[Ref]:
    """Yields listed refs; a broken listing becomes one fatal ref, which no retry would mend."""
    try:
        data = open_storage(spec.input).read(spec.input)
        if len(data) > _MAX_LISTING_BYTES:
            raise InputError(f"{spec.input} is over 2 GiB: cut the listing into several.")
        if spec.input.lower().endswith(".txt"):
            yield from parse_paths(data, spec.input, spec.root)
            return
        yield from parse_listing(data, spec.input, spec.root, labelled=labelled, split=split)
    except ShardmillError as error:
        yield Ref("", spec.input, error=FATAL, message=str(error))


def _merged(key: str, refs: Iterable[Ref]) -> Iterator[Ref]:
    try:
        yield from merge_entries(key, refs)
    except InputError as error:
        yield Ref(key, "", error=FATAL, message=str(error))
