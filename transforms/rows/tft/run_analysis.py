"""Learn: the analysis of the training split, made once for a build."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import AsSingleton

from shardmill.schemas.errors import InputError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.build.planning import Plan
from shardmill.transforms.rows.csv.row_ranges import RowRange
from shardmill.transforms.rows.runs.make import CsvFile, RunSpec, read_cells
from shardmill.transforms.rows.table import make_table
from shardmill.transforms.rows.tft.analyze import AnalyzeRows, filler_batch
from shardmill.transforms.rows.tft.apply import to_record_batch
from shardmill.transforms.rows.tft.graph_store import FOLDER, find_pointer, keep
from shardmill.transforms.rows.tft.preprocessing import Preprocessing
from shardmill.transforms.runtime import progress
from shardmill.transforms.runtime.map_ordered import MapAhead

TRAIN = "train"
BATCH_ROWS = 8_192


class Learnt(NamedTuple):
    """The graph that rows go through.

    Attributes:
        path: Its folder.
        digest: What it makes of rows.
    """

    path: str
    digest: str


@dataclass(eq=False)
class Learn(beam.PTransform):
    """Analyses the rows of the training split: ``(ranges, plan) | Learn(...)``; gives a ``Learnt``.

    Where an earlier attempt's graph is found, or nothing is to be built, no row is read.

    Args:
        spec: How ranges are read.
        preprocessing: What is done to rows.
        threads: Ranges that a worker reads at a time.
        invocation: Identity of this run, so that its progress can be watched.
    """

    spec: RunSpec
    preprocessing: Preprocessing
    threads: int
    invocation: str = ""

    def expand(self, pcolls: tuple[Any, Any]) -> beam.PCollection[Learnt]:
        """Wires reading, analysis and keeping."""
        ranges, plan = pcolls
        spec = self.spec
        # One collection from one step, which the analysis reads anew in each of its phases: what
        # is joined from several, or waits for a count, would be held in memory instead.
        more = ranges.pipeline | "Filler" >> beam.Create([None])
        batches = (
            (ranges, more)
            | "AllRanges" >> beam.Flatten()
            | "TrainRows"
            >> beam.ParDo(
                MapAhead(train_batches, self.threads), spec, AsSingleton(plan), self.invocation
            )
        )
        rows = (
            batches
            | "Rows" >> beam.Map(lambda batch: batch.num_rows)
            | "CountRows" >> beam.CombineGlobally(sum)
        )
        folder = batches | "Analyze" >> AnalyzeRows(
            spec.table.columns, self.preprocessing, join(spec.build, FOLDER)
        )
        return folder | "Keep" >> beam.Map(
            keep_learnt, spec=spec, plan=AsSingleton(plan), rows=AsSingleton(rows)
        )


def train_batches(
    task: Any, spec: RunSpec, plan: Plan, invocation: str = ""
) -> Iterator[pa.RecordBatch]:
    """Yields the training rows of a range, unless they were analysed before.

    Args:
        task: The range, or None for the filler.
        spec: How ranges are read.
        plan: What is to be done.
        invocation: Identity of this run.
    """
    known = plan.status != "build" or find_pointer(spec.build, plan.input_id) is not None
    if task is None:
        # The analysis needs a row, also where nobody will use what it learns.
        if known:
            yield filler_batch(spec.table.columns)
        return
    watched = progress.progress_of(invocation)
    if watched is not None:
        watched.add(spec.size_of(RowRange(*task[2])), 0)
    if known:
        return
    ref = InputRef(*task[0])
    file = CsvFile(ref, task[1])
    try:
        for cells in read_cells(spec, file, RowRange(*task[2])):
            table = make_table(spec.table, ref, cells, plan)
            if TRAIN not in table.splits:
                continue
            chosen = np.sort(table.order[table.split == table.splits.index(TRAIN)])
            for start in range(0, len(chosen), BATCH_ROWS):
                yield to_record_batch(table.columns, chosen[start : start + BATCH_ROWS])
    except RejectedError:  # WriteRuns meets it too and says so
        return


def keep_learnt(path: str, spec: RunSpec, plan: Plan, rows: int) -> Learnt:
    """Makes the graph the build's, unless it has one.

    Raises:
        InputError: There was nothing to learn from.
    """
    if plan.status != "build":
        open_storage(path).delete_tree(path)
        remove_empty(join(spec.build, FOLDER), spec.build)
        return Learnt("", "")
    known = find_pointer(spec.build, plan.input_id)
    if known is not None:
        open_storage(path).delete_tree(path)
    elif not rows:
        open_storage(path).delete_tree(path)
        raise InputError(
            f"No row is in the split {TRAIN}, which --preprocessing learns from: check --splits."
        )
    pointer = known or keep(spec.build, plan.input_id, path)
    return Learnt(join(spec.build, pointer.folder), pointer.digest)


def remove_empty(*folders: str) -> None:
    """Removes folders, each after what it holds, up to the first that holds something."""
    for folder in folders:
        storage = open_storage(folder)
        if any(True for _ in storage.list_dir(folder)):
            return
        storage.delete_tree(folder)
