"""BuildGraph: analyze training rows with TensorFlow Transform, once per build.

The graph of the first builder is stored and used by all.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import AsSingleton

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.errors import InputError, OutputError, StorageError, UsageError
from shardmill.schemas.refs import RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.schemas.storage import join, open_storage, scheme_of
from shardmill.schemas.storage.base import describe_failure, one_line
from shardmill.transforms.publish.generation import create_sidecar, find_sidecar, seal
from shardmill.transforms.runtime import progress
from shardmill.transforms.runtime.beam_steps import MapOrdered
from shardmill.transforms.sink.plan import Plan
from shardmill.transforms.sink.spec import ExtraFiles
from shardmill.transforms.tables.table import RowsSpec, place_batch, sample_batch
from shardmill.transforms.tables.table_source import TypedColumn, Unit, list_features
from shardmill.transforms.tables.tft import transformer
from shardmill.transforms.tables.tft.preprocessing import Preprocessing, describe
from shardmill.transforms.tables.tft.transformer import (
    copy_folder,
    list_files,
    to_record_batch,
    transformed_features,
    transformed_schema,
)

FOLDER = "transforms"
_TEMP = "temp"
# Errors that TensorFlow Transform raises while it runs or saves a graph.
_TRANSFORM_ERRORS = (
    re.compile(
        r'An error occurred while trying to apply the transformation: "(.*?)"\.\n', re.DOTALL
    ),
    re.compile(r"(Feature \S+ \(.*?\) had invalid (?:shape|dtype) .*?)(?: \[while running|\n|$)"),
    re.compile(r"(The order of analyzers in your `preprocessing_fn` .*?)(?: \[while|\n|$)"),
)
TRAIN = "train"
BATCH_ROWS = 8_192


@dataclass(frozen=True)
class StoredGraph:
    """The graph of a build.

    Two analyses of the same rows may give graphs that differ in bytes, and in the last bits of
    float sums. The name of the folder is unique and identifies the graph: runs that were encoded
    with another graph are not reused.

    Attributes:
        folder: Path of its folder, relative to the build folder.
        files: Paths of its files, relative to its folder.
        schema: Text of the schema.pbtxt of the transformed features.
    """

    folder: str
    files: tuple[str, ...]
    schema: str

    def extra_files(self) -> ExtraFiles:
        """Return the files that are published, their schema and features."""
        files = {f"{shard_names.TRANSFORM}/{file}": f"{self.folder}/{file}" for file in self.files}
        return ExtraFiles(files, self.schema, list_features(transformed_features(self.schema)))


def find_graph(build: str, input_id: str) -> StoredGraph | None:
    """Return the graph of a build, or None if there is none.

    A graph with missing files is forgotten, so that the analysis runs again.
    """
    storage = open_storage(build)

    def load(body: dict[str, Any]) -> StoredGraph | None:
        graph = StoredGraph(**{**body, "files": tuple(body["files"])})
        present = set(list_files(storage, join(build, graph.folder)))
        if present >= set(graph.files):
            return graph
        return None

    return find_sidecar(storage, sidecar_path(build, input_id), load)


def read_graph(build: str, input_id: str) -> StoredGraph:
    """Return the graph of a build.

    Raises:
        OutputError: There is none.
    """
    graph = find_graph(build, input_id)
    if graph is None:
        raise OutputError(f"{sidecar_path(build, input_id)} is gone: run again.")
    return graph


def store_graph(build: str, input_id: str, path: str) -> StoredGraph:
    """Make a finished graph the graph of a build, unless another builder was first.

    Args:
        build: The build folder; its name covers the preprocessing source and all versions.
        input_id: Identity of the inputs and of their ctimes.
        path: Folder of the graph, which is copied to the build folder if it is not in it; deleted
            if another graph is used.

    Returns:
        The graph that all builders use.
    """
    storage = open_storage(build)
    folder = join(FOLDER, path.rpartition("/")[2])
    if path != join(build, folder):
        copy_folder(path, join(build, folder))
        path = join(build, folder)
    graph = StoredGraph(folder, tuple(list_files(storage, path)), transformed_schema(path))
    winner = create_sidecar(
        storage,
        sidecar_path(build, input_id),
        seal(asdict(graph)),
        graph,
        lambda: find_graph(build, input_id),
    )
    if winner.folder != folder:
        storage.delete_tree(path)
    return winner


def sidecar_path(build: str, input_id: str) -> str:
    """Return the path of the sidecar that names the graph of a build."""
    return join(build, f"transform-{input_id}.json")


@dataclass(eq=False)
class AnalyzeRows(beam.PTransform):
    """Analyzes rows and writes the transform graph: ``batches | AnalyzeRows(...)``.

    Takes ``pa.RecordBatch`` elements of ``to_record_batch`` with at least one row in total: without
    rows some analyzers fail and others return meaningless values. Gives one element, the path of a
    finished TensorFlow Transform output directory for ``tft.TFTransformOutput``. The path is new in
    each run; a retried bundle writes the same files again.

    The result depends on the batches, and for quantiles on the order in which they are merged, as
    far as an analyzer rounds.

    Args:
        columns: The columns of the batches, in order.
        preprocessing: The preprocessing_fn; it is traced when the pipeline is constructed.
        scratch: A folder, local or gs://, that all workers share.

    Raises:
        StorageError: TensorFlow cannot write there.
        UsageError: The function cannot be traced.
    """

    columns: Sequence[Column]
    preprocessing: Preprocessing
    scratch: str

    def expand(self, pcoll: beam.PCollection[pa.RecordBatch]) -> beam.PCollection[str]:
        """Wire the analysis and the writing of its graph."""
        # TensorFlow is installed only for builds with --preprocessing.
        import tensorflow_transform.beam as tft_beam

        schema = format_schema(self.columns)
        config = transformer.adapter_config(schema)
        # A process caches the tables of a saved model by its path: each analysis needs its own.
        folder = join(self.scratch, f"transform-{uuid.uuid4().hex}")
        _make_folder(join(folder, _TEMP))
        # Each phase of the analysis reads the rows again instead of materializing them.
        with tft_beam.Context(
            temp_dir=join(folder, _TEMP), use_deep_copy_optimization=True, force_tf_compat_v1=False
        ):
            graph = (pcoll, config) | "AnalyzeDataset" >> tft_beam.AnalyzeDataset(
                self.preprocessing
            )
            written = graph | "WriteTransformFn" >> tft_beam.WriteTransformFn(folder)
        return written | "WriteRawSchema" >> beam.Map(
            _write_raw_schema, folder=folder, schema=schema
        ).with_output_types(str)


def _make_folder(path: str) -> None:
    """Make a folder as TensorFlow Transform will write its files.

    Raises:
        StorageError: TensorFlow cannot.
    """
    import tensorflow as tf

    try:
        tf.io.gfile.makedirs(path)
    except tf.errors.OpError as error:
        remedy = "let TensorFlow write there, on gs:// with Google's default credentials"
        raise StorageError(
            describe_failure(action="write", path=path, error=one_line(error), remedy=remedy)
        ) from error


def _write_raw_schema(_: Any, folder: str, schema: str) -> str:
    """Complete the output directory with the schema of the raw columns; return its path."""
    storage = open_storage(folder)
    path = join(folder, transformer.RAW_METADATA, transformer.SCHEMA_FILE)
    storage.replace(path, schema.encode())
    storage.delete_tree(join(folder, _TEMP))
    return folder


def filler_batch(columns: Sequence[Column]) -> pa.RecordBatch:
    """Return a batch with one artificial row, for an analysis whose result is discarded.

    ``AnalyzeRows`` needs a row even if an earlier graph is reused or nothing is built.
    """
    filler = []
    for column in columns:
        value = b"a" if column.kind == "bytes" else 1
        values = pa.array([value])
        filler.append(TypedColumn(column.name, column.kind, values))
    return transformer.to_record_batch(filler, np.zeros(1, np.int64))


def analysis_error(error: BaseException) -> InputError | None:
    """Explain an error of TensorFlow Transform in one sentence, or return None.

    Errors of the user's function while it is traced are ``UsageError`` already; this is for errors
    that occur when the traced graph runs on rows or is saved.
    """
    for pattern in _TRANSFORM_ERRORS:
        match = pattern.search(str(error))
        if match:
            problem = describe(ValueError(match.group(1))).partition(": ")[2]
            return InputError(
                f"The analysis of --preprocessing failed: {problem}; fix preprocessing_fn."
            )
    return None


@dataclass(eq=False)
class BuildGraph(beam.PTransform):
    """Analyzes the training rows: ``(ranges, plan) | BuildGraph(...)``.

    Gives the ``StoredGraph.folder`` of the graph that rows are transformed with, or an empty text
    if nothing is built. If an earlier attempt stored a graph, or nothing is to be built, no row is
    read.

    Args:
        spec: Options of the build.
        preprocessing: The user's preprocessing_fn.
        last: A side input, see ``sample_batch``; None for all rows.
    """

    spec: RowsSpec
    preprocessing: Preprocessing
    last: Any = None

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
            >> beam.ParDo(
                MapOrdered(train_batches, spec.threads), spec, AsSingleton(plan), self.last
            )
        )
        rows = (
            batches
            | "CountBatchRows" >> beam.Map(lambda batch: batch.num_rows)
            | "SumRows" >> beam.CombineGlobally(sum)
        )
        folder = batches | "AnalyzeRows" >> AnalyzeRows(
            spec.table.features, self.preprocessing, _scratch(ranges.pipeline, spec.sink.build)
        )
        return folder | "StoreGraph" >> beam.Map(
            choose_graph, spec=spec, plan=AsSingleton(plan), rows=AsSingleton(rows)
        )


def _scratch(pipeline: beam.Pipeline, build: str) -> str:
    """Return the folder that an analysis writes to.

    TensorFlow writes objects only to gs://, and with other credentials, so the runner of this
    process has a folder on its disk.

    Raises:
        UsageError: Workers on several machines have no folder that TensorFlow can write to.
    """
    # Workers of other runners do not need it.
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    scheme = scheme_of(build)
    if scheme and isinstance(pipeline.runner, FnApiRunner):
        return str(pipeline.local_tempdir)
    if scheme not in ("", "gs"):
        raise UsageError(
            f"--preprocessing cannot have its output on {scheme}:// with workers on other "
            "machines, where TensorFlow does not write: leave out --runner, or give an --output on "
            "gs:// or in a folder that all workers share."
        )
    return join(build, FOLDER)


def train_batches(
    task: Any, spec: RowsSpec, plan: Plan, last: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the training rows of a range, unless a graph is stored already.

    Args:
        task: The range, or None for the filler.
        spec: Options of the build.
        plan: The plan of the build.
        last: See ``sample_batch``; None for all rows.
    """
    stored = plan.status != "build" or find_graph(spec.sink.build, plan.read_id) is not None
    if task is None:
        if stored:  # the analysis fails without any row
            yield filler_batch(spec.table.columns)
        return
    unit = Unit(*task)
    progress.current().add_once((unit.ref[0], unit.start), unit.num_bytes)
    if stored:
        return
    try:
        for batch in spec.source.read(unit):
            sample = batch if last is None else sample_batch(spec.table, batch, last)
            table = place_batch(spec.table, sample)
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
    stored = find_graph(spec.sink.build, plan.read_id) if plan.status == "build" else None
    if plan.status != "build" or stored or not rows:
        open_storage(path).delete_tree(path)
    if plan.status != "build":
        _delete_empty(join(spec.sink.build, FOLDER), spec.sink.build)
        return ""
    if not stored and not rows:
        raise InputError(
            "No row is in the split train, which --preprocessing learns from: check --splits."
        )
    return (stored or store_graph(spec.sink.build, plan.read_id, path)).folder


def _delete_empty(*folders: str) -> None:
    """Delete folders in order, up to the first that is not empty."""
    for folder in folders:
        storage = open_storage(folder)
        if any(True for _ in storage.list_dir(folder)):
            return
        storage.delete_tree(folder)
