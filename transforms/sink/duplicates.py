"""Exact copies: inputs with the same content, found by the BLAKE3 of their files."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import apache_beam as beam
from apache_beam.pvalue import AsSingleton, TaggedOutput

from shardmill.schemas.dataset.catalog import read_columns
from shardmill.schemas.refs import InputRef
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.match.counts import keep_first
from shardmill.transforms.match.transform import MatchedInputs, find_inputs
from shardmill.transforms.runtime.sum_into import SumInto, singleton_sum
from shardmill.transforms.sink.assemble import BuiltShard, raise_if_stale
from shardmill.transforms.sink.compare import BATCH, hash_inputs
from shardmill.transforms.sink.placement import DuplicatesMode
from shardmill.transforms.sink.spec import SinkSpec

_HASHED = "hashed"  # output tag
Content = tuple[str, str, str, str | None]  # of one record: hash, key, split and label


@dataclass
class Copies:
    """Records that are copies of others; independent of the order of adding.

    Attributes:
        records: Number of records whose input has the content of another input, less one for each
            content.
        across_splits: Number of contents that are in several splits.
        labels_differ: Number of contents with several labels.
        example: The smallest pair of keys of a content that is in several splits or has several
            labels; empty if there is none.
    """

    records: int = 0
    across_splits: int = 0
    labels_differ: int = 0
    example: tuple[str, ...] = field(default=())

    def merge(self, other: Copies) -> None:
        """Add other copies."""
        self.records += other.records
        self.across_splits += other.across_splits
        self.labels_differ += other.labels_differ
        self.example = min(filter(None, (self.example, other.example)), default=())

    def warnings(self, inputs: str) -> Iterator[str]:
        """Yield what a user should know of them.

        Args:
            inputs: Word for inputs.
        """
        if not self.example:
            return
        where = [
            f"{count:,} of them {what}"
            for count, what in (
                (self.across_splits, "in several splits"),
                (self.labels_differ, "with several labels"),
            )
            if count
        ]
        first, second = self.example
        yield (
            f"some {inputs} are exact copies of others, {' and '.join(where)}, such as {first!r} "
            f"and {second!r}: see --duplicates"
        )


def list_contents(shard: BuiltShard, spec: SinkSpec) -> Iterator[tuple[str, list[Content]]]:
    """Yield the contents of a shard by the first two digits of their hashes.

    Raises:
        StaleBuildError: Another command published or cleaned the output.
    """
    if shard.shard is None or shard.shard.catalog is None:
        return
    buckets: dict[str, list[Content]] = defaultdict(list)
    with raise_if_stale():
        data = open_storage(spec.output).read(join(spec.output, shard.files[-1].source))
    columns = read_columns(data, ("content_hash", "key", "label"))
    for digest, key, label in zip(*columns, strict=True):
        buckets[digest[:2]].append((digest, key, shard.series.split, label))
    yield from buckets.items()


def count_copies(lists: Iterable[Iterable[Content]]) -> Copies:
    """Return the copies among the contents of one bucket."""
    groups: dict[str, list[tuple[str, str, str | None]]] = defaultdict(list)
    for digest, key, split, label in itertools.chain.from_iterable(lists):
        groups[digest].append((key, split, label))
    copies = Copies()
    for group in groups.values():
        if len(group) > 1:
            keys, splits, labels = zip(*sorted(group), strict=True)
            across, differ = len({*splits}) > 1, len({*labels}) > 1
            shown = keys[:2] if across or differ else ()
            copies.merge(Copies(len(group) - 1, int(across), int(differ), shown))
    return copies


@dataclass(eq=False)
class CountCopies(beam.PTransform):
    """Counts the copies among the records of all shards: gives a side input of one ``Copies``.

    Args:
        spec: Output and options of the build.
    """

    spec: SinkSpec

    def expand(self, shards: beam.PCollection[BuiltShard]) -> AsSingleton:
        """Wires the grouping by content."""
        return (
            shards
            | "ListContents" >> beam.FlatMap(list_contents, self.spec)
            | "GroupByContent" >> beam.GroupByKey()
            | "CountEach" >> beam.Map(lambda bucket: count_copies(bucket[1]))
            | "SumCopies" >> singleton_sum(SumInto(Copies, Copies.merge))
        )


@dataclass(eq=False)
class HandleDuplicates(beam.PTransform):
    """Reads and hashes all inputs; drops copies, or gives those of one content one split.

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
            | "GroupByHash" >> beam.GroupByKey()
            | "DropCopies"
            >> find_inputs(
                lambda group: keep_first(sorted(group[1], key=lambda ref: (ref.key, ref.uri)))
            )
        )
        counts = (matched.counts, dropped) | "AllCounts" >> beam.Flatten()
        return MatchedInputs((refs, kept) | "AllKept" >> beam.Flatten(), counts)


def _hash_readable(refs: list[InputRef]) -> Iterator[InputRef | TaggedOutput]:
    yield from (ref for ref in refs if ref.error)
    for digest, ref in hash_inputs([ref for ref in refs if not ref.error]):
        yield TaggedOutput(_HASHED, (digest, ref)) if digest else ref
