"""Exact copies: inputs with the same content, found by the BLAKE3 of their files."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsSingleton, TaggedOutput

from shardmill.schemas.dataset.catalog import (
    annotation_of,
    copies_conflict,
    find_differing,
    read_table,
)
from shardmill.schemas.refs import InputRef, MatchCounts
from shardmill.schemas.schema_pbtxt.image_features import VALUES
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.match.transform import MatchedInputs, find_inputs
from shardmill.transforms.runtime.beam_steps import SumInto, singleton_sum
from shardmill.transforms.sink.compare import BATCH, hash_inputs
from shardmill.transforms.sink.parts import BuiltShard, raise_if_stale
from shardmill.transforms.sink.placement import DuplicatesMode
from shardmill.transforms.sink.plan import Plan
from shardmill.transforms.sink.spec import SinkSpec

DIFFERENT = "with different labels, boxes or masks"
_HASHED = "hashed"  # output tag
_HASH_BYTES = 16  # as of the keys of rows: no two of 10**12 contents share them
_MANY = 4  # copies in a shard, above which not all are sent
# Of one record: hash, key, annotation (see ``annotation_of``), and the number of further copies.
Content = tuple[bytes, str, str, int]
_Copy = tuple[tuple[Any, ...], int]  # an InputRef as plain values; number of dropped copies


@dataclass
class Copies:
    """Records that are copies of others; independent of the order of adding.

    Attributes:
        records: Number of records whose input has the content of another input, less one for each
            content.
        across_splits: Number of contents that are in several splits.
        labels_differ: Number of contents with several labels, boxes or masks; none is not one.
        across_example: The smallest pair of keys of one content in different splits, or empty.
        differ_example: The same with different labels, boxes or masks.
    """

    records: int = 0
    across_splits: int = 0
    labels_differ: int = 0
    across_example: tuple[str, ...] = ()
    differ_example: tuple[str, ...] = ()

    def merge(self, other: Copies) -> None:
        """Add other copies."""
        self.records += other.records
        self.across_splits += other.across_splits
        self.labels_differ += other.labels_differ
        for name in ("across_example", "differ_example"):
            examples = getattr(self, name), getattr(other, name)
            setattr(self, name, min(filter(None, examples), default=()))

    def warnings(self, inputs: str, config: Mapping[str, Any]) -> Iterator[str]:
        """Yield a warning if copies are in several splits, or are labeled differently.

        Args:
            inputs: Word for inputs.
            config: Options of the build.
        """
        remedy = "see --duplicates"
        if conflict := copies_conflict(config):
            remedy = (
                "remove copies from the input, since --duplicates cannot be combined with "
                f"{conflict}"
            )
        where = [
            f"{count:,} of them {what}, such as {example[0]!r} and {example[1]!r}"
            for count, what, example in (
                (self.across_splits, "in several splits", self.across_example),
                (self.labels_differ, DIFFERENT, self.differ_example),
            )
            if count
        ]
        if where:
            yield (f"some {inputs} are exact copies of others, {', and '.join(where)}: {remedy}")


def list_contents(
    shard: BuiltShard, plan: Plan, spec: SinkSpec
) -> Iterator[tuple[int, tuple[str, list[Content]]]]:
    """Yield the split and the contents of a shard by their groups.

    Raises:
        StaleBuildError: Another command published or cleaned the output.
    """
    if shard.shard is None or shard.shard.catalog is None:
        return
    with raise_if_stale():
        data = open_storage(spec.output).read(join(spec.output, shard.files[-1].source))
    table = read_table(data, ("content_hash", "key", "label", VALUES))
    digests, keys, labels, values = table.to_pydict().values()
    annotations = map(functools.partial(annotation_of, config=spec.config), labels, values)
    many = {digest: list[Content]() for digest, n in Counter(digests).items() if n > _MANY}
    groups: dict[int, list[Content]] = defaultdict(list)
    for digest, key, annotation in zip(digests, keys, annotations, strict=True):
        content = (bytes.fromhex(digest)[:_HASH_BYTES], key, annotation, 0)
        copies = many.get(digest)
        if copies is None:
            copies = groups[plan.group_of(digest)]
        copies.append(content)
    for digest, copies in many.items():
        groups[plan.group_of(digest)] += keep_few(copies)
    for group, contents in groups.items():
        yield group, (shard.series.split, contents)


def keep_few(copies: list[Content]) -> list[Content]:
    """Return at most three records of a content that represent all of them.

    They are the first by their keys, the first with an annotation, and a pair that differs; the
    last field of one counts the records that are left out.
    """
    ordered = sorted(copies, key=itemgetter(1))
    annotated = [copy for copy in ordered if copy[2]]
    kept = {ordered[0], *annotated[:1], *(find_differing(ordered, itemgetter(2)) or ())}
    digest, key, annotation, more = kept.pop()
    return [(digest, key, annotation, more + len(copies) - len(kept) - 1), *kept]


def count_copies(lists: Iterable[tuple[str, list[Content]]]) -> Copies:
    """Return the copies among the contents of one group."""
    groups: dict[bytes, list[tuple[str, str, str, int]]] = defaultdict(list)
    for split, contents in lists:
        for digest, key, annotation, more in contents:
            groups[digest].append((key, split, annotation, more))
    copies = Copies()
    for group in groups.values():
        group.sort()
        across, differ = (
            tuple(key for key, *_ in find_differing(group, itemgetter(field)) or ())
            for field in (1, 2)
        )
        number = len(group) + sum(more for *_, more in group) - 1
        copies.merge(Copies(number, int(bool(across)), int(bool(differ)), across, differ))
    return copies


@dataclass(eq=False)
class CountCopies(beam.PTransform):
    """Counts the copies among the records of all shards: gives a side input of one ``Copies``.

    Args:
        plan: One ``Plan``.
        spec: Output and options of the build.
    """

    plan: beam.PCollection[Plan]
    spec: SinkSpec

    def expand(self, shards: beam.PCollection[BuiltShard]) -> AsSingleton:
        """Wires the grouping by content."""
        return (
            shards
            | "ListContents" >> beam.FlatMap(list_contents, AsSingleton(self.plan), self.spec)
            | "GroupByContent" >> beam.GroupByKey()
            | "CountEach" >> beam.Map(lambda group: count_copies(group[1]))
            | "SumCopies" >> singleton_sum(SumInto(Copies, Copies.merge))
        )


@dataclass(eq=False)
class HandleDuplicates(beam.PTransform):
    """Reads and hashes all inputs; drops copies, or puts copies into one split.

    Inputs that cannot be read are rejected, since their content is unknown.

    Args:
        mode: ``drop`` or ``same_split``.
    """

    mode: DuplicatesMode

    def expand(self, matched: MatchedInputs) -> MatchedInputs:
        """Wires the hashing pass."""
        refs, hashed = (
            matched.refs
            | "SpreadInputs" >> beam.Reshuffle()
            | "BatchInputs" >> beam.BatchElements(1, BATCH)
            | "HashInputs"
            >> beam.FlatMap(_hash_readable)
            .with_output_types(InputRef, hashed=tuple[str, InputRef])
            .with_outputs(_HASHED, main="refs")
        )
        if self.mode == "same_split":
            grouped = hashed | "GroupCopies" >> beam.MapTuple(
                lambda digest, ref: ref._replace(group=digest)
            ).with_output_types(InputRef)
            return MatchedInputs((refs, grouped) | "AllHashed" >> beam.Flatten(), matched.counts)
        kept, dropped = (
            hashed
            | "CountOne" >> beam.MapTuple(lambda digest, ref: (digest, (tuple(ref), 0)))
            | "GroupByHash" >> beam.CombinePerKey(keep_smallest)
            | "DropCopies"
            >> find_inputs(
                lambda group: (InputRef(*group[1][0]), MatchCounts(duplicates=group[1][1]))
            )
        )
        counts = (matched.counts, dropped) | "AllCounts" >> beam.Flatten()
        return MatchedInputs((refs, kept) | "AllKept" >> beam.Flatten(), counts)


def keep_smallest(copies: Iterable[_Copy]) -> _Copy:
    """Return the copy with the smallest key, and how many others were dropped."""
    refs, dropped = zip(*copies, strict=True)
    return min(refs, key=lambda ref: ref[:2]), sum(dropped) + len(refs) - 1


def _hash_readable(refs: list[InputRef]) -> Iterator[InputRef | TaggedOutput]:
    yield from (ref for ref in refs if ref.error)
    for digest, ref in hash_inputs([ref for ref in refs if not ref.error]):
        if digest:
            yield TaggedOutput(_HASHED, (digest, ref))
        else:
            yield ref
