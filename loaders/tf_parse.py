"""Parsing with TensorFlow: feature specs from schema.pbtxt, and batches of records to tensors.

TensorFlow is imported inside functions, so that ``shardmill.loaders`` loads without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardmill.loaders.frameworks import need
from shardmill.loaders.source import Source, open_without_shards
from shardmill.loaders.steps import is_count
from shardmill.loaders.values import PICTURES, Fill, chosen, fill_of
from shardmill.schemas.errors import UsageError
from shardmill.schemas.schema_pbtxt.feature_spec import FeatureSpec

if TYPE_CHECKING:
    import tensorflow as tf

# tf.io.decode_raw does not know these, but integers of the same size.
_SAME_SIZE = {"uint32": "int32", "uint64": "int64"}
ImageSize = tuple[int, int]


def feature_spec(
    path: str | os.PathLike[str],
    *,
    features: Sequence[str] | None = None,
    fill: Fill | None = None,
) -> dict[str, Any]:
    """Returns what ``tf.io.parse_example`` takes, for whoever parses a dataset's records alone.

    A feature that each record has is a ``FixedLenFeature``; one that may be missing or has several
    values a ``VarLenFeature``, as TensorFlow Transform's ``schema_as_feature_spec`` gives them.

    Args:
        path: The dataset's folder or its manifest.json.
        features: The features to parse; by default all.
        fill: What stands for a missing value; such features become ``FixedLenFeature`` with that
            default.

    Raises:
        InputError: There is no manifest or schema that can be read.
        UsageError: A feature is unknown, or a fill is of another kind.
    """
    need("tensorflow")
    import tensorflow as tf

    specs = chosen(open_without_shards(path), features)
    filled = fill_of([spec for spec in specs if spec.name in (fill or {})], fill)
    types = _types()
    found: dict[str, Any] = {}
    for spec in specs:
        if spec.fixed is not None:
            found[spec.name] = tf.io.FixedLenFeature(list(spec.fixed), types[spec.kind])
        elif spec.name in filled:
            default = [filled[spec.name]]
            found[spec.name] = tf.io.FixedLenFeature([1], types[spec.kind], default)
        else:
            found[spec.name] = tf.io.VarLenFeature(types[spec.kind])
    return found


def _types() -> dict[str, Any]:
    import tensorflow as tf

    return {"bytes": tf.string, "int64": tf.int64, "float32": tf.float32}


def batch_parser(specs: Sequence[FeatureSpec], fill: Fill | None) -> Callable[[Any], Any]:
    """Returns a function from a batch of serialized examples to a dict of tensors.

    Single values have shape [batch, 1], features of several values are ragged.

    Raises:
        UsageError: A missing integer has no fill.
    """
    import tensorflow as tf

    filled = fill_of(specs, fill)
    types = _types()
    wanted: dict[str, Any] = {}
    for spec in specs:
        if spec.fixed is not None:
            wanted[spec.name] = tf.io.FixedLenFeature(spec.fixed, types[spec.kind])
        elif spec.single:
            default = [filled[spec.name]]
            wanted[spec.name] = tf.io.FixedLenFeature([1], types[spec.kind], default)
        else:
            wanted[spec.name] = tf.io.RaggedFeature(types[spec.kind], row_splits_dtype=tf.int64)

    def parse(serialized: tf.Tensor) -> dict[str, Any]:
        parsed: dict[str, Any] = tf.io.parse_example(serialized, wanted)
        return parsed

    return parse


def array_decoder(
    spec: FeatureSpec, image_size: ImageSize | None
) -> Callable[[Mapping[str, Any]], Any]:
    """Returns a function from parsed features to a batch of arrays.

    Args:
        spec: The feature that holds arrays.
        image_size: Height and width that pictures are resized to, or None.

    Raises:
        UsageError: Arrays differ in shape, so that they make no batch.
    """
    import tensorflow as tf

    if image_size is not None and not _is_size(image_size):
        raise UsageError(
            f"image_size={image_size!r} is no size: give (height, width), two whole numbers."
        )
    if spec.encoding not in PICTURES and image_size is None:
        return _raw_decoder(spec)
    if spec.shape is None and image_size is None:
        raise UsageError(
            f"{spec.name!r} holds pictures of different sizes, which make no batch: give "
            "image_size=(height, width), or build with --resize=stretch, pad or crop."
        )
    if spec.encoding not in PICTURES:
        raise UsageError(
            f"image_size is for JPEG and PNG pictures, and {spec.name!r} holds raw values: build "
            "with --image_size, or resize them in a layer."
        )
    channels = spec.channels or (spec.shape[2] if spec.shape else 3)
    sides = image_size or (spec.shape[:2] if spec.shape else (None, None))

    def decode_one(data: tf.Tensor) -> tf.Tensor:
        if spec.encoding == "jpeg":
            # TensorFlow's default is a faster and coarser way: up to 22 of 255 off. [measured]
            pixels = tf.io.decode_jpeg(data, channels, dct_method="INTEGER_ACCURATE")
        else:
            pixels = tf.io.decode_png(data, channels)
        if image_size is not None:
            pixels = tf.cast(
                tf.round(tf.image.resize(pixels, image_size, antialias=True)), tf.uint8
            )
        return tf.ensure_shape(pixels, (*sides, channels))

    def decode(parsed: Mapping[str, Any]) -> tf.Tensor:
        # Parsing batches and decoding in a map_fn takes less than parsing one by one. [measured]
        return tf.map_fn(
            decode_one,
            tf.reshape(parsed[spec.name], [-1]),
            fn_output_signature=tf.TensorSpec((*sides, channels), tf.uint8),
        )

    return decode


def _is_size(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(map(is_count, value))


def _raw_decoder(spec: FeatureSpec) -> Callable[[Mapping[str, Any]], Any]:
    import tensorflow as tf

    if spec.shape is None or spec.dtype is None:
        raise UsageError(
            f"{spec.name!r} holds arrays of different shapes, which make no batch: read them with "
            "open_dataset, or build with --resize=stretch, pad or crop."
        )
    shape, name = spec.shape, spec.dtype.name
    dtype = tf.dtypes.as_dtype(name)
    read_as = tf.dtypes.as_dtype(_SAME_SIZE.get(name, name))

    def decode(parsed: Mapping[str, Any]) -> tf.Tensor:
        values = tf.io.decode_raw(tf.reshape(parsed[spec.name], [-1]), read_as)
        values = values if read_as == dtype else tf.bitcast(values, dtype)
        size = parsed[spec.name].shape[0]  # known where all batches are full
        return tf.reshape(values, (-1 if size is None else size, *shape))

    return decode


def label_reader(source: Source, form: str) -> tuple[str, Callable[[Any], Any]]:
    """Returns the feature that tells the label, and a function from its batch to labels.

    Args:
        source: The dataset.
        form: ``id``, ``one_hot`` or ``text``.

    Raises:
        UsageError: The dataset has no labels, or none of that form.
    """
    import tensorflow as tf

    labels = list(source.manifest.labels)
    names = sorted(source.label_features)
    if not names:
        raise UsageError(
            "the records have no label: give label=None, or build the dataset with labels."
        )
    text, number = source.label_text, source.label_id
    if form == "text":
        if text:
            return text, lambda batch: tf.reshape(batch, [-1])
        if not labels:
            raise UsageError(
                f"the labels in {names[0]!r} are numbers without texts: use label='id'."
            )
        return number, lambda batch: tf.gather(tf.constant(labels), tf.reshape(batch, [-1]))
    if form not in ("id", "one_hot"):
        raise UsageError(f"label={form!r} is unknown: use 'id', 'one_hot', 'text' or None.")
    name = number or text or names[0]
    ids: Callable[[Any], Any] = lambda batch: tf.reshape(batch, [-1])  # noqa: E731
    if name == text:
        if not labels:
            raise UsageError(
                f"the labels in {name!r} are texts that were not listed: use label='text'."
            )
        keys = tf.lookup.KeyValueTensorInitializer(labels, tf.range(len(labels), dtype=tf.int64))
        table = tf.lookup.StaticHashTable(keys, -1)
        ids = lambda batch: table.lookup(tf.reshape(batch, [-1]))  # noqa: E731
    if form == "id":
        return name, ids
    depth = len(labels) or _classes(source)
    return name, lambda batch: tf.one_hot(ids(batch), depth)


def _classes(source: Source) -> int:
    """Returns how many classes integer labels tell of: one more than the greatest."""
    counted = {label for split in source.manifest.splits.values() for label in split.label_counts}
    try:
        numbers = [int(label) for label in counted]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise UsageError("how many classes there are is not known: use label='id'.")
    return max(numbers) + 1
