"""MatchFiles: turns an input (folder, glob, listing or file) into references, in the pipeline."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

import shardmill.transforms.build.coders  # noqa: F401 - registers the coders
from shardmill.schemas.errors import InputError, ShardmillError, UsageError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.storage import absolute, join, open_storage, scheme_of
from shardmill.transforms.match.counts import (
    DUPLICATE,
    Linked,
    MatchCounts,
    count_unused,
    sum_counts,
)
from shardmill.transforms.match.labels import LabelSpec
from shardmill.transforms.match.listing import find_sizes, merge_entries, parse_listing, parse_paths
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
_REFS, _COUNTS, _LINKED = "refs", "counts", "linked"  # output tags
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
        exclude: A folder not to enter: the output, if it is inside the input.
        wanted: Kind of files to match in folders and globs.
    """

    kind: PathKind
    input: str
    root: str
    follow_links: bool = False
    exclude: str = ""
    wanted: Wanted = "images"

    @property
    def top(self) -> str:
        """Folder in which the walk of a folder or glob starts."""
        return self.input if self.kind == "directory" else glob_root(self.input)


def find_input(
    pattern: str, root: str = "", *, listing: bool = False, follow_links: bool = False,
    exclude: str = "", wanted: Wanted = "images",
) -> MatchSpec:  # fmt: skip
    """Return the input that an ``--input`` value names.

    An existing path is a folder or file, even if its name has glob characters; else a pattern
    with such characters is a glob.

    Args:
        pattern: The value.
        root: Folder that keys are relative to; by default the longest literal folder of the input.
        listing: Whether a file is a listing; files named ``.csv`` always are.
        follow_links: See ``MatchSpec``.
        exclude: See ``MatchSpec``.
        wanted: See ``MatchSpec``; with ``records``, a ``.txt`` is a list too, one path per line.

    Raises:
        InputError: The input does not exist.
        UsageError: The input is not inside the root.
    """
    if not pattern:
        raise UsageError("--input is empty: give a folder, a glob, a listing (.csv) or a file.")
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
            raise InputError(f"--input={pattern} matched no files: there is no folder {literal}.")
    else:
        raise InputError(
            f"--input={pattern} does not exist: give a folder, a glob, a listing or a file."
        )
    if kind == "file" and wanted == "images" and is_other(path):
        raise InputError(
            f"--input={pattern} is not named like an image: give an image, a folder, or a listing "
            "(.csv); unpack archives first."
        )
    if kind in ("directory", "glob") and not may_list(literal):
        raise InputError(
            f"--input={pattern}: the folder {literal} cannot be listed: give this user the "
            "permission to read it."
        )
    top = absolute(root) if root else literal
    if kind != "listing" and literal != top and not literal.startswith(top.rstrip("/") + "/"):
        raise UsageError(f"--input={pattern} is not inside --root={root}: choose a root above it.")
    return MatchSpec(kind, path, top, follow_links, absolute(exclude) if exclude else "", wanted)


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
        spec.top, task, follow_links=spec.follow_links, exclude=spec.exclude, wanted=wanted,
        **options,
    ):  # fmt: skip
        yield _with_prefix(each, prefix) if prefix else each


def _with_prefix(found: Found, prefix: str) -> Found:
    if isinstance(found, MatchCounts):
        return found
    if isinstance(found, Linked):
        return found._replace(ref=found.ref._replace(key=f"{prefix}/{found.ref.key}"))
    return found._replace(key=f"{prefix}/{found.key}")


def drop_repeated(refs: Iterable[InputRef]) -> Iterator[InputRef | MatchCounts]:
    """Yield the first of the references that links give to one file, and a count for each other."""
    first, *others = sorted(refs)
    yield first
    yield from [DUPLICATE] * len(others)


def _single(spec: MatchSpec) -> InputRef:
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
        found = [_single(spec)]
    elif spec.kind == "listing":
        listed: dict[str, list[InputRef]] = {}
        for ref in _read_listing(spec, labelled=False, split=False):
            listed.setdefault(ref.key, []).append(ref)
        merged = (each for key, refs in listed.items() for each in merge_entries(key, refs))
        found = [
            _find_listed(each, spec) if isinstance(each, InputRef) else each for each in merged
        ]
    else:
        walked = [each for task in first_level(spec.top) for each in walk_input(spec, task)]
        linked: dict[str, list[InputRef]] = {}
        for each in walked:
            if isinstance(each, Linked):
                linked.setdefault(each.path, []).append(each.ref)
        found = [each for each in walked if not isinstance(each, Linked)]
        found += (each for refs in linked.values() for each in drop_repeated(refs))
    unused = (each for each in found if not isinstance(each, InputRef | Linked))
    counts = sum_counts(map(count_unused, unused))
    return sorted(each for each in found if isinstance(each, InputRef)), counts


class MatchedInputs(NamedTuple):
    """The two outputs of ``MatchFiles``.

    Attributes:
        refs: An ``InputRef`` for each input; what cannot be read has ``error`` set.
        counts: One ``MatchCounts``: skipped files, duplicates, and what makes the input unusable.
    """

    refs: beam.PCollection[InputRef]
    counts: beam.PCollection[MatchCounts]

    @classmethod
    def of(cls, inputs: MatchedInputs | beam.PCollection[InputRef]) -> MatchedInputs:
        """Return the outputs of ``MatchFiles``, or those of references alone."""
        if isinstance(inputs, MatchedInputs):
            return inputs
        return cls(inputs, inputs.pipeline | "NoCounts" >> beam.Create([MatchCounts()]))

    @classmethod
    def union(cls, inputs: Sequence[MatchedInputs]) -> MatchedInputs:
        """Return the outputs of several ``MatchFiles`` as one."""
        refs = [each.refs for each in inputs] | "AllRefs" >> beam.Flatten()
        return cls(refs, sum_match_counts([each.counts for each in inputs]))


@dataclass(eq=False)
class MatchFiles(beam.PTransform):
    """Matches inputs in the pipeline: ``pipeline | MatchFiles(find_input("photos"))``.

    Gives ``MatchedInputs``, which ``WriteShards`` and the other sinks take. Every matched file is
    either a reference or counted.

    Args:
        spec: Where inputs are found.
        labels: Where their labels come from.
        listed_splits: Whether a listing must have a column ``split``.
    """

    spec: MatchSpec
    labels: LabelSpec = field(default_factory=lambda: LabelSpec("none"))
    listed_splits: bool = False

    def expand(self, root: beam.Pipeline | beam.pvalue.PBegin) -> MatchedInputs:
        """Wires the walk of a folder or glob, or the reading of a listing."""
        start = root | "Start" >> beam.Create([0])
        spec = self.spec
        if spec.kind == "file":
            refs, counts = start | "FindFile" >> find_inputs(lambda _: [_single(spec)])
        elif spec.kind == "listing":
            refs, counts = self._listed(start)
        else:
            refs, counts = self._walked(start)
        labelled = refs | "LabelInputs" >> beam.Map(self.labels.with_label).with_output_types(
            InputRef
        )
        return MatchedInputs(labelled, sum_match_counts([counts]))

    def _walked(self, start: beam.PCollection[int]) -> MatchedInputs:
        spec = self.spec
        found = (
            start
            | "ListFolders" >> beam.FlatMap(lambda _: map(tuple, first_level(spec.top)))
            | "SpreadFolders" >> beam.Reshuffle()
            | "WalkFolders"
            >> find_inputs(lambda task: walk_input(spec, WalkTask(*task)), InputError, _LINKED)
        )
        if scheme_of(spec.top):  # object stores have no links
            return MatchedInputs(found[_REFS], found[_COUNTS])
        once, repeated = (
            found[_LINKED]
            | "GroupByPath" >> beam.GroupByKey()
            | "DropRepeated" >> find_inputs(lambda entry: drop_repeated(entry[1]))
        )
        refs = (found[_REFS], once) | "AllWalked" >> beam.Flatten()
        return MatchedInputs(refs, (found[_COUNTS], repeated) | "WalkCounts" >> beam.Flatten())

    def _listed(self, start: beam.PCollection[int]) -> MatchedInputs:
        spec, labelled, split = self.spec, self.labels.label_from == "listing", self.listed_splits
        entries, skipped = start | "ReadListing" >> find_inputs(
            lambda _: _read_listing(spec, labelled=labelled, split=split), ShardmillError
        )
        refs, repeated = (
            entries
            | "KeyEntries"
            >> beam.Map(lambda ref: (ref.key, ref)).with_output_types(tuple[str, InputRef])
            | "GroupByKey" >> beam.GroupByKey()
            | "MergeEntries" >> find_inputs(lambda entry: merge_entries(*entry), InputError)
        )
        sized = refs | "FindSizes" >> beam.Map(
            lambda ref: _find_listed(ref, spec)
        ).with_output_types(InputRef)
        return MatchedInputs(sized, (skipped, repeated) | "ListingCounts" >> beam.Flatten())


def sum_match_counts(
    counts: Sequence[beam.PCollection[MatchCounts]],
) -> beam.PCollection[MatchCounts]:
    """Return the sum of partial counts as a collection of one element."""
    partial = counts | "AllCounts" >> beam.Flatten()
    return partial | "SumCounts" >> beam.CombineGlobally(sum_counts).with_output_types(MatchCounts)


def find_inputs(
    function: Callable[[Any], Iterable[Found]],
    fatal: type[ShardmillError] | tuple[()] = (),
    *tags: str,
) -> beam.PTransform:
    """Return a step that applies a function and gives references and counts as two outputs.

    Args:
        function: Takes an element and gives what was found.
        fatal: Errors of the function that make the whole input unusable and that no retry fixes.
        tags: Names of further outputs: ``_LINKED`` if the function gives ``Linked``.
    """

    def call(element: Any) -> Iterator[InputRef | TaggedOutput]:
        try:
            for each in function(element):
                if isinstance(each, InputRef):
                    yield each
                elif isinstance(each, Linked):
                    yield TaggedOutput(_LINKED, tuple(each))
                else:
                    yield TaggedOutput(_COUNTS, count_unused(each))
        except fatal as error:
            yield TaggedOutput(_COUNTS, MatchCounts(fatal=str(error)))

    typed = beam.FlatMap(call).with_output_types(
        InputRef, counts=MatchCounts, linked=tuple[str, InputRef]
    )
    return typed.with_outputs(_COUNTS, *tags, main=_REFS)


def _find_listed(ref: InputRef, spec: MatchSpec) -> InputRef:
    return ref if ref.error else find_sizes(ref, spec.root, follow_links=spec.follow_links)


def _read_listing(spec: MatchSpec, *, labelled: bool, split: bool) -> Iterator[InputRef]:
    """Yield the references of a listing, without sizes.

    Raises:
        ShardmillError: The listing is broken or too large.
    """
    data = open_storage(spec.input).read(spec.input)
    if len(data) > _MAX_LISTING_BYTES:
        raise InputError(f"{spec.input} is over 2 GiB: cut the listing into several.")
    if spec.input.lower().endswith(".txt"):
        yield from parse_paths(data, spec.input, spec.root)
        return
    yield from parse_listing(data, spec.input, spec.root, labelled=labelled, split=split)
