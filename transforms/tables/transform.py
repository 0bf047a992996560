"""WriteRows: write files of rows as a published dataset.

Each range of a file is parsed, typed and encoded once, and written as a run. When the number of
parts is known, references to the segments of runs are grouped by part, and the build merges the
segments of each part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam import Flatten
from apache_beam.pvalue import AsIter, AsSingleton, TaggedOutput

from shardmill.schemas.errors import ResourceError, ShardmillError, StorageError
from shardmill.schemas.refs import InputRef, MatchCounts, RejectedError
from shardmill.schemas.storage import join, to_relative
from shardmill.transforms.match.transform import MatchedInputs
from shardmill.transforms.runtime import progress
from shardmill.transforms.runtime.beam_steps import MapOrdered, SumInto, singleton_sum
from shardmill.transforms.sink.census import Census
from shardmill.transforms.sink.placement import Placed, hash_key
from shardmill.transforms.sink.plan import Plan, compare_content
from shardmill.transforms.sink.spec import Outcome, SinkSpec
from shardmill.transforms.sink.transform import (
    BuildInput,
    BuildShards,
    announce,
    failure_of,
    total_census,
)
from shardmill.transforms.tables.encoder import RowEncoder
from shardmill.transforms.tables.run_writer import (
    RUN_LAYOUT,
    find_run,
    make_run,
    merge_runs,
    run_id,
    transform_table,
)
from shardmill.transforms.tables.segments import (
    Origin,
    Run,
    cut_rejects,
    cut_segments,
    place_rejects,
)
from shardmill.transforms.tables.table import (
    RowsSpec,
    count_file,
    last_rank,
    place_batch,
    plan_rows,
    rank_rows,
    sample_batch,
    smallest,
)
from shardmill.transforms.tables.table_source import TableInput, TableSource, Unit
from shardmill.transforms.tables.tft.build_graph import BuildGraph

RANGES, REJECTED_FILES, RUNS, MANY, COUNTS = "ranges", "rejected", "runs", "many", "counts"
_INSPECTIONS = 16
MAX_RUNS = 256  # that are merged to parts; more of them are merged to larger runs first


@dataclass(eq=False)
class WriteRows(beam.PTransform):
    """Writes files of rows as a published dataset: ``inputs | WriteRows(spec)``.

    Takes the outputs of ``MatchFiles``, or an ``InputRef`` for each file, and gives one
    ``Outcome``.

    Args:
        spec: Options of the build.
    """

    spec: RowsSpec

    def expand(
        self, inputs: MatchedInputs | beam.PCollection[InputRef]
    ) -> beam.PCollection[Outcome]:
        """Wire inspection of files, ranges, runs and the build."""
        spec, matched = self.spec, MatchedInputs.of(inputs)
        files = matched.refs | "InspectFiles" >> beam.ParDo(
            MapOrdered(inspect_input, _INSPECTIONS), spec.source
        )
        counted = files | "CountFiles" >> singleton_sum(SumInto(Census, count_file))
        census = total_census(counted, matched)
        planned = census | "PlanParts" >> beam.Map(plan_rows, spec)
        contents = files | "HashInputs" >> beam.ParDo(
            MapOrdered(hash_input, _INSPECTIONS), spec.source, AsSingleton(planned)
        )
        plan = planned | "CompareContent" >> beam.Map(
            announced,
            AsSingleton(census),
            AsIter(contents),
            spec.sink,
            reads=1 + (spec.preprocessing is not None) + (spec.limit is not None),
        )
        cut_files = files | "CutRanges" >> beam.ParDo(
            MapOrdered(cut, _INSPECTIONS), spec.source, AsSingleton(plan)
        ).with_outputs(REJECTED_FILES, COUNTS, main=RANGES)
        spread = cut_files[RANGES] | "SpreadRanges" >> beam.Reshuffle()
        made = spread | "WriteRuns" >> beam.ParDo(
            MapOrdered(write_runs, spec.threads), spec, *self._read_before(spread, plan)
        ).with_outputs(REJECTED_FILES, COUNTS, main=RUNS)
        rejected = {
            "Files": files,
            "Ranges": cut_files[REJECTED_FILES],
            "Runs": made[REJECTED_FILES],
        }
        # One Flatten: Flink's translation of a Flatten of the outputs of another one fails.
        placed = (
            *((made[RUNS], plan) | "CutSegments" >> CutSegments(spec.sink.runs)),
            *(
                inputs
                | f"PlaceRejected{name}"
                >> beam.FlatMap(place_rejected, AsSingleton(plan)).with_output_types(Placed)
                for name, inputs in rejected.items()
            ),
        ) | "AllPlaced" >> Flatten()
        files_only = census | "CountFilesWithoutRows" >> beam.Map(
            count_files, plan=AsSingleton(plan)
        )
        counts = (
            (files_only, made[COUNTS], cut_files[COUNTS])
            | "AllCounts" >> Flatten()
            | "SumCounts" >> beam.CombineGlobally(SumInto(Census, Census.merge))
        )
        encoder = RowEncoder(spec.source, dict(spec.versions))
        return BuildInput(placed, plan, counts) | BuildShards(spec.sink, encoder)

    def _read_before(self, units: Any, plan: Any) -> tuple[Any, Any]:
        """Wire the passes before rows are written; return ``last`` and ``graph`` for them."""
        spec, last, graph = self.spec, None, ""
        if spec.limit is not None:
            last = AsSingleton(
                units
                | "RankRows" >> beam.ParDo(MapOrdered(rank_rows, spec.threads), spec)
                | "MergeRanks" >> beam.CombineGlobally(partial(smallest, limit=spec.limit))
                | "FindLastRank" >> beam.Map(last_rank)
            )
        if spec.preprocessing is not None:
            built = BuildGraph(spec, spec.preprocessing, last)
            graph = AsSingleton((units, plan) | "BuildTransformGraph" >> built)
        return last, graph


def announced(
    plan: Plan, census: Census, contents: Iterable[Census], spec: SinkSpec, reads: int
) -> Plan:
    """Return the plan after the comparison of content, and set the total of the progress.

    Args:
        plan: The plan, by sizes and times.
        census: Census of the files.
        contents: See ``compare_content``.
        spec: Output and options of the build.
        reads: How often rows are read: again, if they are sampled or analysed first.
    """
    plan = compare_content(plan, contents, spec)
    size = sum(size for _, size in census.series.values())
    phase = "encoding" if reads == 1 else "reading"
    announce(spec, plan, phase, reads * size)
    return plan


def count_files(census: Census, plan: Plan) -> Census:
    """Return the counts of files without rows, which the counts of runs do not include."""
    if plan.status != "build":
        return census
    usable = census.refs - sum(census.errors.values())
    return Census(matched=census.matched - usable, counts=census.counts, files=census.files)


def inspect_input(ref: InputRef, source: TableSource) -> Iterator[TableInput]:
    """Inspect an input; see ``TableSource.inspect``."""
    yield source.inspect(ref)


def hash_input(item: TableInput, source: TableSource, plan: Plan) -> Iterator[Census]:
    """Yield the content of an input if the plan compares it; unreadable inputs have none."""
    if not plan.content_id or item.ref.error:
        return
    census = Census()
    try:
        for unit in source.units(item):
            census.merge(count_content(unit, source.content(unit)))
    except (MemoryError, ResourceError, StorageError) as error:
        census = Census(counts=MatchCounts(fatal=failure_of(error)))
    except (FileNotFoundError, RejectedError, ShardmillError):
        pass  # the next build reports it
    yield census


def count_content(unit: Unit, content: str) -> Census:
    """Return the census of the content of a unit alone."""
    key = InputRef(*unit.ref).key
    return Census(contents=int(run_id(key, unit.identity, content), 16))


def place_rejected(item: TableInput, plan: Plan) -> Iterator[Placed]:
    """Yield a rejected input with its part; nothing for other inputs."""
    if plan.status == "build" and item.ref.error:
        yield place_rejects(plan, item.ref)


def cut(
    item: TableInput, source: TableSource, plan: Plan
) -> Iterator[tuple[Any, ...] | TaggedOutput]:
    """Yield the units of an input as plain values; if it is rejected, the input and its count."""
    ref = item.ref
    if plan.status != "build" or ref.error:
        return
    try:
        yield from map(tuple, source.units(item))
    except RejectedError as rejection:
        yield from _rejected(ref, rejection)


def _rejected(ref: InputRef, rejection: RejectedError) -> Iterator[TaggedOutput]:
    rejected = ref.rejected(rejection.error, rejection.message)
    yield TaggedOutput(REJECTED_FILES, TableInput(rejected))
    yield TaggedOutput(COUNTS, Census(matched=1))


def write_runs(
    values: tuple[Any, ...], spec: RowsSpec, last: int | None = None, graph: str = ""
) -> Iterator[Any]:
    """Write the runs of a unit, or reuse finished ones; yield them and their counts.

    Args:
        values: The unit.
        spec: Options of the build.
        last: See ``sample_batch``; None for all rows.
        graph: Folder of a TensorFlow Transform graph in the build folder, or empty.
    """
    unit = Unit(*values)
    ref = InputRef(*unit.ref)

    def name_of(batch: int) -> str:
        digest = f"{ref.digest():032x}"
        sample = () if last is None else (last,)
        return run_id(RUN_LAYOUT, spec.sink.config_id, digest, unit.identity, batch, graph, *sample)

    finished = find_run(spec.sink.runs, name_of(0)) if unit.single else None
    if finished and finished.ctime != ref.ctime:
        finished = None  # until it is known that the content is the same
    batches: Iterable[Any] = spec.source.read(unit) if finished is None else [None]
    content = ""
    try:
        for number, batch in enumerate(batches):
            name = f"{ref.key}#{unit.start:016x}.{number:08x}"
            origin = Origin(name, ref.key, to_relative(ref.uri, spec.sink.root))
            run = finished or find_run(spec.sink.runs, name_of(number), batch.content)
            if run is None:
                chosen = batch if last is None else sample_batch(spec.table, batch, last)
                table = place_batch(spec.table, chosen)
                if graph:
                    label = spec.table.label_feature
                    table = transform_table(table, join(spec.sink.build, graph), label)
                run = make_run(spec.sink.runs, name_of(number), origin, table, chosen)
            current_progress = progress.current()
            current_progress.phase = "encoding"
            current_progress.add(unit.num_bytes, sum(run.rejects.values()))
            yield Run(origin.run, join(spec.sink.runs, run.payload), run.blocks)
            yield TaggedOutput(COUNTS, Census(matched=run.rows))
            content = run.content
            if unit.single:
                break
        yield TaggedOutput(COUNTS, count_content(unit, content))
    except RejectedError as rejection:
        yield from _rejected(ref._replace(key=f"{ref.key}@{unit.start}"), rejection)
    except (MemoryError, ShardmillError) as error:
        yield TaggedOutput(COUNTS, Census(counts=MatchCounts(fatal=failure_of(error))))


@dataclass(eq=False)
class CutSegments(beam.PTransform):
    """Gives the segments of runs with their parts: ``(runs, plan) | CutSegments(folder)``.

    More than ``MAX_RUNS`` runs are merged to as many first, so that no part reads more segments.
    The outputs are the segments of rejects of all runs, and the segments of records of the runs
    that are not merged, and of the merged ones.

    Args:
        folder: Folder of runs.
    """

    folder: str

    def expand(self, inputs: tuple[Any, Any]) -> tuple[beam.PCollection[Placed], ...]:
        """Wire the grouping and merging of runs."""
        (runs, plan), folder = inputs, self.folder
        count = runs | "CountRuns" >> beam.combiners.Count.Globally()
        grouped = runs | "GroupRuns" >> beam.FlatMap(group_run, AsSingleton(count)).with_outputs(
            MANY, main=RUNS
        )
        merged = (
            grouped[MANY]
            | "GroupByGroup" >> beam.GroupByKey()
            | "MergeRuns" >> beam.MapTuple(lambda group, some: merge_runs(folder, group, [*some]))
        )
        return tuple(
            collection
            | f"Place{name}" >> beam.FlatMap(cut, AsSingleton(plan)).with_output_types(Placed)
            for name, collection, cut in (
                ("Rejects", runs, cut_rejects),
                ("Runs", grouped[RUNS], cut_segments),
                ("MergedRuns", merged, cut_segments),
            )
        )


def group_run(run: Run, count: int) -> Iterator[Any]:
    """Yield a run; if there are too many, with the number of the group that it is merged in."""
    # The group follows from the run alone, so that no step must see all runs in order.
    group = hash_key(0, run.key).position % MAX_RUNS
    if count <= MAX_RUNS:
        yield run
    else:
        yield TaggedOutput(MANY, (group, run))
