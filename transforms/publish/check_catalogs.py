"""Compare the catalogs of a version with its manifest: counts, label counts and statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.catalog import read_table, shard_crc_of
from shardmill.schemas.dataset.dataset_files import read_dataset_file
from shardmill.schemas.dataset.manifest import Manifest, Shard, Split
from shardmill.schemas.errors import FormatError, StorageError
from shardmill.schemas.schema_pbtxt.image_features import COUNTS
from shardmill.schemas.storage import join, map_ordered, storage_threads
from shardmill.schemas.tfrecord.framing import crc32c
from shardmill.transforms.publish.finding import Finding
from shardmill.transforms.statistics.sums import Summary, Sums, compute_statistics

_COLUMNS = ("record", "label", "multi_frame", "pixels", "pixel_sums", "pixel_squares", "record_id")


class _Totals:
    """Sums over the rows of catalogs."""

    def __init__(self) -> None:
        self.rows = 0
        self.labels: Counter[str] = Counter()
        self.multi_frame = 0
        self.pixels = 0
        self.channels = np.zeros((2, 0), object)
        self.counts: Counter[str] = Counter()

    def add(self, table: Any, separator: str) -> None:
        """Add the rows of a catalog."""
        self.rows += len(table)
        for label, number in Counter(table["label"].to_pylist()).items():
            if label is None:
                continue
            singles = label.split(separator) if separator else [label]
            for single in singles:
                self.labels[single] += number
        self.multi_frame += sum(table["multi_frame"].to_pylist())
        self.pixels += sum(table["pixels"].to_pylist())
        columns = (table["pixel_sums"].to_pylist(), table["pixel_squares"].to_pylist())
        sums = np.array([np.array(column, object).sum(axis=0) for column in columns])
        self.channels = self.channels + sums if self.channels.size else sums
        for name in COUNTS:
            values = [value for value in table[name].to_pylist() if value is not None]
            if values:
                self.counts[name] += sum(values)

    def summary(self) -> Summary:
        """Return the sums over the pixels."""
        return Summary(
            channels=tuple(
                Sums("int64", self.rows, self.pixels, total=int(total), squares=int(squares))
                for total, squares in self.channels.T
            )
        )


def check_catalogs(folder: str, manifest: Manifest) -> Iterator[Finding]:
    """Yield catalogs that are damaged, of another shard, or contradict the manifest."""
    if not manifest.catalogs:
        return
    total, is_complete = _Totals(), True
    for name, split in manifest.splits.items():
        totals = _Totals()
        shards = [shard for shard in split.shards if shard.catalog is not None]
        is_whole = len(shards) == sum(bool(shard.records) for shard in split.shards)
        read = map_ordered(lambda shard: _read(folder, shard), shards, storage_threads(folder))
        for shard, table in zip(shards, read, strict=True):
            problem = table if isinstance(table, str) else _find_problem(shard, table, manifest)
            if problem:
                file = shard.catalog.file if shard.catalog else ""
                yield Finding(file, problem)
                is_whole = False
                continue
            for sums in (totals, total):
                sums.add(table, manifest.label_separator)
        is_complete = is_complete and is_whole
        if is_whole and totals.rows:
            yield from _compare_split(name, split, totals, manifest)
    if is_complete:
        yield from _compare_counts(manifest, total)


def _compare_counts(manifest: Manifest, total: _Totals) -> Iterator[Finding]:
    inputs = manifest.inputs
    if inputs.multi_frame != total.multi_frame:
        message = (
            f"multi_frame is {inputs.multi_frame:,}, but {total.multi_frame:,} in the catalogs"
        )
        yield Finding(shard_names.MANIFEST, message)
    for name in {**inputs.counts, **total.counts}:
        stated, actual = inputs.counts.get(name, 0), total.counts[name]
        if stated != actual:
            message = f"the sum of {name} is {stated:,}, but {actual:,} in the catalogs"
            yield Finding(shard_names.MANIFEST, message)


def _read(folder: str, shard: Shard) -> Any:
    """Return the rows of a catalog, or why they cannot be read."""
    if shard.catalog is None:
        return ""
    file, size, crc = shard.catalog
    try:
        data = read_dataset_file(join(folder, file))
        if len(data) != size or f"{crc32c(data):08x}" != crc:
            return "its size or CRC-32C is not that of the manifest"
        return read_table(data, (*_COLUMNS, *COUNTS))
    except FileNotFoundError:
        return "it is missing"
    except (FormatError, StorageError) as error:
        return str(error)


def _find_problem(shard: Shard, table: Any, manifest: Manifest) -> str:
    """Return why the rows do not describe the records of a shard, or an empty text."""
    if len(table) != shard.records:
        return f"it has {len(table):,} rows, and the shard {shard.records:,} records"
    if shard_crc_of(table) not in ("", shard.crc32c):
        return f"it is the catalog of another shard, whose CRC-32C is {shard_crc_of(table)}"
    if table["record"].to_pylist() != [*range(len(table))]:
        return "its records are not numbered from 0"
    record_ids = {*table["record_id"].to_pylist()}
    if record_ids != {manifest.build.record_id}:
        return "its record_id is not that of the manifest"
    labels = {*table["label"].to_pylist()}
    if shard.label is not None and labels != {shard.label}:
        return f"it has other labels than {shard.label!r}, that of the shard"
    channels = {
        len(sums) for name in ("pixel_sums", "pixel_squares") for sums in table[name].to_pylist()
    }
    if len(channels) != 1:
        return "its images have different numbers of channels"
    return ""


def _compare_split(
    name: str, split: Split, totals: _Totals, manifest: Manifest
) -> Iterator[Finding]:
    file = shard_names.MANIFEST
    # Labels of boxes are counted by box, and are not in the catalog.
    if not manifest.build.config.get("annotations") and split.label_counts != dict(totals.labels):
        for label in {**split.label_counts, **totals.labels}:
            stated, actual = split.label_counts.get(label, 0), totals.labels[label]
            if stated != actual:
                message = (
                    f"{name} counts {stated:,} of the label {label!r}, the catalogs {actual:,}"
                )
                yield Finding(file, message)
                return
    computed = compute_statistics(totals.summary(), totals.rows)
    if split.statistics != computed:
        message = f"the statistics of {name} are not those of the pixels in the catalogs"
        yield Finding(file, message)
