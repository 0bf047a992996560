"""WriteRows: write files of rows as a published dataset.

Each range of a file is parsed, typed and encoded once, and written as a run. References to the
segments of runs are grouped by part, and the build merges the segments of each part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsSingleton, TaggedOutput

import shardmill.transforms.sink.coders  # noqa: F401 - registers the coders
from shardmill.schemas.errors import ResourceError, StorageError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.match.counts import MatchCounts
from shardmill.transforms.match.transform import MatchedInputs
from shardmill.transforms.rows.csv.row_ranges import RowRange, split_ranges
from shardmill.transforms.rows.encoder import RowEncoder
from shardmill.transforms.rows.planning import count_file, plan_rows
from shardmill.transforms.rows.probe import inspect_file
from shardmill.transforms.rows.rows_spec import RowsSpec
from shardmill.transforms.rows.runs import run_writer
from shardmill.transforms.rows.tft.build_graph import BuildGraph
from shardmill.transforms.runtime import progress
from shardmill.transforms.runtime.map_do_fn import MapOrdered
from shardmill.transforms.runtime.sum_into import SumInto, singleton_sum
from shardmill.transforms.sink.census import Census
from shardmill.transforms.sink.outcome import Outcome
from shardmill.transforms.sink.placement import Placed
from shardmill.transforms.sink.planning import Plan
from shardmill.transforms.sink.transform import (
    BuildInput,
    BuildShards,
    announce,
    failure_of,
    total_census,
)

RANGES, REJECTED_FILES, SEGMENTS, COUNTS = "ranges", "rejected", "segments", "counts"
_INSPECTIONS = 16
# A range of a file as plain values: InputRef, column names and RowRange. Crosses a shuffle.
RangeTask = tuple[tuple[Any, ...], tuple[str, ...], tuple[int, int, int]]


@dataclass(eq=False)
class WriteRows(beam.PTransform):
    """Writes files of rows as a published dataset: ``inputs | WriteRows(spec)``.

    Takes the outputs of ``MatchFiles``, or an ``InputRef`` for each file, and gives one
    ``Outcome``.

    Args:
        spec: What is written, where, and how.
    """

    spec: RowsSpec

    def expand(
        self, inputs: MatchedInputs | beam.PCollection[InputRef]
    ) -> beam.PCollection[Outcome]:
        """Wire inspection of files, ranges, runs and the build."""
        spec, matched = self.spec, MatchedInputs.of(inputs)
        files = matched.refs | "InspectFiles" >> beam.ParDo(
            MapOrdered(inspect_file, _INSPECTIONS), spec
        )
        counted = files | "CountFiles" >> singleton_sum(SumInto(Census, count_file))
        census = total_census(counted, matched)
        plan = census | "PlanParts" >> beam.Map(lambda census: announced(spec, census))
        found = files | "CutRanges" >> beam.ParDo(
            MapOrdered(cut, _INSPECTIONS), spec, AsSingleton(plan)
        ).with_outputs(REJECTED_FILES, COUNTS, main=RANGES)
        spread = found[RANGES] | "SpreadRanges" >> beam.Reshuffle()
        graph = []
        if spec.preprocessing is not None:
            built = (spread, plan) | "BuildTransformGraph" >> BuildGraph(spec, spec.preprocessing)
            graph.append(AsSingleton(built))
        made = spread | "WriteRuns" >> beam.ParDo(
            MapOrdered(write_runs, spec.threads), spec, AsSingleton(plan), *graph
        ).with_outputs(COUNTS, main=SEGMENTS)
        rejected = files | "PlaceRejectedFiles" >> beam.FlatMap(
            place_rejected_file, plan=AsSingleton(plan)
        )
        placed = (
            (made[SEGMENTS], found[REJECTED_FILES], rejected)
            | "AllPlaced" >> beam.Flatten()
            | "TypePlaced" >> beam.Map(lambda item: item).with_output_types(Placed)
        )
        files_only = census | "CountFilesWithoutRows" >> beam.Map(
            count_files, plan=AsSingleton(plan)
        )
        counts = (
            (files_only, made[COUNTS], found[COUNTS])
            | "AllCounts" >> beam.Flatten()
            | "SumCounts" >> beam.CombineGlobally(SumInto(Census, Census.merge))
        )
        encoder = RowEncoder(spec.table, dict(spec.versions))
        return BuildInput(placed, plan, counts) | BuildShards(spec.sink, encoder)


def announced(spec: RowsSpec, census: Census) -> Plan:
    """Return the plan, and set the total of the progress display."""
    plan = plan_rows(spec, census)
    size = sum(size for _, size in census.series.values())
    if spec.preprocessing is None:
        announce(spec.sink, plan, "encoding", size)
    else:  # rows are read twice
        announce(spec.sink, plan, "analysing", 2 * size)
    return plan


def count_files(census: Census, plan: Plan) -> Census:
    """Return the counts of files without rows, which the counts of runs do not include."""
    if plan.status != "build":
        return census
    usable = census.refs - sum(census.errors.values())
    return Census(matched=census.matched - usable, counts=census.counts)


def place_rejected_file(file: run_writer.CsvFile, plan: Plan) -> Iterator[Placed]:
    """Yield a rejected file with its part; nothing for other files."""
    if plan.status == "build" and file.ref.error:
        yield run_writer.place_rejects(plan, file.ref)


def cut(file: run_writer.CsvFile, spec: RowsSpec, plan: Plan) -> Iterator[RangeTask | TaggedOutput]:
    """Yield the ranges of a file; if it is rejected, its part and its count."""
    ref = file.ref
    if plan.status != "build" or ref.error:
        return
    try:
        run_writer.check_unchanged(ref)
        for part in split_ranges(ref.uri, spec.dialect_of(ref), spec.range_bytes):
            yield tuple(ref), file.columns, tuple(part)
    except RejectedError as rejection:
        rejected = ref.rejected(rejection.error, rejection.message)
        yield TaggedOutput(REJECTED_FILES, run_writer.place_rejects(plan, rejected))
        yield TaggedOutput(COUNTS, Census(matched=1))


def write_runs(task: RangeTask, spec: RowsSpec, plan: Plan, graph: str = "") -> Iterator[Any]:
    """Write the runs of a range, or reuse finished ones; yield their segments and counts.

    Args:
        task: The range.
        spec: What is written.
        plan: Number of parts of each split.
        graph: Folder of a TensorFlow Transform graph in the build folder, or empty.
    """
    ref, row_range = InputRef(*task[0]), RowRange(*task[2])
    file = run_writer.CsvFile(ref, task[1])

    def run_name(piece: int) -> str:
        place = (row_range.start, row_range.end, piece)
        return run_writer.run_id(spec, plan, ref, place, graph)

    # A range with an end is one piece: if its run exists, the range need not be read.
    finished = run_writer.find_run(spec.runs, run_name(0)) if row_range.end >= 0 else None
    pieces: Iterable[Any] = [None]
    if finished is None:
        pieces = run_writer.read_cells(spec, file, row_range)
    try:
        for number, cells in enumerate(pieces):
            name = run_name(number)
            run = (
                finished
                or run_writer.find_run(spec.runs, name)
                or run_writer.make_run(spec, plan, file, name, cells, graph)
            )
            rejects = sum(run.rejects.values())
            shown = progress.current()
            shown.phase = "encoding"
            shown.add(spec.size_of(row_range), rejects)
            yield from run_writer.place_segments(spec, plan, ref, (row_range.start, number), run)
            yield TaggedOutput(COUNTS, Census(matched=run.rows))
            if row_range.end >= 0:
                return
    except RejectedError as rejection:
        rejected = ref.rejected(rejection.error, rejection.message)
        rejected = rejected._replace(key=f"{ref.key}@{row_range.start}")
        yield run_writer.place_rejects(plan, rejected)
        yield TaggedOutput(COUNTS, Census(matched=1))
    except (MemoryError, ResourceError, StorageError) as error:
        yield TaggedOutput(COUNTS, Census(counts=MatchCounts(fatal=failure_of(error))))
