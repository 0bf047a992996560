"""BuildGraph: analyze the training split once per build and store the resulting graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import AsSingleton

from shardmill.schemas.errors import InputError
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.runtime import progress
from shardmill.transforms.runtime.map_do_fn import MapOrdered
from shardmill.transforms.sink.plan import Plan
from shardmill.transforms.tables.rows_spec import RowsSpec
from shardmill.transforms.tables.table import place_batch
from shardmill.transforms.tables.table_source import Unit
from shardmill.transforms.tables.tft.analysis import AnalyzeRows, filler_batch
from shardmill.transforms.tables.tft.graph_store import FOLDER, find_graph, store_graph
from shardmill.transforms.tables.tft.preprocessing import Preprocessing
from shardmill.transforms.tables.tft.transformer import to_record_batch

TRAIN = "train"
BATCH_ROWS = 8_192


@dataclass(eq=False)
class BuildGraph(beam.PTransform):
    """Analyzes the training rows: ``(ranges, plan) | BuildGraph(...)``.

    Gives the ``StoredGraph.folder`` of the graph that rows are transformed with, or an empty text
    if nothing is built. If an earlier attempt stored a graph, or nothing is to be built, no row is
    read.

    Args:
        spec: Options of the build.
        preprocessing: The user's preprocessing_fn.
    """

    spec: RowsSpec
    preprocessing: Preprocessing

    def expand(self, pcolls: tuple[Any, Any]) -> beam.PCollection[str]:
        """Wire reading, analysis and storing."""
        ranges, plan = pcolls
        spec = self.spec
        # The phases of the analysis each re-read one PCollection of one step. A Flatten of batches
        # or a step that waits for a count would materialize the batches instead.
        filler = ranges.pipeline | "CreateFiller" >> beam.Create([None])
        batches = (
            (ranges, filler)
            | "AddFiller" >> beam.Flatten()
            | "ReadTrainingRows"
            >> beam.ParDo(MapOrdered(train_batches, spec.threads), spec, AsSingleton(plan))
        )
        rows = (
            batches
            | "CountBatchRows" >> beam.Map(lambda batch: batch.num_rows)
            | "SumRows" >> beam.CombineGlobally(sum)
        )
        folder = batches | "AnalyzeRows" >> AnalyzeRows(
            spec.table.columns, self.preprocessing, join(spec.sink.build, FOLDER)
        )
        return folder | "StoreGraph" >> beam.Map(
            choose_graph, spec=spec, plan=AsSingleton(plan), rows=AsSingleton(rows)
        )


def train_batches(task: Any, spec: RowsSpec, plan: Plan) -> Iterator[pa.RecordBatch]:
    """Yield the training rows of a range, unless a graph is stored already.

    Args:
        task: The range, or None for the filler.
        spec: Options of the build.
        plan: The plan of the build.
    """
    stored = plan.status != "build" or find_graph(spec.sink.build, plan.input_id) is not None
    if task is None:
        if stored:  # the analysis fails without any row
            yield filler_batch(spec.table.columns)
        return
    unit = Unit(*task)
    progress.current().add(unit.num_bytes)
    if stored:
        return
    try:
        for batch in spec.source.read(unit):
            table = place_batch(spec.table, batch)
            if TRAIN not in table.splits:
                continue
            chosen = np.sort(table.order[table.split == table.splits.index(TRAIN)])
            for start in range(0, len(chosen), BATCH_ROWS):
                yield to_record_batch(table.columns, chosen[start : start + BATCH_ROWS])
    except RejectedError:  # WriteRuns reports the same error
        return


def choose_graph(path: str, spec: RowsSpec, plan: Plan, rows: int) -> str:
    """Store a new graph, or delete it if the build has one or needs none; return the folder used.

    Raises:
        InputError: The training split has no rows.
    """
    stored = find_graph(spec.sink.build, plan.input_id) if plan.status == "build" else None
    if plan.status != "build" or stored or not rows:
        open_storage(path).delete_tree(path)
    if plan.status != "build":
        _delete_empty(join(spec.sink.build, FOLDER), spec.sink.build)
        return ""
    if not stored and not rows:
        raise InputError(
            f"No row is in the split {TRAIN}, which --preprocessing learns from: check --splits."
        )
    return (stored or store_graph(spec.sink.build, plan.input_id, path)).folder


def _delete_empty(*folders: str) -> None:
    """Delete folders in order, up to the first that is not empty."""
    for folder in folders:
        storage = open_storage(folder)
        if any(True for _ in storage.list_dir(folder)):
            return
        storage.delete_tree(folder)
