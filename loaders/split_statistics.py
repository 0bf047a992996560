"""Label counts, means and standard deviations of splits, of sums of splits, and of slices of them.

Those of whole splits are in the manifest. For slices they are computed, from the catalogs of images
or from one feature of the records.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardmill.loaders.records import Records, open_encoded
from shardmill.loaders.selection import ShardSlice, find_split, select
from shardmill.loaders.steps import load_manifest
from shardmill.schemas.dataset.catalog import read_columns
from shardmill.schemas.dataset.manifest import Manifest, Split
from shardmill.schemas.errors import FormatError, InputError, UsageError
from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.storage import join, open_storage

Dataset = Manifest | str | os.PathLike[str]


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


def count_labels(dataset: Dataset, split: str) -> tuple[Manifest, dict[str, int]]:
    """Returns the manifest, and the number of examples by label; empty if labels are not counted.

    Raises:
        InputError: The dataset cannot be read.
        UsageError: A split is unknown, or a slice is of a manifest without a path.
    """
    manifest, splits = _find_splits(dataset, split)
    counts: Counter[str] = Counter()
    for each in splits:
        counts.update(each.label_counts)
    if not counts or "[" not in split:
        return manifest, counts
    labels = read_labels(_open(dataset, split))
    return manifest, Counter(label for label in labels if label is not None)


def read_labels(records: Records) -> list[str | None]:
    """Returns the label of each record of a source, from its shards, the catalog or the records.

    Raises:
        InputError: The dataset cannot be read.
    """
    source = records.source
    if all(shard.label is not None for shard in source.shards):
        return [part.shard.label for part in source.selection.parts for _ in range(part.records)]
    if all(shard.catalog for shard in source.shards):
        (labels,) = read_catalog_columns(records, ["label"])
    else:
        feature = source.label_text or source.label_id
        labels = [label for each in _read_feature(records, feature) for label in each]
    return [None if x is None else x.decode() if isinstance(x, bytes) else str(x) for x in labels]


def read_catalog_columns(records: Records, names: Sequence[str]) -> list[list[Any]]:
    """Returns columns of the catalogs, of all records of a source.

    Raises:
        InputError: A catalog cannot be read, or has no such column.
    """
    parts = [_read_catalog(records, part, names) for part in records.source.selection.parts]
    return [[value for part in parts for value in part[at]] for at in range(len(names))]


def find_moments(dataset: Dataset, split: str, feature: str | None) -> Moments | None:
    """Returns the moments of a numeric column, or of the pixels; None if there are none.

    Raises:
        InputError: The dataset cannot be read.
        UsageError: A split is unknown, or a slice is of a manifest without a path.
    """
    found = [_moments_of(each, feature) for each in _find_splits(dataset, split)[1]]
    if any(found) and "[" in split:
        records = _open(dataset, split)
        if feature is None:
            found = [_pixel_moments(records, part) for part in records.source.selection.parts]
        else:
            found = [_value_moments(each) for each in _read_feature(records, feature)]
    return _pool([each for each in found if each is not None and each.size])


def _find_splits(dataset: Dataset, split: str) -> tuple[Manifest, list[Split]]:
    manifest = dataset if isinstance(dataset, Manifest) else load_manifest(dataset)
    names = {part.partition("[")[0].strip() for part in select(manifest, split).split.split("+")}
    return manifest, [find_split(manifest, name) for name in sorted(names)]


def _open(dataset: Dataset, split: str) -> Records:
    if isinstance(dataset, Manifest):
        raise UsageError("slice-of-manifest", split=split)
    return open_encoded(dataset, split, None, None)


def _moments_of(split: Split, feature: str | None) -> Moments | None:
    statistics = split.statistics
    if statistics is None:
        return None
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


def _pixel_moments(records: Records, part: ShardSlice) -> Moments:
    """Returns the moments of the pixels of a part, from exact sums."""
    names = ["pixels", "pixel_sums", "pixel_squares"]
    pixels, *sums = _read_catalog(records, part, names)
    count = sum(pixels)
    totals, squares = (np.array([sum(c) for c in zip(*each, strict=True)], object) for each in sums)
    variance = (count * squares - totals * totals) / count**2
    return Moments(count, (totals / count).astype(float), np.sqrt(variance.astype(float)))


def _value_moments(values: Sequence[float]) -> Moments:
    finite = np.array(values, np.float64)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return Moments(0, finite, finite)
    return Moments(finite.size, finite.mean(keepdims=True), finite.std(keepdims=True))


def _pool(parts: Sequence[Moments]) -> Moments | None:
    """Returns the moments of all values of several sets of values; None if there are none."""
    count = sum(part.size for part in parts)
    if not count:
        return None
    mean = sum(part.size / count * part.mean for part in parts)
    spread = sum(part.size / count * (part.std**2 + (part.mean - mean) ** 2) for part in parts)
    return Moments(count, mean, np.sqrt(spread))


def _read_catalog(records: Records, part: ShardSlice, names: Sequence[str]) -> list[list[Any]]:
    """Returns columns of the catalog, of the records of a part.

    Raises:
        InputError: The catalog cannot be read.
    """
    path = join(records.source.folder, part.shard.catalog.file if part.shard.catalog else "")
    try:
        columns = read_columns(open_storage(path).read(path), names)
    except (FileNotFoundError, IsADirectoryError, FormatError) as error:
        raise InputError("slice-statistics-unreadable", path=path, error=error) from error
    return [column[part.first : part.stop] for column in columns]


def _read_feature(records: Records, name: str) -> Iterator[list[Any]]:
    """Yields the values of a feature of all records of each part."""
    for number, part in enumerate(records.source.selection.parts):
        found: list[Any] = []
        for _, payloads in records.files.members(number, part.first, part.stop):
            for payload in payloads:
                feature = parse_example(payload).get(name)
                found += () if feature is None else feature.values
        yield found
