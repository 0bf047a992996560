"""Parsing of serialized examples with TensorFlow according to the schema.

TensorFlow is imported inside functions, so that ``shardmill.loaders`` loads without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from shardmill.loaders.boxes import boxes_tensor
from shardmill.loaders.frameworks import require_framework
from shardmill.loaders.record_decoder import IMAGE_ENCODINGS, Fill, default_values, select_features
from shardmill.loaders.source import Source, id_of_several_labels, open_without_shards
from shardmill.schemas.arguments import check_arguments, unknown_value
from shardmill.schemas.errors import UsageError
from shardmill.schemas.schema_pbtxt.feature_spec import FeatureSpec

if TYPE_CHECKING:
    import tensorflow as tf

LABEL_FORMS = ("id", "one_hot", "text")
# tf.io.decode_raw lacks these types; integers of the same size are bitcast.
_SAME_SIZE = {"uint32": "int32", "uint64": "int64"}


@check_arguments()
def feature_spec(
    path: str | os.PathLike[str],
    *,
    features: Sequence[str] | None = None,
    fill: Fill | None = None,
    scalars: bool = False,
) -> dict[str, Any]:
    """Returns the feature spec for ``tf.io.parse_example``.

    A feature with a fixed number of values is a ``FixedLenFeature``; one that may be missing or
    has several values is a ``VarLenFeature``, and a sparse or ragged one of TensorFlow Transform a
    ``SparseFeature`` or ``RaggedFeature``, as in its ``schema_as_feature_spec``.

    Args:
        path: The dataset's folder or its manifest.json.
        features: The features to parse; None for all.
        fill: Values by feature that replace missing ones; such features become
            ``FixedLenFeature`` with that default.
        scalars: Whether single values have the shape ``[]`` instead of ``[1]``: in a batch, their
            shape is then [batch], as ``tf.io.decode_jpeg`` with ``tf.map_fn`` takes them.

    Raises:
        InputError: The manifest or schema cannot be read.
        UsageError: A feature is unknown, or a fill value has another type.
    """
    require_framework("tensorflow")
    source = open_without_shards(path)
    specs = select_features(source, features)
    for spec in specs:
        if spec.parts:
            parts = ", ".join(spec.parts)
            raise UsageError(
                f"{spec.name!r} is made of features that tf.io.parse_example reads singly: name "
                f"{parts}."
            )
    filled = fill if isinstance(fill, Mapping) else {}
    defaults = default_values([spec for spec in specs if spec.name in filled], fill)
    parsed = {spec.name: _parsed_as(spec, defaults, by_schema=True) for spec in specs}
    for name, form in parsed.items():
        if scalars and getattr(form, "shape", None) == [1]:  # of a FixedLenFeature
            parsed[name] = form._replace(shape=[], default_value=defaults.get(name))
    return parsed


def _parsed_as(spec: FeatureSpec, defaults: Mapping[str, Any], *, by_schema: bool) -> Any:
    """Returns how ``tf.io.parse_example`` parses a feature: fixed, with a default, or variable."""
    import tensorflow as tf

    dtype = {"bytes": tf.string, "int64": tf.int64, "float32": tf.float32}[spec.kind]
    if spec.fixed is not None:
        return tf.io.FixedLenFeature(list(spec.fixed), dtype)
    if spec.name in defaults:
        return tf.io.FixedLenFeature([1], dtype, [defaults[spec.name]])
    if spec.indices:
        names, sizes = map(list, zip(*spec.indices, strict=True))
        return tf.io.SparseFeature(names, spec.value, dtype, sizes, spec.is_sorted)
    if spec.value:
        inner = [tf.io.RaggedFeature.UniformRowLength(size) for size in spec.inner]
        return tf.io.RaggedFeature(dtype, spec.value, inner, tf.int64)
    if by_schema:
        return tf.io.VarLenFeature(dtype)
    return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)


def batch_parser(
    specs: Sequence[FeatureSpec], fill: Fill | None
) -> Callable[[tf.Tensor], dict[str, Any]]:
    """Returns a function from a batch of serialized examples to a dict of tensors.

    Single values have shape [batch, 1]; features with several values are ragged.

    Raises:
        UsageError: A missing integer has no fill.
    """
    import tensorflow as tf

    defaults = default_values(specs, fill)
    joined = [spec for spec in specs if spec.parts]
    feature_types = {
        spec.name: _parsed_as(spec, defaults, by_schema=False) for spec in specs if not spec.parts
    }
    for spec in joined:
        sides, size = spec.parts[:4], spec.parts[4:]
        feature_types |= dict.fromkeys(
            sides, tf.io.RaggedFeature(tf.float32, row_splits_dtype=tf.int64)
        )
        feature_types |= dict.fromkeys(size, tf.io.FixedLenFeature([1], tf.int64))

    def parse(serialized: tf.Tensor) -> dict[str, Any]:
        parsed = tf.io.parse_example(serialized, feature_types)
        parsed |= {spec.name: boxes_tensor(spec, parsed) for spec in joined}
        return {spec.name: parsed[spec.name] for spec in specs}

    return parse


def array_decoder(spec: FeatureSpec, *, batched: bool) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from bytes, of shape [batch] or a scalar, to arrays.

    Args:
        spec: The feature whose bytes hold arrays.
        batched: Whether the arrays must have one shape.

    Raises:
        UsageError: The arrays differ in shape, so they cannot be batched, or have no known shape.
    """
    if spec.encoding not in IMAGE_ENCODINGS:
        return _raw_decoder(spec)
    if spec.shape is None and batched:
        raise UsageError(
            f"{spec.name!r} holds images of different sizes, which cannot be batched: resize them "
            "with batch_size=None and map, or build with --resize=stretch, pad or crop."
        )
    import tensorflow as tf

    channels = spec.channels or (spec.shape[2] if spec.shape else 3)
    shape = (*(spec.shape[:2] if spec.shape else (None, None)), channels)

    # TensorFlow's default method is faster, but up to 22 of 255 off. [measured]
    jpeg = partial(tf.io.decode_jpeg, dct_method="INTEGER_ACCURATE")
    # Both decode either format; only decode_png has alpha, which no JPEG has.
    decode = tf.io.decode_png if spec.encoding == "png" or channels == 4 else jpeg

    def decode_one(data: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(decode(data, channels), shape)

    def decode_batch(data: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(decode_one, data, fn_output_signature=tf.TensorSpec(shape, tf.uint8))

    if batched:
        return decode_batch
    return decode_one


def _raw_decoder(spec: FeatureSpec) -> Callable[[tf.Tensor], tf.Tensor]:
    import tensorflow as tf

    if spec.shape is None or spec.dtype is None:
        raise UsageError(
            f"{spec.name!r} holds arrays of different shapes, which cannot be batched: read them "
            "with open_dataset, or build with --resize=stretch, pad or crop."
        )
    shape, name = spec.shape, spec.dtype.name
    dtype = tf.dtypes.as_dtype(name)
    read_as = tf.dtypes.as_dtype(_SAME_SIZE.get(name, name))

    def decode(data: tf.Tensor) -> tf.Tensor:
        values = tf.io.decode_raw(data, read_as)
        values = values if read_as == dtype else tf.bitcast(values, dtype)
        # The size of a batch is known if all batches are full.
        return tf.reshape(values, [-1 if size is None else size for size in (*data.shape, *shape)])

    return decode


def _feature_of(source: Source, form: str) -> str:
    spec = source.find_spec(form)
    if spec is None:
        accepted = "'id', 'one_hot', 'text', None, or the name of a feature"
        raise unknown_value(name="label", value=form, choices=accepted)
    return spec.name


def label_reader(source: Source, form: str) -> tuple[str, Callable[[tf.Tensor], tf.Tensor]]:
    """Returns the feature with the label, and a function from its values to labels.

    Args:
        source: The dataset.
        form: ``id``, ``one_hot``, ``text``, or the name of a feature, whose values are labels.

    Raises:
        UsageError: The dataset has no labels, or none of that form.
    """
    import tensorflow as tf

    if form not in LABEL_FORMS:
        return _feature_of(source, form), lambda values: values
    labels = list(source.manifest.labels)
    names = sorted(source.label_features)
    if not names:
        source.check_labeled()
        raise UsageError(
            "the records have no label: give label=None or the name of a feature, such as boxes or "
            "mask, or build the dataset with labels."
        )
    text, number = source.label_text, source.label_id
    if form == "text":
        if text:
            return text, lambda values: values
        if not labels:
            raise UsageError(f"the labels in {names[0]!r} are numbers: use label='id'.")
        return number, lambda values: tf.gather(tf.constant(labels), values)
    name = number or text or names[0]
    to_ids = _text_to_ids(name, labels) if name == text else lambda values: values
    several = bool(source.manifest.label_separator)
    if form == "id":
        if several:
            raise id_of_several_labels()
        return name, to_ids
    depth = source.num_classes

    def encode(values: Any) -> tf.Tensor:
        ids = to_ids(values)
        ids = ids.to_tensor(-1) if isinstance(ids, tf.RaggedTensor) else ids
        vectors = tf.one_hot(ids, depth)
        if several:
            return tf.reduce_sum(vectors, -2)
        return vectors

    return name, encode


def _text_to_ids(name: str, labels: list[str]) -> Callable[[tf.Tensor], tf.Tensor]:
    import tensorflow as tf

    if not labels:
        raise UsageError(
            f"the labels in {name!r} are texts without class ids, as the manifest does not list "
            "them: use label='text'."
        )
    ids = tf.lookup.KeyValueTensorInitializer(labels, tf.range(len(labels), dtype=tf.int64))
    table = tf.lookup.StaticHashTable(ids, -1)
    return lambda values: table.lookup(values)  # noqa: PLW0108 - the closure keeps the table alive
