"""A sample of the records of a dataset, in which findings are looked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from shardmill.loaders.records import Records, open_encoded
from shardmill.loaders.selection import ShardSlice, select
from shardmill.loaders.source import read_catalog, read_specs
from shardmill.pipelines.report.findings import SampledRecord
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import ShardmillError
from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.schema_pbtxt.feature_spec import FeatureSpec
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES

MAX_FILES = 32  # catalogs or shards
_MAX_RECORDS = 10_000  # of a catalog, or of all shards
_MAX_BYTES = 8 << 20
_COLUMNS = SampledRecord._fields[2:-1]


def sample_records(
    base: str, manifest: Manifest, notes: list[str]
) -> tuple[tuple[FeatureSpec, ...], Sequence[SampledRecord]]:
    """Returns the features, and some records: of images from catalogs; adds errors to the notes."""
    specs: tuple[FeatureSpec, ...] = ()
    samples: list[SampledRecord] = []
    if not manifest.root:  # a count
        with noting(notes):
            specs = read_specs(base, manifest)
    if specs and any(split.num_examples for split in manifest.splits.values()):
        split = "+".join(manifest.splits)
        with noting(notes):
            samples += read_catalogs(base, select(manifest, split).parts)
        if not samples:
            with noting(notes), open_encoded(base, split) as records:
                samples += read_records(records)
    return specs, samples


@contextlib.contextmanager
def noting(notes: list[str]) -> Iterator[None]:
    """Adds errors of reading to the notes: the page then shows the rest."""
    try:
        yield
    except (ShardmillError, FileNotFoundError) as error:
        notes.append(str(error))


def read_catalogs(base: str, parts: Sequence[ShardSlice]) -> Iterator[SampledRecord]:
    """Yields the first rows of at most MAX_FILES catalogs.

    Args:
        base: Folder of the shards.
        parts: The shards.

    Raises:
        InputError: A catalog cannot be read.
    """
    catalogued = [(number, part) for number, part in enumerate(parts) if part.shard.catalog]
    for number, part in _spread(catalogued):
        columns = read_catalog(base, part, _COLUMNS)
        for record, *row in zip(range(_MAX_RECORDS), *columns, strict=False):
            yield SampledRecord(number, record, *row)


def read_records(records: Records) -> Iterator[SampledRecord]:
    """Yields the first records of at most MAX_FILES shards.

    Builds shuffle the records, so the first ones of a shard are a random choice. Their number is
    proportional to the size of the shard.

    Raises:
        ShardmillError: A shard is missing or damaged.
    """
    selected = enumerate(records.source.selection.parts)
    parts = _spread([(number, part) for number, part in selected if part.records])
    total = sum(part.records for _, part in parts)
    for number, part in parts:
        left, stop = (-(-most * part.records // total) for most in (_MAX_BYTES, _MAX_RECORDS))
        for record, payload in records.files.records(number, 0, stop):
            size, features = len(payload) + HEADER_BYTES + FOOTER_BYTES, parse_example(payload)
            label = records.source.label_of(features)
            yield SampledRecord(number, record, label, size, features=features)
            left -= size
            if left < 0:
                break


def _spread(items: Sequence[Any]) -> list[Any]:
    """Returns at most MAX_FILES of the items, evenly spaced."""
    count = min(len(items), MAX_FILES)
    return [items[n * len(items) // count] for n in range(count)]
