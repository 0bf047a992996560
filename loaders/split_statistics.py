"""Class weights, normalization and vocabularies of splits, of sums and of slices of them.

The statistics of whole splits are in the manifest. Those of slices are computed, from the catalogs
of images or from one feature of the records; so are vocabularies.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from shardmill.loaders.frameworks import require_framework
from shardmill.loaders.records import Records, open_encoded
from shardmill.loaders.selection import find_split, select
from shardmill.loaders.source import read_catalog
from shardmill.loaders.steps import check_word, to_int
from shardmill.schemas.arguments import check_arguments
from shardmill.schemas.dataset.manifest import Manifest, Split
from shardmill.schemas.dataset.read_manifest import load_manifest
from shardmill.schemas.dataset.statistics import Statistics
from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.storage.base import map_ordered, storage_threads

Dataset = Manifest | str | os.PathLike[str]
Framework = Literal["keras", "torch", "jax"]
_PIXELS = ("pixels", "pixel_sums", "pixel_squares")
_SMALLEST_STD = 1e-7  # as Keras: a column of equal values becomes 0, not NaN


class Moments(NamedTuple):
    """Mean and standard deviation of values.

    Attributes:
        size: Number of values; of pixels.
        mean: Mean, float64 of shape [1], or [channels] of pixels.
        std: Population standard deviation, of the same shape.
    """

    size: int
    mean: Any
    std: Any


@check_arguments()
def class_weights(manifest: Dataset, split: str = "train") -> dict[int, float]:
    """Returns balanced weights by class id for ``model.fit(class_weight=...)``.

    The weight of a class is ``n / (k * n_c)``, with n labels of examples in the split, k classes in
    it and n_c examples of the class. Each class then contributes equally to the loss, and the mean
    weight over all examples is 1. Classes without examples are left out.

    Args:
        manifest: The dataset's manifest, its folder or the path of its manifest.json.
        split: A split, or several as in ``train+validation``, or slices as in ``train[:80%]``,
            whose labels are read from the catalog of images or from the records.

    Raises:
        InputError: The dataset cannot be read.
        UsageError: The split is unknown or has no label counts, a label has no class id, or a slice
            is of a manifest without a path.
    """
    dataset_manifest, splits = _find_splits(manifest, split)
    counts = Counter[str]()
    for manifest_split in splits:
        counts += Counter(manifest_split.label_counts)
    if counts and "[" in split:
        labels = read_labels(_open(manifest, split))
        counts = Counter(label for label in labels if label is not None)
    weights = Split(0, 0, counts, ()).class_weights
    if not weights:
        raise UsageError(f"the split {split!r} has no label counts, which class weights need.")
    return {_class_id(dataset_manifest, label): weight for label, weight in weights.items()}


def _class_id(manifest: Manifest, label: str) -> int:
    """Returns the class id of a label: its position in labels.txt, or its integer value.

    Raises:
        UsageError: It has neither.
    """
    if label in manifest.labels:
        return manifest.labels.index(label)
    try:
        return int(label)
    except ValueError as error:
        raise UsageError(
            f"the label {label!r} has no class id: it is not listed in the manifest or an integer."
        ) from error


@check_arguments()
def normalization(
    manifest: Dataset,
    split: str = "train",
    feature: str | None = None,
    *,
    framework: Framework = "keras",
) -> Any:
    """Returns a layer that subtracts the mean of a split and divides by its standard deviation.

    Values have the layout of the records: the channels of images are last. Of whole splits, the
    statistics are in the manifest, and no records are read.

    Args:
        manifest: The dataset's manifest, its folder or the path of its manifest.json.
        split: The split whose statistics are used: the training split. Or several as in
            ``train+validation``, or slices as in ``train[:80%]``, whose statistics are computed
            from the catalog of images or from the records.
        feature: A numeric column of rows; None for the channels of images.
        framework: ``keras`` for a ``keras.layers.Normalization``, ``torch`` for a
            ``torch.nn.Module``, whose statistics are part of its ``state_dict``, ``jax`` for a
            function of JAX or NumPy arrays.

    Raises:
        InputError: The dataset cannot be read.
        UsageError: The split is unknown or has no such statistics, the framework is unknown, or a
            slice is of a manifest without a path.
    """
    check_word("framework", str(framework), Framework)
    if not isinstance(feature, str | None):
        raise _normalization_without_mean(feature=feature, split=split)
    if framework != "jax":
        require_framework(framework)
    moments = find_moments(manifest, split, feature)
    if moments is None and feature is None:
        raise UsageError(
            f"the manifest has no pixel statistics for {split!r}: name a feature, or compute them."
        )
    if moments is None:
        raise _normalization_without_mean(feature=feature, split=split)
    _, mean, std = moments
    if feature:
        mean, std = mean[0], std[0]
    if framework == "keras":
        import keras

        axis = None if feature else -1
        return keras.layers.Normalization(axis=axis, mean=mean.tolist(), variance=(std**2).tolist())
    mean, std = np.float32(mean), np.maximum(std, _SMALLEST_STD, dtype=np.float32)
    if framework == "jax":
        return functools.partial(_standardize, mean, std)
    from shardmill.loaders.torch_normalization import TorchNormalization

    return TorchNormalization(mean, std)


@check_arguments()
def vocabulary(
    path: str | os.PathLike[str],
    column: str,
    split: str = "train",
    *,
    min_count: int = 1,
    max_size: int | None = None,
) -> list[Any]:
    """Returns the distinct values of a column, the most frequent first, for ``StringLookup``.

    All records of the split are read once, and the distinct values are held in memory. Values of
    equal frequency are sorted. Missing values are left out; each value of a list counts.

    Args:
        path: The dataset's folder or its manifest.json, on any storage.
        column: A feature of texts (values are str) or of integers.
        split: A split, or several as in ``train+validation``, or slices as in ``train[:80%]``.
        min_count: Values that are less frequent are left out.
        max_size: Largest number of values, or None.

    Raises:
        InputError: The dataset cannot be read, or a text is not UTF-8.
        UsageError: A split or column is unknown, or the column has other values.
    """
    least = to_int("min_count", min_count, 1)
    most = None if max_size is None else to_int("max_size", max_size, 1)
    records = open_encoded(path, split)
    spec = records.source.spec_of(column)
    is_other = bool(spec.encoding or spec.parts or spec.value or spec.indices)
    if is_other or spec.kind == "float32":
        held = "images, boxes or arrays" if is_other else "floating-point numbers"
        raise UsageError(
            f"vocabulary(column={column!r}): the column has {held}, and a vocabulary has texts "
            "or integers: name another column; normalization() is for numbers."
        )
    counts = Counter[Any]()
    for values in _read_feature(records, spec.name):
        counts.update(values)
    frequent = [value for value, count in counts.items() if count >= least]
    frequent.sort(key=lambda value: (-counts[value], value))
    return [_to_text(column, value) for value in frequent[:most]]


def _to_text(column: str, value: bytes | int) -> str | int:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"vocabulary(column={column!r}): the value {value!r:.80} is not UTF-8 text: name a "
            "column of texts."
        ) from error


def _normalization_without_mean(feature: object, split: object) -> UsageError:
    return UsageError(
        f"the manifest has no mean of the feature {feature!r} for {split!r}: name a numeric column "
        "with values."
    )


def _standardize(mean: Any, std: Any, values: Any) -> Any:
    return (values - mean) / std


def read_labels(records: Records) -> list[str | None]:
    """Returns the labels of the records of a source, from its shards, the catalog or the records.

    Of each record it is one, or None, unless records may have several.

    Raises:
        InputError: The dataset cannot be read.
    """
    source = records.source
    if all(shard.label is not None for shard in source.shards):
        return [part.shard.label for part in source.selection.parts for _ in range(part.records)]
    if all(shard.catalog for shard in source.shards) and not source.manifest.label_separator:
        (labels,) = read_catalog_columns(records, ["label"])
    else:
        feature = source.label_text or source.label_id
        labels = [label for values in _read_feature(records, feature) for label in values]
    return [_label_text(label) for label in labels]


def _label_text(label: Any) -> str | None:
    if label is None:
        return None
    if isinstance(label, bytes):
        return label.decode()
    return str(label)


def read_catalog_columns(records: Records, names: Sequence[str]) -> list[list[Any]]:
    """Returns columns of the catalogs, of all records of a source.

    Raises:
        InputError: A catalog cannot be read, or has no such column.
    """
    columns: list[list[Any]] = [[] for _ in names]
    for part in _read_catalogs(records, names):
        for column, values in zip(columns, part, strict=True):
            column.extend(values)
    return columns


def _read_catalogs(records: Records, names: Sequence[str]) -> Iterator[list[list[Any]]]:
    """Yields columns of the catalog of each part; remote ones are read at the same time."""
    source = records.source

    def read(number: int) -> list[list[Any]]:
        part = source.selection.parts[number]
        return read_catalog(source.folder_of(number), part, names)

    numbers = range(len(source.selection.parts))
    return map_ordered(read, numbers, storage_threads(source.folder_of(0)))


def find_moments(dataset: Dataset, split: str, feature: str | None) -> Moments | None:
    """Returns the moments of a numeric column, or of the pixels, or None.

    Raises:
        InputError: The dataset cannot be read.
        UsageError: A split is unknown, or a slice is of a manifest without a path.
    """
    _, splits = _find_splits(dataset, split)
    moments = [_moments_of(manifest_split, feature) for manifest_split in splits]
    if any(moments) and "[" in split:
        records = _open(dataset, split)
        if feature is None:
            moments = [_pixel_moments(*columns) for columns in _read_catalogs(records, _PIXELS)]
        else:
            moments = [_value_moments(values) for values in _read_feature(records, feature)]
    return _pool([part for part in moments if part is not None and part.size])


def _find_splits(dataset: Dataset, split: str) -> tuple[Manifest, list[Split]]:
    manifest = dataset if isinstance(dataset, Manifest) else load_manifest(dataset)
    names = {part.partition("[")[0].strip() for part in select(manifest, split).split.split("+")}
    return manifest, [find_split(manifest, name) for name in sorted(names)]


def _open(dataset: Dataset, split: str) -> Records:
    if isinstance(dataset, Manifest):
        raise UsageError(f"{split!r} has slices: give the dataset's folder instead of a manifest.")
    return open_encoded(dataset, split)


def _moments_of(split: Split, feature: str | None) -> Moments | None:
    statistics = split.statistics or Statistics()
    pixels = statistics.pixels
    if feature is None:
        if pixels is None:
            return None
        return Moments(pixels.count, np.array(pixels.mean), np.array(pixels.std))
    column = statistics.features.get(feature)
    if column is None or column.mean is None or column.std is None:
        return None
    finite = column.count - column.nan - column.infinite
    return Moments(finite, np.array([column.mean]), np.array([column.std]))


def _pixel_moments(pixels: list[int], *sums: list[list[int]]) -> Moments:
    """Returns the moments of the pixels of a part, from exact sums."""
    count = sum(pixels)
    # Objects are Python integers, which do not overflow.
    totals, squares = (
        np.array([sum(channel) for channel in zip(*columns, strict=True)], object)
        for columns in sums
    )
    variance = (count * squares - totals * totals) / count**2
    return Moments(count, (totals / count).astype(float), np.sqrt(variance.astype(float)))


def _value_moments(values: Sequence[float]) -> Moments:
    finite = np.array(values, np.float64)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return Moments(0, finite, finite)
    return Moments(finite.size, finite.mean(keepdims=True), finite.std(keepdims=True))


def _pool(parts: Sequence[Moments]) -> Moments | None:
    """Returns the moments of all values of several sets of values, or None."""
    count = sum(part.size for part in parts)
    if not count:
        return None
    mean = sum(part.size / count * part.mean for part in parts)
    spread = sum(part.size / count * (part.std**2 + (part.mean - mean) ** 2) for part in parts)
    return Moments(count, mean, np.sqrt(spread))


def _read_feature(records: Records, name: str) -> Iterator[list[Any]]:
    """Yields the values of a feature of all records of each part."""
    for number, part in enumerate(records.source.selection.parts):
        values: list[Any] = []
        for _, payload in records.files.records(number, part.first, part.stop):
            feature = parse_example(payload).get(name)
            if feature is not None:
                values += feature.values
        yield values
