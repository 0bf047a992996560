"""Write the catalog of a shard from the rows that the sidecars of its parts hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardmill.schemas.dataset.catalog import format_catalog
from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage import Storage, join
from shardmill.schemas.tfrecord.framing import crc32c
from shardmill.transforms.runtime.map_ordered import map_ordered, storage_threads
from shardmill.transforms.sink.assemble import PartSlice, ShardJob
from shardmill.transforms.sink.parts import parse_sidecar
from shardmill.transforms.sink.spec import SHARDS_FOLDER, SinkSpec


def write_catalog(storage: Storage, spec: SinkSpec, job: ShardJob) -> tuple[str, int, int] | None:
    """Write the catalog of a shard and return ``BuiltShard.catalog``.

    A shard without records, or of tables and arrays, has none.

    Raises:
        FileNotFoundError: A part was deleted.
        OutputError: A sidecar is damaged.
    """
    slices = [each for each in job.slices if each.stop > each.first]
    if not job.total or not slices or not all(each.part.catalog for each in slices):
        return None
    data = format_catalog(_rows(storage, spec, slices), spec.record_id)
    crc = crc32c(data)
    # Named by its content: workers with different releases of Arrow write different bytes.
    source = f"{spec.build_name}/{SHARDS_FOLDER}/{crc:08x}-{len(data)}.parquet"
    storage.replace(join(spec.output, source), data)
    return source, len(data), crc


def _rows(storage: Storage, spec: SinkSpec, slices: Sequence[PartSlice]) -> Iterator[list[Any]]:
    paths = [join(spec.parts, each.part.catalog) for each in slices]
    texts = map_ordered(storage.read, paths, storage_threads(spec.parts))
    for path, data, each in zip(paths, texts, slices, strict=True):
        sidecar = parse_sidecar(data, spec.root)
        if sidecar is None:
            raise OutputError(f"{path} is damaged: run again.")
        yield from sidecar.rows[each.first : each.stop]
