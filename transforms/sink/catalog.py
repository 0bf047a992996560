"""Write the catalog of a shard from the rows that the sidecars of its parts hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from shardmill.schemas.dataset.catalog import catalog_name, format_catalog
from shardmill.schemas.dataset.manifest import CatalogFile
from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage import Storage, join
from shardmill.schemas.tfrecord.framing import crc32c
from shardmill.transforms.publish.publish import FinalFile
from shardmill.transforms.runtime.map_ordered import map_ordered, storage_threads
from shardmill.transforms.sink.assemble import BuiltShard, PartSlice, ShardJob
from shardmill.transforms.sink.parts import parse_sidecar
from shardmill.transforms.sink.spec import SHARDS_FOLDER, SinkSpec


def add_catalog(storage: Storage, spec: SinkSpec, job: ShardJob, built: BuiltShard) -> BuiltShard:
    """Write the catalog of a shard, and return the shard with it.

    A shard without records, or of tables and arrays, has none.

    Raises:
        FileNotFoundError: A part was deleted.
        OutputError: A sidecar is damaged.
    """
    slices = [each for each in job.slices if each.stop > each.first]
    if built.shard is None or not slices or not all(each.part.catalog for each in slices):
        return built
    data = format_catalog(_rows(storage, spec, slices), spec.record_id)
    crc, name = crc32c(data), catalog_name(built.shard.file)
    # Named by its content: workers with different releases of Arrow write different bytes.
    source = f"{spec.build_name}/{SHARDS_FOLDER}/{crc:08x}-{len(data)}.parquet"
    storage.replace(join(spec.output, source), data)
    shard = replace(built.shard, catalog=CatalogFile(name, len(data), f"{crc:08x}"))
    return replace(built, shard=shard, files=(*built.files, FinalFile(source, name, len(data))))


def _rows(storage: Storage, spec: SinkSpec, slices: Sequence[PartSlice]) -> Iterator[list[Any]]:
    paths = [join(spec.parts, each.part.catalog) for each in slices]
    texts = map_ordered(storage.read, paths, storage_threads(spec.parts))
    for path, data, each in zip(paths, texts, slices, strict=True):
        sidecar = parse_sidecar(data, spec.root)
        if sidecar is None:
            raise OutputError(f"{path} is damaged: run again.")
        yield from sidecar.rows[each.first : each.stop]
