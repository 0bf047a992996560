"""AnalyzeRows: what TensorFlow Transform learns from the rows of the training split."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa

from shardmill.schemas.errors import InputError
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.columnar.typed_column import TypedColumn
from shardmill.transforms.rows.tft.apply import (
    RAW_METADATA,
    SCHEMA_FILE,
    adapter_config,
    to_record_batch,
)
from shardmill.transforms.rows.tft.preprocessing import FUNCTION, Preprocessing, describe

_TEMP = "temp"
_FILLERS: dict[Kind, pa.Array] = {
    "int64": pa.array([1], pa.int64()),
    "float32": pa.array([1.0], pa.float32()),
    "bytes": pa.array([b"a"], pa.binary()),
}
# What TensorFlow Transform's own code says while it runs or saves a transform.
_TRANSFORM_ERRORS = (
    re.compile(
        r'An error occurred while trying to apply the transformation: "(.*?)"\.\n', re.DOTALL
    ),
    re.compile(r"(Feature \S+ \(.*?\) had invalid (?:shape|dtype) .*?)(?: \[while running|\n|$)"),
    re.compile(r"(The order of analyzers in your `preprocessing_fn` .*?)(?: \[while|\n|$)"),
)


@dataclass(eq=False)
class AnalyzeRows(beam.PTransform):
    """Analyses rows and writes what was learnt: ``batches | AnalyzeRows(...)``.

    Takes ``pa.RecordBatch`` elements as ``to_record_batch`` makes them of the columns, of one row
    at least in all: some analysers fail where there is none, others learn nonsense. Gives one
    element, the path of a finished TensorFlow Transform output directory, which
    ``tft.TFTransformOutput`` reads. It is new in each run and each retry that runs it again
    writes the same to it.

    The result depends on how rows are batched, and for quantiles on the order in which batches
    are merged, where an analyser rounds: keep both fixed to learn the same again.

    Args:
        columns: The columns of the batches, in their order.
        preprocessing: The function that is analysed; it is traced when the pipeline is built.
        scratch: A folder, local or gs://, that all workers share.

    Raises:
        UsageError: The function cannot be traced.
    """

    columns: Sequence[Column]
    preprocessing: Preprocessing
    scratch: str

    def expand(self, pcoll: beam.PCollection[pa.RecordBatch]) -> beam.PCollection[str]:
        """Wires TensorFlow Transform's analysis and what is written."""
        # Only builds with --preprocessing have TensorFlow installed.
        import tensorflow_transform.beam as tft_beam

        schema = format_schema(self.columns)
        config = adapter_config(schema)
        # The tables of a saved model are known in a process by the path that they were made from,
        # so no two analyses may share one.
        folder = join(self.scratch, f"transform-{uuid.uuid4().hex}")
        # Rows are read again for each phase rather than kept.
        with tft_beam.Context(
            temp_dir=join(folder, _TEMP), use_deep_copy_optimization=True, force_tf_compat_v1=False
        ):
            learnt = (pcoll, config) | "Analyze" >> tft_beam.AnalyzeDataset(self.preprocessing)
            written = learnt | "WriteTransform" >> tft_beam.WriteTransformFn(folder)
        return written | "Finish" >> beam.Map(
            _finish, folder=folder, schema=schema
        ).with_output_types(str)


def _finish(_: Any, folder: str, schema: str) -> str:
    """Completes the output directory with what the input was."""
    storage = open_storage(folder)
    storage.replace(join(folder, RAW_METADATA, SCHEMA_FILE), schema.encode())
    storage.delete_tree(join(folder, _TEMP))
    return folder


def filler_batch(columns: Sequence[Column]) -> pa.RecordBatch:
    """Returns a batch of one made-up row, for an analysis whose result nobody will use.

    A pipeline that finds its analysis done, or nothing to build, must still feed ``AnalyzeRows``
    one row.
    """
    index = np.zeros(1, np.int32)
    return to_record_batch(
        [TypedColumn(column.name, column.kind, _FILLERS[column.kind], index) for column in columns]
    )


def analysis_error(error: BaseException) -> InputError | None:
    """Returns the plain sentence for what TensorFlow Transform raised, or None for other errors.

    What the user's function itself raises is a ``UsageError`` from the start; this is for what
    shows only when the traced graph meets rows, or is saved.
    """
    for pattern in _TRANSFORM_ERRORS:
        found = pattern.search(str(error))
        if found:
            problem = describe(ValueError(found.group(1))).partition(": ")[2]
            return InputError(
                f"The analysis of --preprocessing failed: {problem}; mend {FUNCTION}."
            )
    return None
