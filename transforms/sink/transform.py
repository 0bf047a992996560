"""WriteShards: write references as a published dataset; the sink of all pipelines.

Payload bytes never cross a shuffle: references are counted, placed and grouped by part. One call
writes each part, parts are concatenated into shards, and the shards are published.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton

from shardmill.schemas.errors import (
    OutputError,
    ResourceError,
    ShardmillError,
    StorageError,
    UsageError,
)
from shardmill.schemas.refs import InputRef, Reference, Reject
from shardmill.schemas.storage import join, open_storage, resolve_links
from shardmill.transforms.match.transform import MatchedInputs
from shardmill.transforms.runtime import metrics, progress
from shardmill.transforms.runtime.beam_steps import (
    SumInto,
    pack_all,
    pack_values,
    singleton_sum,
    unpack,
)
from shardmill.transforms.sink.census import INPUTS, PLACED, Census, Changes
from shardmill.transforms.sink.compare import ComparePublished, add_changes
from shardmill.transforms.sink.duplicates import Copies, CountCopies, HandleDuplicates
from shardmill.transforms.sink.finalize import Built, finish, planned_outcome
from shardmill.transforms.sink.parts import (
    BuiltShard,
    Part,
    PartFile,
    PlannedPart,
    PlannedShard,
    add_catalog,
    assemble_shard,
    find_part,
    order_refs,
    part_id,
    plan_shards,
    raise_if_stale,
    write_part,
)
from shardmill.transforms.sink.placement import (
    PartKey,
    Placed,
    PlacedRef,
    PlaceSpec,
    Series,
    part_of,
)
from shardmill.transforms.sink.plan import Plan, make_plan
from shardmill.transforms.sink.reuse import with_path
from shardmill.transforms.sink.spec import Encoder, EncoderOutput, Outcome, SinkSpec, encode_refs
from shardmill.transforms.statistics.sums import Totals

# A PartFile as plain values; crosses a shuffle.
FileValues = tuple[Any, ...]
# Outputs of the builds of a pipeline that is being made.
_OUTPUTS: WeakKeyDictionary[beam.Pipeline, list[str]] = WeakKeyDictionary()


def place_refs(place: PlaceSpec, refs: Iterable[InputRef], plan: Plan) -> Iterator[Placed]:
    """Yield references with their parts and positions; nothing if none is read in this build."""
    if plan.status != "build":
        return
    for ref in refs:
        series = place.series_of(ref)
        position = place.position_of(ref)
        part = part_of(position, plan.parts_of(series))
        yield PartKey(*series, part), PlacedRef(position.to_bytes(8, "big"), ref)


def _write_part(
    element: tuple[PartKey, Iterable[bytes]], plan: Plan, spec: SinkSpec, encoder: Encoder[Any]
) -> tuple[tuple[str, str], Part]:
    key, packed = element
    refs, duplicates = order_refs(unpack(packed, PLACED))
    started = time.monotonic()
    try:
        with raise_if_stale():
            part = _find_or_write(key, refs, plan, spec, encoder)
    except (MemoryError, ResourceError, StorageError) as error:
        part = Part(key, totals=Totals(made=1, failure=failure_of(error)))
    totals = part.totals
    totals.duplicates += duplicates
    if totals.reused:
        metrics.PARTS_FOUND.inc()
    else:
        metrics.PARTS_MADE.inc()
        metrics.ENCODE_MILLISECONDS.update(round(1000 * (time.monotonic() - started)))
        for ref in refs:
            size = ref.size if isinstance(ref, InputRef) else ref.length
            metrics.INPUT_BYTES.update(size)
    metrics.EXAMPLES.inc(totals.records)
    metrics.REJECTS.inc(sum(totals.rejects.values()))
    metrics.PART_BYTES.update(part.num_bytes)
    return (key.split, key.label), part


def _find_or_write(
    key: PartKey, refs: Sequence[Reference], plan: Plan, spec: SinkSpec, encoder: Encoder[Any]
) -> Part:
    storage, counts_inputs = open_storage(spec.output), spec.hooks.reports_inputs
    name = part_id(spec.config_id, key, refs, plan.labels)
    existing = find_part(storage, spec.parts, name, refs, content=spec.update == "content")
    if existing is not None:
        if counts_inputs:
            progress.current().add(len(refs), sum(existing.totals.rejects.values()))
        return existing
    packing = spec.packing(encoder.packing)
    job = PlannedPart(key, name, spec.parts, packing, encoder.versions(), spec.root)
    paths = [join(plan.published_folder, shard.file).encode() for shard in plan.published]
    items = encode_refs(encoder, (with_path(ref, paths) for ref in refs), plan.labels)
    if counts_inputs:
        items = _counted(items)
    return write_part(storage, job, items)


def _counted(items: Iterable[EncoderOutput]) -> Iterator[EncoderOutput]:
    """Yield items, each counted in the progress of the run."""
    current_progress = progress.current()
    for item in items:
        current_progress.add(1, isinstance(item, Reject))
        yield item


def failure_of(error: MemoryError | ShardmillError) -> str:
    """Return the sentence of an error that fails the build.

    Where the workers are threads of the command, the error is raised, which ends the run at once.
    Other runners would only repeat the work, so there it becomes a value that reaches the command.
    """
    if isinstance(error, MemoryError):
        error = ResourceError(
            "A process cannot have more memory: use a machine or workers with more memory, or set "
            "--threads lower. Finished parts are kept."
        )
    if progress.is_collected():
        raise error
    return str(error)


def _assemble(job: PlannedShard, spec: SinkSpec, encoder: Encoder[Any]) -> BuiltShard:
    storage = open_storage(spec.output)
    try:
        with raise_if_stale():
            shard = assemble_shard(storage, spec, job, spec.packing(encoder.packing))
            shard = add_catalog(storage, spec, job, shard)
    except (MemoryError, OutputError, StorageError) as error:
        return BuiltShard(job.series, job.index, failure=failure_of(error))
    metrics.SHARDS.inc()
    return shard


def _finish(
    _: bytes,
    shards: list[BuiltShard],
    totals: list[tuple[tuple[str, str], Totals]],
    plan: Plan,
    census: Census,
    copies: Copies,
    *,
    spec: SinkSpec,
    encoder: Encoder[Any],
) -> Outcome:
    if plan.status != "build":
        return planned_outcome(plan, census)
    ordered = sorted(shards, key=lambda shard: (shard.series, shard.index))
    built = Built(ordered, {Series(*series): total for series, total in totals})
    with raise_if_stale():
        return finish(open_storage(spec.output), spec, encoder, plan, census, built, copies)


def announce(
    spec: SinkSpec,
    plan: Plan,
    phase: str,
    inputs: int,
    series: Mapping[Series, tuple[int, int]] | None = None,
) -> None:
    """Report the size of a build: to the run of this process, else by a file in the build folder.

    Args:
        spec: Output and options of the build.
        plan: The plan of the build.
        phase: Name of the next phase.
        inputs: Number of inputs, in the unit of the run's progress.
        series: (references, bytes) of each series, where known: few references leave parts empty.
    """
    if plan.status != "build":
        return
    if progress.is_collected():
        progress.current().extend(phase, inputs)
        return
    parts = 0.0
    for name, number in plan.parts.items():
        written = float(number)
        if series and name in series:
            refs = series[name][0]
            written *= 1 - (1 - 1 / number) ** refs
        parts += written
    progress.leave_total(spec.build, round(parts))


def _plan_and_announce(census: Census, spec: SinkSpec, encoder: Encoder[InputRef]) -> Plan:
    def can_use(ref: InputRef) -> bool:
        items = encode_refs(encoder, [ref._replace(label="")], [""])  # with any label
        return not any(isinstance(item, Reject) for item in items)

    plan = make_plan(spec, encoder.expected_bytes, census, can_use)
    announce(spec, plan, "encoding", census.refs, census.series)
    return plan


def _add_changes(plan: Plan, changes: Changes, census: Census, spec: SinkSpec) -> Plan:
    changed = add_changes(plan, changes, spec)
    if plan.status != "build":
        announce(spec, changed, "encoding", census.refs, census.series)
    return changed


@dataclass(eq=False)
class WriteShards(beam.PTransform):
    """Writes inputs as a published dataset: ``inputs | WriteShards(spec, encoder)``.

    Takes the outputs of ``MatchFiles``, or a collection of ``InputRef`` elements, one for
    each record, and gives one ``Outcome``. A failure that no retry fixes is an outcome too:
    ``| RaiseIfFailed()`` raises it.

    Args:
        spec: Output and options of the build.
        encoder: Encodes references as records.
    """

    spec: SinkSpec
    encoder: Encoder[InputRef]

    def expand(
        self, inputs: MatchedInputs | beam.PCollection[InputRef]
    ) -> beam.PCollection[Outcome]:
        """Wires census, plan and placement."""
        spec, place = self.spec, self.spec.place
        matched = MatchedInputs.of(inputs)
        if spec.duplicates != "keep":
            matched = matched | "HandleDuplicates" >> HandleDuplicates(spec.duplicates)
        refs = matched.refs | "AssignSplits" >> beam.Map(place.with_split).with_output_types(
            InputRef
        )
        # The references are used twice: counted for the census, from which the plan is made, and
        # then placed by that plan. A runner stores them in between, so they are packed.
        packed = refs | "PackInputs" >> pack_all(INPUTS)

        def count(census: Census, ref: InputRef) -> None:
            census.add(ref, place.series_of(ref), grouped=place.in_group(ref))

        counted = refs | "CountInputs" >> singleton_sum(SumInto(Census, count))
        census = total_census(counted, matched)
        plan = census | "PlanParts" >> beam.Map(_plan_and_announce, spec, self.encoder)
        if spec.compares:
            packed, changes = packed | "ComparePublished" >> ComparePublished(plan, spec)
            plan = plan | "AddChanges" >> beam.Map(
                _add_changes, changes, AsSingleton(census), spec
            ).with_output_types(Plan)
        placed = packed | "PlaceInputs" >> beam.FlatMap(
            lambda some, plan: place_refs(place, unpack([some], INPUTS), plan), AsSingleton(plan)
        ).with_output_types(Placed)
        return BuildInput(placed, plan, census) | BuildShards(spec, self.encoder)


def total_census(inputs: AsSingleton, matched: MatchedInputs) -> beam.PCollection[Census]:
    """Return the census of the inputs, with the counts of matching."""
    return (
        matched.refs.pipeline
        | "StartCensus" >> beam.Impulse()
        | "AddMatchCounts"
        >> beam.Map(
            lambda _, census, counts: census.with_counts(counts), inputs, matched.sum_counts()
        ).with_output_types(Census)
    )


class BuildInput(NamedTuple):
    """The inputs of ``BuildShards``.

    Attributes:
        placed: References with their parts.
        plan: One ``Plan``.
        census: One ``Census`` of the inputs, for the manifest.
    """

    placed: beam.PCollection[Placed]
    plan: beam.PCollection[Plan]
    census: beam.PCollection[Census]


@dataclass(eq=False)
class BuildShards(beam.PTransform):
    """Writes parts from placed references and shards from parts, and publishes the shards.

    Takes ``BuildInput`` and gives one ``Outcome``.

    Args:
        spec: Output and options of the build.
        encoder: Encodes the references of a part as records.
    """

    spec: SinkSpec
    encoder: Encoder[Any]

    def expand(self, inputs: BuildInput) -> beam.PCollection[Outcome]:
        """Wires parts, shards and publication.

        Raises:
            UsageError: Another build of the pipeline has the same output, or one inside it.
        """
        spec, encoder = self.spec, self.encoder
        _claim_output(inputs.plan.pipeline, spec.output)
        plan, census = AsSingleton(inputs.plan), AsSingleton(inputs.census)
        parts = (
            inputs.placed
            | "PackPlaced" >> pack_values(PartKey, PLACED)
            | "GroupByPart" >> beam.GroupByKey()
            | "WriteParts" >> beam.Map(_write_part, plan, spec=spec, encoder=encoder)
        )
        totals = parts | "SumParts" >> beam.CombinePerKey(
            SumInto(Totals, lambda totals, part: totals.merge(part.totals))
        )
        files = parts | "ListPartFiles" >> beam.MapTuple(
            lambda series, part: (series, tuple(part.file))
        )
        planned = inputs.plan | "ListSeries" >> beam.FlatMap(_series)
        shards = (
            (planned, files)
            | "AddEmptySeries" >> beam.Flatten()
            | "GroupBySeries" >> beam.GroupByKey()
            | "PlanShards" >> beam.FlatMap(_shard_jobs, plan, spec=spec)
            | "SpreadShards" >> beam.Reshuffle()
            | "AssembleShards" >> beam.Map(_assemble, spec=spec, encoder=encoder)
        )
        copies = Copies()
        if spec.record_id:
            copies = shards | CountCopies(inputs.plan, spec)
        built = AsList(shards), AsList(totals)
        start = inputs.plan.pipeline | "Start" >> beam.Impulse()
        return start | "Publish" >> beam.Map(
            _finish, *built, plan, census, copies, spec=spec, encoder=encoder
        )


def _claim_output(pipeline: beam.Pipeline, output: str) -> None:
    """Check that no other build of a pipeline writes to an output, and remember it.

    Builds that run at the same time would publish over each other, or make one another fail.

    Raises:
        UsageError: Another one does.
    """
    folder = resolve_links(output)
    others = _OUTPUTS.setdefault(pipeline, [])
    for other in others:
        if f"{folder}/".startswith(f"{other}/") or other.startswith(f"{folder}/"):
            raise UsageError(
                f"Two builds of one pipeline write to {folder} and {other}: give each a separate "
                "folder, which is not inside that of the other."
            )
    others.append(folder)


def _series(plan: Plan) -> Iterator[tuple[tuple[str, str], None]]:
    """Yield each series to build, so that a series without records has shards too."""
    if plan.status == "build":
        for series in plan.parts:
            yield (series.split, series.label), None


def _shard_jobs(
    element: tuple[tuple[str, str], Iterable[FileValues | None]], plan: Plan, spec: SinkSpec
) -> Iterator[PlannedShard]:
    series, files = element
    part_files = [PartFile(*values) for values in files if values is not None]
    name = Series(*series)
    yield from plan_shards(spec.shards, name, plan.parts_of(name), part_files)
