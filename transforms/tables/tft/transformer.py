"""Transformer: apply a TensorFlow Transform graph to typed columns.

TensorFlow is imported when a ``Transformer`` is created, not before.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.schemas.errors import InputError, OutputError
from shardmill.schemas.numbers import plural
from shardmill.schemas.schema_pbtxt.schema_text import Kind, kind_of, parse_proto, parse_schema_text
from shardmill.schemas.storage import Storage, join, open_storage, scheme_of
from shardmill.transforms.tables.byte_arrays import offsets_from_sizes
from shardmill.transforms.tables.encode import flatten
from shardmill.transforms.tables.table_source import ARROW_TYPES, TypedColumn
from shardmill.transforms.tables.tft.preprocessing import describe

# Folder names of tft.TFTransformOutput.
MODEL, METADATA, RAW_METADATA = "transform_fn", "transformed_metadata", "metadata"
SCHEMA_FILE = "schema.pbtxt"
_ARROW = {**ARROW_TYPES, "bytes": pa.large_binary()}
Offsets = np.ndarray | None
_LOCK = threading.Lock()


def to_record_batch(columns: Sequence[TypedColumn], order: np.ndarray) -> pa.RecordBatch:
    """Return rows as a record batch for TensorFlow Transform: a list of values per row and column.

    A missing value is an empty list.

    Args:
        columns: Columns of equal length.
        order: int64[m], indices of the rows to take.
    """
    lists = [_to_lists(column, order) for column in columns]
    return pa.RecordBatch.from_arrays(lists, names=[column.name for column in columns])


def _to_lists(column: TypedColumn, order: np.ndarray) -> pa.LargeListArray:
    values, offsets = flatten(column.take(order))
    if offsets is None:
        offsets = np.arange(len(values) + 1)
    return pa.LargeListArray.from_arrays(offsets, values.cast(_ARROW[column.kind]))


def transformed_schema(folder: str) -> str:
    """Return the text of the schema.pbtxt of the transformed features.

    Args:
        folder: A TensorFlow Transform output directory.
    """
    return _read_text(join(folder, METADATA, SCHEMA_FILE))


def transformed_features(schema: str) -> list[tuple[str, Kind]]:
    """Return name and kind of the features of a transformed schema, sorted by name."""
    return sorted(_typed_features(parse_schema_text(schema, "the transformed schema")))


def _typed_features(schema: Any) -> Iterator[tuple[str, Kind]]:
    for feature in schema.feature:
        kind = kind_of(feature)
        if kind:
            yield feature.name, kind


class Transformer:
    """Applies a transform graph to batches of rows like ``tft_beam.TransformDataset``.

    The constructor imports TensorFlow (6 s). ``apply`` is thread-safe. The graph runs on the CPU,
    so that workers with a GPU give the same values.

    Attributes:
        schema: Text of the schema.pbtxt of the transformed features.
        features: Name and kind of the features, sorted by name.
    """

    def __init__(self, folder: str) -> None:
        """Load a transform graph.

        Args:
            folder: A TensorFlow Transform output directory of ``AnalyzeRows``, local or gs://.
        """
        import tensorflow as tf
        from tfx_bsl.public.tfxio import TensorAdapter

        self._tf = tf
        self.schema = transformed_schema(folder)
        self.features = transformed_features(self.schema)
        proto = parse_proto(self.schema, folder)
        groups = proto.tensor_representation_group.values()
        self._ragged = {
            name: form.ragged_tensor.feature_path.step[0]
            for group in groups
            for name, form in group.tensor_representation.items()
            if form.HasField("ragged_tensor")
        }
        self._sparse = {sparse.name: sparse for sparse in proto.sparse_feature}
        config = adapter_config(_read_text(join(folder, RAW_METADATA, SCHEMA_FILE)))
        self._adapter = TensorAdapter(config)
        with tempfile.TemporaryDirectory(prefix="shardmill-") as copy:
            model = join(folder, MODEL)
            # TensorFlow reads objects with other credentials. Loading reads the vocabularies into
            # tables: the files are not needed afterwards.
            local = copy_folder(model, copy) if scheme_of(model) else model
            self._model = tf.saved_model.load(local)
        self._names = [field.name for field in config.arrow_schema]

    def apply(self, columns: Sequence[TypedColumn], order: np.ndarray) -> list[TypedColumn]:
        """Return the transformed features of rows, sorted by name.

        A feature with one value per row has one value per row; any other feature has one list per
        row (tensors of higher rank are flattened, as in a tf.train.Example).

        Args:
            columns: The analyzed columns, each once; others are ignored.
            order: int64[m], indices of the rows to take.

        Raises:
            InputError: The graph fails on a row, or a feature does not have one entry per row.
        """
        tf = self._tf
        by_name = {column.name: column for column in columns}
        batch = to_record_batch([by_name[name] for name in self._names], order)
        with tf.device("/CPU:0"):
            try:
                # The Keras layer of TFTransformOutput is ten times slower for small batches.
                outputs = self._model.transform_fn(self._adapter.ToBatchTensors(batch))
            except tf.errors.OpError as error:
                raise InputError(
                    "The transform of --preprocessing fails on some of the rows "
                    f"({describe(error)}): make preprocessing_fn accept all values of the columns."
                ) from error
            by_feature = {
                feature: (values, offsets)
                for name, tensor in outputs.items()
                for feature, values, offsets in self._features(name, tensor, batch.num_rows)
            }
        return [_to_column(name, kind, *by_feature[name]) for name, kind in self.features]

    def _features(self, name: str, tensor: Any, rows: int) -> Iterator[tuple[str, Any, Offsets]]:
        """Yield (feature name, values, offsets of the rows) of the features of an output tensor."""
        tf = self._tf
        if isinstance(tensor, tf.RaggedTensor):
            starts = tensor.row_splits.numpy()
            _check_rows(name, len(starts) - 1, rows)
            width = int(np.prod(tensor.values.shape[1:]))
            yield self._ragged.get(name, name), tensor.values, starts * width
        elif isinstance(tensor, tf.SparseTensor):
            _check_rows(name, int(tensor.dense_shape[0]), rows)
            indices = tensor.indices.numpy()
            starts = _row_offsets(name, indices, rows)
            sparse = self._sparse.get(name)
            if sparse is None:
                _check_no_gaps(name, indices, starts)
                yield name, tensor.values, starts
                return
            yield sparse.value_feature.name, tensor.values, starts
            for axis, index in enumerate(sparse.index_feature, 1):
                yield index.name, tensor.indices[:, axis], starts
        else:
            _check_rows(name, tensor.shape[0], rows)
            width = int(np.prod(tensor.shape[1:]))
            if width == 1:
                yield name, tensor, None
            else:
                yield name, tensor, np.arange(rows + 1) * width


_transformer = lru_cache(maxsize=2)(Transformer)


def transformer_of(folder: str) -> Transformer:
    """Return the transformer of a folder; each process creates it once."""
    with _LOCK:
        return _transformer(folder)


def adapter_config(schema: str) -> Any:
    """Return the TensorAdapterConfig of the record batches of ``to_record_batch``.

    Args:
        schema: Text of the schema.pbtxt of the columns.
    """
    from tfx_bsl.tfxio.tensor_adapter import TensorAdapterConfig
    from tfx_bsl.tfxio.tensor_representation_util import (
        InferTensorRepresentationsFromMixedSchema,
    )

    representations = InferTensorRepresentationsFromMixedSchema(parse_proto(schema, SCHEMA_FILE))
    kinds = _typed_features(parse_schema_text(schema, SCHEMA_FILE))
    fields = [(name, pa.large_list(_ARROW[kind])) for name, kind in kinds]
    return TensorAdapterConfig(pa.schema(fields), representations)


def _to_column(name: str, kind: Kind, tensor: Any, starts: Offsets) -> TypedColumn:
    values = pa.array(tensor.numpy().reshape(-1), ARROW_TYPES[kind])
    if isinstance(values, pa.ChunkedArray) or (starts is not None and starts[-1] >= 1 << 31):
        raise InputError(
            f"The feature {name!r} takes over 2 GiB in one batch of rows: make it smaller."
        )
    if starts is not None:
        values = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), values)
    return TypedColumn(name, kind, values)


def _check_rows(name: str, count: int, rows: int) -> None:
    if count != rows:
        raise InputError(
            f"preprocessing_fn returns {count:,} entries of the feature {name!r} for "
            f"{plural(rows, 'row')}: every feature must have one entry per row."
        )


def _row_offsets(name: str, indices: np.ndarray, rows: int) -> np.ndarray:
    """Return the offset of each row's values in a sparse tensor, int64[rows + 1]."""
    if np.any(indices[1:, 0] < indices[:-1, 0]):
        raise InputError(
            f"preprocessing_fn returns the sparse feature {name!r} with rows out of order: use "
            "tf.sparse.reorder."
        )
    return offsets_from_sizes(np.bincount(indices[:, 0], minlength=rows))


def _check_no_gaps(name: str, indices: np.ndarray, starts: np.ndarray) -> None:
    numbers = np.arange(len(indices)) - np.repeat(starts[:-1], np.diff(starts))
    if not np.array_equal(numbers, indices[:, 1]):
        raise InputError(
            f"preprocessing_fn returns the sparse feature {name!r} with gaps between the values of "
            "a row, which a record cannot store: make it dense with tf.sparse.to_dense, or set its "
            "shape with tft.experimental.annotate_sparse_output_shape."
        )


def copy_folder(folder: str, copy: str) -> str:
    """Copy the files of a folder to another storage; return the path of the copy."""
    source, target = open_storage(folder), open_storage(copy)
    for file in list_files(source, folder):
        target.replace(join(copy, file), source.read(join(folder, file)))
    return copy


def list_files(storage: Storage, folder: str) -> list[str]:
    """Return the paths of the files of a folder, relative to it."""
    root = len(folder.rstrip("/")) + 1
    return sorted(entry.path[root:] for entry in storage.walk(folder) if entry.kind == "file")


def _read_text(path: str) -> str:
    try:
        return open_storage(path).read(path).decode()
    except FileNotFoundError as error:
        raise OutputError(f"{path} is missing: run the build again.") from error
