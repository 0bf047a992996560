"""Applying what TensorFlow Transform learnt: typed columns in, typed columns of features out.

TensorFlow is imported when a ``Transformer`` is made, never before.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from shardmill.schemas.errors import InputError, OutputError
from shardmill.schemas.schema_pbtxt.schema_text import Kind, parse_proto, parse_schema_text
from shardmill.schemas.storage import join, open_storage, scheme_of
from shardmill.transforms.columnar.typed_column import TypedColumn
from shardmill.transforms.rows.tft.preprocessing import FUNCTION, describe

# The folders that tft.TFTransformOutput looks for.
MODEL, METADATA, RAW_METADATA = "transform_fn", "transformed_metadata", "metadata"
SCHEMA_FILE = "schema.pbtxt"
_ARROW: dict[Kind, pa.DataType] = {
    "int64": pa.int64(),
    "float32": pa.float32(),
    "bytes": pa.large_binary(),
}
Offsets = np.ndarray | None
_LOCK = threading.Lock()


class Feature(NamedTuple):
    """A transformed feature, as the manifest lists it."""

    name: str
    kind: Kind


def arrow_type(kind: Kind) -> pa.DataType:
    """Returns the type of a column in the record batches that TensorFlow Transform takes."""
    return pa.large_list(_ARROW[kind])


def to_record_batch(
    columns: Sequence[TypedColumn], order: np.ndarray | None = None
) -> pa.RecordBatch:
    """Returns typed columns as TensorFlow Transform takes them: a list of values a row.

    A missing value is an empty list. Nothing is copied row by row in Python.

    Args:
        columns: Of the same number of rows.
        order: int64[m]: the rows to take, in this order; by default all.
    """
    lists = [_lists(column, order) for column in columns]
    return pa.RecordBatch.from_arrays(lists, names=[column.name for column in columns])


def _lists(column: TypedColumn, order: np.ndarray | None) -> pa.Array:
    rows = column.indices
    if order is not None:
        rows = order if rows is None else rows[order]
    values, kind = column.values, arrow_type(column.kind)
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        if rows is not None:
            # A list that is missing is an empty one, which stands behind all others.
            ended = pa.concat_arrays([values, pa.array([[]], values.type)])
            values = ended.take(pa.array(np.where(rows < 0, len(values), rows)))
        return values.cast(kind)
    flat = values.cast(kind.value_type)
    if rows is None:
        return pa.LargeListArray.from_arrays(np.arange(len(flat) + 1, dtype=np.int64), flat)
    present = rows >= 0
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(present, out=offsets[1:])
    taken = flat.take(pa.array(rows if offsets[-1] == len(rows) else rows[present]))
    return pa.LargeListArray.from_arrays(offsets, taken)


def transformed_schema(folder: str) -> str:
    """Returns the text of the schema.pbtxt of the transformed features.

    Args:
        folder: A TensorFlow Transform output directory.
    """
    return _read_text(join(folder, METADATA, SCHEMA_FILE))


def transformed_features(schema: str) -> list[Feature]:
    """Returns the features that the text of a transformed schema names, sorted by name."""
    features = parse_schema_text(schema, "the transformed schema").features
    return sorted(Feature(each.name, each.kind) for each in features if each.kind)


def transform_digest(folder: str) -> str:
    """Returns 32 hexadecimal digits that stand for what a transform makes of rows.

    They are the same for the same graph, constants and vocabularies, although no two
    saved_model.pb are: names of functions and of tables in them have counters and temporary paths.

    Args:
        folder: A TensorFlow Transform output directory, local or gs://.
    """
    digest = hashlib.blake2b(digest_size=16)
    storage = open_storage(folder)
    root = join(folder, MODEL)
    names = [e.path[len(root) + 1 :] for e in storage.walk(root) if e.kind == "file"]
    for name in sorted(names):
        if name == "fingerprint.pb":  # has a random identity
            continue
        data = storage.read(join(root, name))
        data = _canonical_model(data) if name == "saved_model.pb" else data
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    proto = parse_proto(transformed_schema(folder), folder)
    digest.update(proto.SerializeToString(deterministic=True))
    return digest.hexdigest()


def _canonical_model(data: bytes) -> bytes:
    """Returns a SavedModel's graphs without what differs from run to run."""
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel.FromString(data)
    parts = []
    for meta in model.meta_graphs:
        functions = list(meta.graph_def.library.function)
        functions.sort(key=lambda function: _by_counter(function.signature.name))
        names = [function.signature.name for function in functions]
        renamed = {name: f"{_by_counter(name)[1]}#{rank}" for rank, name in enumerate(names)}
        for function in functions:
            _rename_function(function, renamed)
        for node in meta.graph_def.node:
            _rename_node(node, renamed, {})
        parts += [*meta.graph_def.node, *functions, *meta.asset_file_def]
    texts = [part.SerializeToString(deterministic=True) for part in parts]
    return b"".join(len(text).to_bytes(8, "little") + text for text in texts)


def _by_counter(name: str) -> tuple[int, str]:
    """Returns the counter that ends a function's name, which grows as functions are traced."""
    stem, _, counter = name.rpartition("_")
    return (int(counter), stem) if counter.isdecimal() else (-1, name)


def _rename_function(function: Any, renamed: dict[str, str]) -> None:
    """Names a function by rank, and its arguments by place: captured ones have counters."""
    function.signature.name = renamed[function.signature.name]
    arguments = {}
    for place, argument in enumerate(function.signature.input_arg):
        arguments[argument.name] = argument.name = f"argument#{place}"
    for attributes in function.arg_attr.values():
        attributes.attr.pop("_user_specified_name", None)
    for node in function.node_def:
        _rename_node(node, renamed, arguments)
    for key, value in function.ret.items():
        function.ret[key] = arguments.get(value, value)
    # Nodes stand in the order of Python sets; their inputs say what comes before what.
    nodes = sorted(function.node_def, key=lambda node: str(node.name))
    del function.node_def[:]
    function.node_def.extend(nodes)


def _rename_node(node: Any, functions: dict[str, str], arguments: dict[str, str]) -> None:
    node.op = functions.get(node.op, node.op)
    inputs = [arguments.get(name, name) for name in node.input if not name.startswith("^")]
    node.input[:] = inputs + sorted(name for name in node.input if name.startswith("^"))
    for key in ("shared_name", "_gradient_op_type", "_user_specified_name"):
        node.attr.pop(key, None)
    for value in node.attr.values():
        for function in (value.func, *value.list.func):
            if function.name in functions:
                function.name = functions[function.name]


class Transformer:
    """Applies a saved transform to batches of rows, as ``tft_beam.TransformDataset`` does.

    Making one imports TensorFlow (6 s). ``apply`` may be called by several threads at once; the
    transform runs on the CPU, so that a worker with a GPU gives the same values.

    Attributes:
        schema: Text of the schema.pbtxt of the transformed features.
        features: The features, sorted by name.
    """

    def __init__(self, folder: str) -> None:
        """Loads a transform.

        Args:
            folder: A TensorFlow Transform output directory as ``AnalyzeRows`` gives it, local or
                gs://.
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
            # Vocabularies are read into tables here: the files are not needed again.
            self._model = tf.saved_model.load(_fetch(model, copy) if scheme_of(model) else model)
        self._names = [field.name for field in config.arrow_schema]

    def apply(
        self, columns: Sequence[TypedColumn], order: np.ndarray | None = None
    ) -> list[TypedColumn]:
        """Returns the transformed features of rows, sorted by name.

        A feature with one value a row has these as its values, without indices; any other has a
        list a row (tensors of more dimensions are flattened, as in a tf.train.Example).

        Args:
            columns: The columns that were analysed, each once; others are left aside.
            order: int64[m]: the rows to take, in this order; by default all.

        Raises:
            InputError: The transform fails on a row, or gives no feature of one entry a row.
        """
        tf = self._tf
        by_name = {column.name: column for column in columns}
        batch = to_record_batch([by_name[name] for name in self._names], order)
        with tf.device("/CPU:0"):
            try:
                # A Keras layer around it would take ten times as long for small batches.
                outputs = self._model.transform_fn(self._adapter.ToBatchTensors(batch))
            except tf.errors.OpError as error:
                raise InputError(
                    f"The transform of --preprocessing fails on some of the rows "
                    f"({describe(error)}): make {FUNCTION} take what the columns hold."
                ) from error
            found = {
                piece: (values, starts)
                for name, tensor in outputs.items()
                for piece, values, starts in self._pieces(name, tensor, batch.num_rows)
            }
        return [_typed(feature, *found[feature.name]) for feature in self.features]

    def _pieces(self, name: str, tensor: Any, rows: int) -> Iterator[tuple[str, Any, Offsets]]:
        """Yields what a tensor is written as: name of the feature, its values, where rows start."""
        tf = self._tf
        if isinstance(tensor, tf.RaggedTensor):
            starts = tensor.row_splits.numpy()
            _check_rows(name, len(starts) - 1, rows)
            width = int(np.prod(tensor.values.shape[1:]))
            yield self._ragged.get(name, name), tensor.values, starts * width
        elif isinstance(tensor, tf.SparseTensor):
            _check_rows(name, int(tensor.dense_shape[0]), rows)
            indices = tensor.indices.numpy()
            starts = _starts(name, indices, rows)
            sparse = self._sparse.get(name)
            if sparse is None:
                _check_no_gaps(name, indices, starts)
            yield sparse.value_feature.name if sparse else name, tensor.values, starts
            for place, index in enumerate(sparse.index_feature if sparse else (), 1):
                yield index.name, tensor.indices[:, place], starts
        else:
            _check_rows(name, tensor.shape[0], rows)
            width = int(np.prod(tensor.shape[1:]))
            yield name, tensor, None if width == 1 else np.arange(rows + 1) * width


@lru_cache(maxsize=2)
def _transformer(folder: str) -> Transformer:
    return Transformer(folder)


def transformer_of(folder: str) -> Transformer:
    """Returns the transformer of a folder, made once in each process."""
    with _LOCK:
        return _transformer(folder)


def adapter_config(schema: str) -> Any:
    """Returns the TensorAdapterConfig of record batches of columns, as ``to_record_batch`` makes.

    Args:
        schema: Text of the schema.pbtxt of the columns.
    """
    from tfx_bsl.tfxio.tensor_adapter import TensorAdapterConfig
    from tfx_bsl.tfxio.tensor_representation_util import (
        InferTensorRepresentationsFromMixedSchema,
    )

    representations = InferTensorRepresentationsFromMixedSchema(parse_proto(schema, SCHEMA_FILE))
    features = parse_schema_text(schema, SCHEMA_FILE).features
    fields = [(each.name, arrow_type(each.kind)) for each in features if each.kind]
    return TensorAdapterConfig(pa.schema(fields), representations)


def _typed(feature: Feature, tensor: Any, starts: Offsets) -> TypedColumn:
    kind = pa.binary() if feature.kind == "bytes" else _ARROW[feature.kind]
    values = pa.array(tensor.numpy().reshape(-1), kind)
    if isinstance(values, pa.ChunkedArray) or (starts is not None and starts[-1] >= 1 << 31):
        raise InputError(
            f"The feature {feature.name!r} takes over 2 GiB in one batch of rows: make it smaller."
        )
    if starts is not None:
        values = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), values)
    return TypedColumn(feature.name, feature.kind, values, None)


def _check_rows(name: str, found: int, rows: int) -> None:
    if found != rows:
        raise InputError(
            f"{FUNCTION} gives {found:,} entries of the feature {name!r} for {rows:,} rows: every "
            "feature must have one entry a row."
        )


def _starts(name: str, indices: np.ndarray, rows: int) -> np.ndarray:
    """Returns where each row's values start among those of a sparse tensor."""
    if np.any(indices[1:, 0] < indices[:-1, 0]):
        raise InputError(
            f"{FUNCTION} gives the sparse feature {name!r} with its rows out of order: "
            "use tf.sparse.reorder."
        )
    starts = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(indices[:, 0], minlength=rows), out=starts[1:])
    return starts


def _check_no_gaps(name: str, indices: np.ndarray, starts: np.ndarray) -> None:
    places = np.arange(len(indices)) - np.repeat(starts[:-1], np.diff(starts))
    if not np.array_equal(places, indices[:, 1]):
        raise InputError(
            f"{FUNCTION} gives the sparse feature {name!r} with gaps between the values of a row, "
            "which a record would lose: make it dense with tf.sparse.to_dense, or say its shape "
            "with tft.experimental.annotate_sparse_output_shape."
        )


def _fetch(folder: str, copy: str) -> str:
    """Copies a folder to a local one; TensorFlow's own access to buckets has other credentials."""
    source, target = open_storage(folder), open_storage(copy)
    for entry in source.walk(folder):
        if entry.kind == "file":
            target.replace(
                join(copy, entry.path[len(folder.rstrip("/")) + 1 :]), source.read(entry.path)
            )
    return copy


def _read_text(path: str) -> str:
    try:
        return open_storage(path).read(path).decode()
    except FileNotFoundError as error:
        raise OutputError(f"{path} is missing: run the build again.") from error
