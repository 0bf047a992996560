"""MatchFiles: turns an input (folder, glob, listing or file) into references, in the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam import coders
from apache_beam.pvalue import AsSingleton, TaggedOutput

from shardmill.schemas.errors import InputError, ShardmillError, StorageError
from shardmill.schemas.refs import InputRef, Linked, MatchCounts, keep_first, sum_counts
from shardmill.schemas.storage import scheme_of
from shardmill.transforms.match.containers.expand import Spooler, expand, list_images
from shardmill.transforms.match.inputs import (
    MatchSpec,
    find_listed,
    find_single,
    merge_entries,
    read_listing,
    walk_input,
)
from shardmill.transforms.match.labels import LabelSpec
from shardmill.transforms.match.walk import Match, WalkTask, first_level
from shardmill.transforms.runtime.beam_steps import TupleCoder, singleton_sum

for _type in (InputRef, MatchCounts):  # what matching sends through shuffles
    coders.registry.register_coder(_type, TupleCoder)

_REFS, _COUNTS, _LINKED = "refs", "counts", "linked"  # output tags


class MatchedInputs(NamedTuple):
    """The two outputs of ``MatchFiles``.

    Attributes:
        refs: An ``InputRef`` for each input; what cannot be read has ``error`` set.
        counts: Parts of the counts: skipped files, duplicates, and what makes the input unusable.
    """

    refs: beam.PCollection[InputRef]
    counts: beam.PCollection[MatchCounts]

    @classmethod
    def of(cls, inputs: MatchedInputs | beam.PCollection[InputRef]) -> MatchedInputs:
        """Return the outputs of ``MatchFiles``, or those of references alone."""
        if isinstance(inputs, MatchedInputs):
            return inputs
        return cls(inputs, inputs.pipeline | "NoCounts" >> beam.Create([MatchCounts()]))

    def sum_counts(self) -> AsSingleton:
        """Return the sum of the counts as a side input."""
        return self.counts | "SumMatchCounts" >> singleton_sum(sum_counts)


@dataclass(eq=False)
class MatchFiles(beam.PTransform):
    """Matches inputs in the pipeline: ``pipeline | MatchFiles(find_input("photos"))``.

    Gives ``MatchedInputs``, which ``WriteShards`` and the other sinks take. Every matched file is
    either a reference or counted.

    Args:
        spec: Where inputs are found; listings are tables that ``open_listings`` has opened.
        labels: Where their labels come from.
        spool: See ``expand``.
    """

    spec: MatchSpec
    labels: LabelSpec = field(default_factory=lambda: LabelSpec("none"))
    spool: Spooler | None = None

    def expand(self, root: beam.Pipeline | beam.pvalue.PBegin) -> MatchedInputs:
        """Wires the walk of a folder or glob, or the reading of a listing."""
        spec = self.spec
        if spec.kind != "several":
            return self._labelled(self._matched(root | "Start" >> beam.Impulse()))
        matches = []
        for number, part in enumerate(spec.parts, 1):
            start = root | f"Input{number}" >> beam.Impulse()
            matches.append(start | f"Match{number}" >> _MatchOne(replace(self, spec=part)))
        refs = [one.refs for one in matches] | "AllRefs" >> beam.Flatten()
        counts = [one.counts for one in matches] | "AllCounts" >> beam.Flatten()
        refs, counts = self._labelled(MatchedInputs(refs, counts))
        refs, repeated = refs | "DropRepeated" >> MergeRepeated()
        counts = (counts, repeated) | "RepeatedCounts" >> beam.Flatten()
        return MatchedInputs(refs, counts)

    def _matched(self, start: beam.PCollection[bytes]) -> MatchedInputs:
        """Wire the matching of one input, without labels."""
        spec = self.spec
        if spec.kind == "file":
            refs, counts = start | "FindFile" >> find_inputs(lambda _: [find_single(spec)])
        elif spec.kind == "listing":
            refs, counts = self._listed(start)
        else:
            refs, counts = self._walked(start)
        if not spec.archives:
            return MatchedInputs(refs, counts)
        list_members: Callable[[InputRef], Iterator[Match]] = partial(expand, spool=self.spool)
        if spec.kind == "listing":
            list_members = list_images
        refs, members = (
            refs
            | "SpreadArchives" >> beam.Reshuffle()
            | "ListMembers" >> find_inputs(list_members, (InputError, StorageError))
        )
        counts = (counts, members) | "MemberCounts" >> beam.Flatten()
        return MatchedInputs(refs, counts)

    def _labelled(self, matched: MatchedInputs) -> MatchedInputs:
        """Wire the labels, which depend on all archives."""
        parts = self.spec.parts or (self.spec,)
        are_given = any(part.kind == "listing" or part.archives for part in parts)
        if self.labels.label_from == "none" and not are_given:
            return matched
        sides = []
        if self.spec.archives and self.labels.reads_archives:
            has_labels = matched.counts | "SelectLabels" >> beam.Map(lambda one: one.has_labels)
            sides = [has_labels | "HasLabels" >> singleton_sum(any)]
        refs = matched.refs | "LabelInputs" >> beam.Map(
            self.labels.with_label, *sides
        ).with_output_types(InputRef)
        return MatchedInputs(refs, matched.counts)

    def _walked(self, start: beam.PCollection[bytes]) -> MatchedInputs:
        spec = self.spec
        outputs = (
            start
            | "ListFolders" >> beam.FlatMap(lambda _: map(tuple, first_level(spec.top)))
            | "SpreadFolders" >> beam.Reshuffle()
            | "WalkFolders"
            >> find_inputs(lambda task: walk_input(spec, WalkTask(*task)), InputError, _LINKED)
        )
        if scheme_of(spec.top):  # object stores have no links
            return MatchedInputs(outputs[_REFS], outputs[_COUNTS])
        once, repeated = (
            outputs[_LINKED]
            | "GroupByPath" >> beam.GroupByKey()
            | "DropRepeated" >> find_inputs(lambda entry: keep_first(entry[1]))
        )
        refs = (outputs[_REFS], once) | "AllWalked" >> beam.Flatten()
        return MatchedInputs(refs, (outputs[_COUNTS], repeated) | "WalkCounts" >> beam.Flatten())

    def _listed(self, start: beam.PCollection[bytes]) -> MatchedInputs:
        spec = self.spec
        entries, skipped = start | "ReadListing" >> find_inputs(
            lambda _: read_listing(spec), ShardmillError
        )
        refs, repeated = entries | "MergeEntries" >> MergeRepeated(merge_entries)
        sized = refs | "FindSizes" >> beam.Map(
            lambda ref: find_listed(ref, spec)
        ).with_output_types(InputRef)
        return MatchedInputs(sized, (skipped, repeated) | "ListingCounts" >> beam.Flatten())


@dataclass(eq=False)
class _MatchOne(beam.PTransform):
    inputs: MatchFiles

    def expand(self, start: beam.PCollection[bytes]) -> MatchedInputs:
        return self.inputs._matched(start)  # noqa: SLF001 - of the same module


@dataclass(eq=False)
class MergeRepeated(beam.PTransform):
    """Merges references with one key: gives references and counts, as ``find_inputs``.

    Args:
        merge: Takes a key and its references, and gives one and a count for each other.
    """

    merge: Callable[[str, Iterable[InputRef]], Iterable[Match]] = lambda _, refs: keep_first(refs)

    def expand(self, refs: beam.PCollection[InputRef]) -> beam.pvalue.DoOutputsTuple:
        """Wires the grouping by key."""
        merge = self.merge
        return (
            refs
            | "KeyInputs"
            >> beam.Map(lambda ref: (ref.key, ref)).with_output_types(tuple[str, InputRef])
            | "GroupByKey" >> beam.GroupByKey()
            | "Merge" >> find_inputs(lambda entry: merge(*entry), InputError)
        )


def find_inputs(
    function: Callable[[Any], Iterable[Any]],
    fatal: type[Exception] | tuple[type[Exception], ...] = (),
    *tags: str,
    kind: Any = InputRef,
) -> beam.PTransform:
    """Return a step that applies a function and splits its results into references and counts.

    Args:
        function: Takes an element; returns references, links and counts.
        fatal: Errors of the function that make the whole input unusable and that no retry fixes.
        tags: Names of further outputs: ``_LINKED`` if the function gives ``Linked``.
        kind: Type of the references.
    """

    def call(element: Any) -> Iterator[Any]:
        try:
            for match in function(element):
                if isinstance(match, Linked):
                    yield TaggedOutput(_LINKED, tuple(match))
                elif isinstance(match, MatchCounts):
                    yield TaggedOutput(_COUNTS, match)
                else:
                    yield match
        except fatal as error:
            fatal_error = getattr(error, "coded", str(error))
            yield TaggedOutput(_COUNTS, MatchCounts(fatal=fatal_error))

    typed = beam.FlatMap(call).with_output_types(
        kind, counts=MatchCounts, linked=tuple[str, InputRef]
    )
    return typed.with_outputs(_COUNTS, *tags, main=_REFS)
