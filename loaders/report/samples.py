"""The records and rows of catalogs that a page describes: few of large datasets, evenly chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from shardmill.loaders.records import Records
from shardmill.loaders.selection import ShardSlice
from shardmill.loaders.source import Source
from shardmill.schemas.dataset.catalog import read_columns
from shardmill.schemas.example.parse import FeatureValues, parse_example
from shardmill.schemas.storage import join, open_storage
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES

MAX_FILES = 32  # catalogs or shards
_MAX_RECORDS = 10_000  # of a catalog, or of all shards
_MAX_BYTES = 8 << 20
_COLUMNS = ("label", "record_bytes", "width", "height", "input_bytes")


class SampledRecord(NamedTuple):
    """A record.

    Attributes:
        part: Number of its shard in the selection.
        record: Number of the record in the shard.
        label: Its label; None if there is none.
        record_bytes: Bytes of the record with its frame.
        width: Width of the input image; 0 if it is not known.
        height: Its height.
        input_bytes: Size of the input file; 0 if it is not known.
        features: Values of the record; empty if it was not read.
    """

    part: int
    record: int
    label: str | None
    record_bytes: int
    width: int = 0
    height: int = 0
    input_bytes: int = 0
    features: dict[str, FeatureValues] = {}  # noqa: RUF012 - is never changed


def read_catalogs(base: str, parts: Sequence[ShardSlice]) -> Iterator[SampledRecord]:
    """Yields the first rows of at most MAX_FILES catalogs.

    Args:
        base: Folder of the shards.
        parts: The shards.

    Raises:
        FileNotFoundError: A catalog is missing.
        FormatError: A catalog is damaged.
    """
    found = [(n, part.shard) for n, part in enumerate(parts) if part.shard.catalog]
    for number, shard in _spread(found):
        path = join(base, shard.catalog.file)
        columns = read_columns(open_storage(path).read(path), _COLUMNS)
        for record, *row in zip(range(min(shard.records, _MAX_RECORDS)), *columns, strict=False):
            yield SampledRecord(number, record, *row)


def read_records(records: Records) -> Iterator[SampledRecord]:
    """Yields the first records of at most MAX_FILES shards.

    Builds shuffle the records, so the first ones of a shard are a random choice. Their number is
    proportional to the size of the shard.

    Raises:
        ShardmillError: A shard is missing or damaged.
    """
    parts = _spread([each for each in enumerate(records.source.selection.parts) if each[1].records])
    total = sum(part.records for _, part in parts)
    for number, part in parts:
        left, stop = (-(-most * part.records // total) for most in (_MAX_BYTES, _MAX_RECORDS))
        members = records.files.members(number, 0, stop)
        for record, payload in chain.from_iterable(enumerate(found, at) for at, found in members):
            size, features = len(payload) + HEADER_BYTES + FOOTER_BYTES, parse_example(payload)
            label = _label(records.source, features)
            yield SampledRecord(number, record, label, size, features=features)
            left -= size
            if left < 0:
                break


def _label(source: Source, features: dict[str, FeatureValues]) -> str | None:
    """Returns the label of a record as the manifest counts it."""
    labels = source.manifest.labels
    for name in (source.label_text, source.label_id):
        value: Any = next(iter(features[name].values), None) if name in features else None
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, int):
            return labels[value] if 0 <= value < len(labels) else str(value)
    return None


def _spread(items: Sequence[Any]) -> list[Any]:
    """Returns at most MAX_FILES of the items, evenly spaced."""
    count = min(len(items), MAX_FILES)
    return [items[n * len(items) // count] for n in range(count)]
