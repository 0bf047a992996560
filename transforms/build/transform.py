"""WriteShards: the one sink of every pipeline. Refs go in, a published dataset comes out.

Payload bytes never cross a shuffle: refs are counted, placed and grouped by part, each part is
made by one call, parts are concatenated into shards, and the shards are published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton

import shardmill.transforms.build.coders  # noqa: F401 - registers the coders
from shardmill.schemas.errors import OutputError, StaleBuildError
from shardmill.schemas.refs import InputRef, Reference
from shardmill.schemas.rejects import Reject
from shardmill.schemas.storage import open_storage
from shardmill.transforms.build.assemble import BuiltShard, ShardJob, assemble_shard, plan_shards
from shardmill.transforms.build.census import Census, CountRefs, why_unusable
from shardmill.transforms.build.encoder import Encoder, Item, encode_refs
from shardmill.transforms.build.finalize import Built, finish, planned_outcome
from shardmill.transforms.build.outcome import Outcome
from shardmill.transforms.build.parts import (
    Part,
    PartFile,
    PartJob,
    find_part,
    order_refs,
    part_id,
    write_part,
)
from shardmill.transforms.build.placement import (
    PartKey,
    Placed,
    PlacedRef,
    PlaceSpec,
    Series,
    part_of,
)
from shardmill.transforms.build.planning import Plan, plan_parts
from shardmill.transforms.build.shard_reuse import keep_series, series_ids
from shardmill.transforms.build.spec import SinkSpec
from shardmill.transforms.build.totals import SumTotals, Totals
from shardmill.transforms.match.labels import sort_labels
from shardmill.transforms.match.transform import MatchedInputs
from shardmill.transforms.publish.publish import check_output, settle, why_not_up_to_date
from shardmill.transforms.runtime import metrics, progress

# What crosses a shuffle: a PartFile as plain values.
FileValues = tuple[Any, ...]


def make_plan(spec: SinkSpec, expected_bytes: int | None, census: Census) -> Plan:
    """Returns what is to be done with what was matched, looking at the output first.

    Args:
        spec: The sink's.
        expected_bytes: Bytes that one record becomes, or None where that is its input's size.
        census: Of all refs.
    """
    problem = why_unusable(census, "an image", spec.root)
    if problem:
        return Plan("failed", problem)
    labels = sort_labels(census.labels) if spec.labels is None else spec.labels
    parts = plan_parts(census.series, expected_bytes, spec.shards)
    plan = Plan("build", "", parts, labels, census.input_id)
    return settle_plan(spec, plan, series_ids(spec.keep_id, plan, census))


def settle_plan(spec: SinkSpec, plan: Plan, series: Mapping[Series, str] | None = None) -> Plan:
    """Returns what is left to do of a plan to build, after a look at the output.

    Args:
        spec: The sink's.
        plan: What there is to do where nothing is published.
        series: Identity of each series whose published shards may stay.
    """
    storage = open_storage(spec.output)
    try:
        look = check_output if spec.dry_run else settle
        published = look(storage, spec.output)
    except OutputError as error:
        return Plan("failed", str(error))
    if published is not None:
        ids = spec.config_id, plan.input_id
        problem = why_not_up_to_date(storage, spec.output, published, *ids)
        if not problem:
            return replace(plan, status="up_to_date", message=f"{spec.output} is up to date.")
        if not spec.overwrite:
            return Plan("failed", problem)
        plan = keep_series(storage, spec, plan, published, series or {})
    return replace(plan, status="dry_run") if spec.dry_run else plan


def place_ref(place: PlaceSpec, ref: InputRef, plan: Plan) -> Iterator[Placed]:
    """Yields a ref with its part and position; nothing when no record is to be made of it."""
    if plan.status != "build":
        return
    series = place.series_of(ref)
    if series in plan.kept:
        return
    position = place.position_of(ref)
    part = part_of(position, plan.parts_of(series))
    yield PartKey(*series, part), PlacedRef(position.to_bytes(8, "big"), ref)


class _WritePart(beam.DoFn):
    def __init__(self, spec: SinkSpec, encoder: Encoder[Any]) -> None:
        self._spec = spec
        self._encoder = encoder

    def process(
        self, element: tuple[PartKey, Iterable[PlacedRef]], plan: Plan
    ) -> Iterator[tuple[tuple[str, str], Part]]:
        key, placed = element
        refs, duplicates = order_refs(placed)
        try:
            part = self._make(key, refs, duplicates, plan)
        except FileNotFoundError as error:
            raise _stale(error) from error
        (metrics.PARTS_FOUND if part.found else metrics.PARTS_MADE).inc()
        metrics.EXAMPLES.inc(part.records)
        metrics.REJECTS.inc(sum(part.rejects.values()))
        metrics.PART_BYTES.update(part.num_bytes)
        yield (key.split, key.label), part

    def _make(self, key: PartKey, refs: Sequence[Reference], duplicates: int, plan: Plan) -> Part:
        spec, encoder = self._spec, self._encoder
        storage = open_storage(spec.output)
        name = part_id(spec.config_id, key, refs, plan.labels)
        found = find_part(storage, spec.parts, name)
        watches = spec.finishing.watches_inputs
        if found is not None:
            if watches:
                progress.current().add(len(refs), sum(found.rejects.values()))
            return found
        packing = encoder.packing if spec.compression == "gzip" else "none"
        job = PartJob(key, name, spec.parts, packing, encoder.versions(), duplicates)
        items = encode_refs(encoder, refs, plan.labels)
        return write_part(storage, job, _counted(items) if watches else items)


def _counted(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items, each counted in the progress of the run."""
    shown = progress.current()
    for item in items:
        shown.add(1, isinstance(item, Reject))
        yield item


def _stale(error: FileNotFoundError) -> StaleBuildError:
    return StaleBuildError(
        f"{error.filename or error} is gone: another command published or cleaned this output; "
        "run again."
    )


def _assemble(job: ShardJob, spec: SinkSpec) -> BuiltShard:
    storage = open_storage(spec.output)
    try:
        shard = assemble_shard(
            storage, spec.build, job, spec.shards.template, gzip=spec.compression == "gzip"
        )
    except FileNotFoundError as error:
        raise _stale(error) from error
    metrics.SHARDS.inc()
    return shard


def _finish(
    _: int, shards: list[BuiltShard], totals: list[tuple[tuple[str, str], Totals]], plan: Plan,
    census: Census, *, spec: SinkSpec, encoder: Encoder[Any],
) -> Outcome:  # fmt: skip
    storage = open_storage(spec.output)
    if plan.status != "build":
        return planned_outcome(plan, census)
    try:
        built = Built(shards, {Series(*series): each for series, each in totals})
        return finish(storage, spec, encoder, plan, census, built)
    except FileNotFoundError as error:
        raise _stale(error) from error


def announce(
    spec: SinkSpec, plan: Plan, phase: str, inputs: int,
    series: Mapping[Series, tuple[int, int]] | None = None,
) -> None:  # fmt: skip
    """Report the size of a build: to the run of this process, else by a file in the build folder.

    Args:
        spec: What is written.
        plan: What is to be done.
        phase: Name of the next phase.
        inputs: Number of inputs, in the unit of the run's progress.
        series: (references, bytes) of each series, where known: few references leave parts empty.
    """
    if plan.status != "build":
        return
    if progress.is_collected():
        progress.current().start(phase, inputs)
        return
    parts = 0.0
    for name, number in plan.parts.items():
        if name not in plan.kept:
            refs = series[name][0] if series and name in series else None
            parts += number if refs is None else number * (1 - (1 - 1 / number) ** refs)
    progress.leave_total(spec.build, round(parts))


def _announced(plan: Plan, census: Census, spec: SinkSpec) -> Plan:
    inputs = census.refs - sum(census.series[series][0] for series in plan.kept)
    announce(spec, plan, "encoding", inputs, census.series)
    return plan


@dataclass(eq=False)
class WriteShards(beam.PTransform):
    """Writes inputs as a published dataset: ``inputs | WriteShards(spec, encoder)``.

    Takes the outputs of ``MatchFiles``, or a collection of your own ``InputRef`` elements, one for
    each record, and gives one ``Outcome``. A failure that no retry fixes is an outcome too:
    ``| RaiseIfFailed()`` raises it.

    Args:
        spec: What is written, and where.
        encoder: Encodes references as records.
    """

    spec: SinkSpec
    encoder: Encoder[InputRef]

    def expand(
        self, inputs: MatchedInputs | beam.PCollection[InputRef]
    ) -> beam.PCollection[Outcome]:
        """Wires census, plan and placement."""
        spec, place = self.spec, self.spec.place
        expected = self.encoder.expected_bytes
        matched = MatchedInputs.of(inputs)
        refs = matched.refs | "AssignSplits" >> beam.Map(place.with_split).with_output_types(
            InputRef
        )
        census = (
            refs
            | "CountInputs" >> beam.CombineGlobally(CountRefs(place))
            | "AddMatchCounts" >> beam.Map(Census.with_counts, AsSingleton(matched.counts))
        )
        plan = census | "PlanParts" >> beam.Map(
            lambda census: _announced(make_plan(spec, expected, census), census, spec)
        )
        placed = refs | "PlaceInputs" >> beam.FlatMap(
            lambda ref, plan: place_ref(place, ref, plan), plan=AsSingleton(plan)
        ).with_output_types(Placed)
        return BuildInput(placed, plan, census).of() | BuildShards(spec, self.encoder)


class BuildInput(NamedTuple):
    """What ``BuildShards`` takes.

    Attributes:
        placed: Refs with their part and order.
        plan: What is to be done, one ``Plan``.
        census: What became of the inputs, one ``Census``; for the manifest.
    """

    placed: beam.PCollection[Placed]
    plan: beam.PCollection[Plan]
    census: beam.PCollection[Census]

    def of(self) -> dict[str, Any]:
        """Returns it as the dictionary that Beam applies transforms to."""
        return self._asdict()


@dataclass(eq=False)
class BuildShards(beam.PTransform):
    """Makes parts of placed refs, shards of parts, and publishes them; gives one ``Outcome``.

    Args:
        spec: What is written, and where.
        encoder: How a part's refs become records.
    """

    spec: SinkSpec
    encoder: Encoder[Any]

    def expand(self, pvalues: dict[str, Any]) -> beam.PCollection[Outcome]:
        """Wires parts, shards and publication."""
        spec, encoder, given = self.spec, self.encoder, BuildInput(**pvalues)
        parts = (
            given.placed
            | "GroupByPart" >> beam.GroupByKey()
            | "WriteParts" >> beam.ParDo(_WritePart(spec, encoder), plan=AsSingleton(given.plan))
        )
        totals = parts | "SumParts" >> beam.CombinePerKey(SumTotals())
        files = parts | "ListPartFiles" >> beam.MapTuple(
            lambda series, part: (series, tuple(part.file))
        )
        shards = self._assembled(files, given.plan)
        return (
            given.plan.pipeline
            | "Start" >> beam.Create([0])
            | "Publish"
            >> beam.Map(
                _finish,
                AsList(shards),
                AsList(totals),
                AsSingleton(given.plan),
                AsSingleton(given.census),
                spec=spec,
                encoder=encoder,
            )
        )

    def _assembled(
        self,
        files: beam.PCollection[tuple[tuple[str, str], FileValues]],
        plan: beam.PCollection[Plan],
    ) -> beam.PCollection[BuiltShard]:
        spec = self.spec
        planned = plan | "ListSeries" >> beam.FlatMap(_series)
        return (
            (planned, files)
            | "AddEmptySeries" >> beam.Flatten()
            | "GroupBySeries" >> beam.GroupByKey()
            | "PlanShards" >> beam.FlatMap(_shard_jobs, plan=AsSingleton(plan), spec=spec)
            | "SpreadShards" >> beam.Reshuffle()
            | "AssembleShards" >> beam.Map(_assemble, spec=spec)
        )


def _series(plan: Plan) -> Iterator[tuple[tuple[str, str], None]]:
    """Yields each series to be made, so that one without any record has its shards too."""
    if plan.status == "build":
        for series in plan.parts:
            if series not in plan.kept:
                yield (series.split, series.label), None


def _shard_jobs(
    element: tuple[tuple[str, str], Iterable[FileValues | None]], plan: Plan, spec: SinkSpec
) -> Iterator[ShardJob]:
    series, files = element
    found = [PartFile(*values) for values in files if values is not None]
    name = Series(*series)
    yield from plan_shards(spec.shards, name, plan.parts_of(name), found)


__all__ = [
    "BuildInput",
    "BuildShards",
    "WriteShards",
    "announce",
    "make_plan",
    "place_ref",
    "settle_plan",
]
