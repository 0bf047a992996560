"""Write the catalog of a shard from the rows that the sidecars of its parts hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from shardmill.schemas.dataset.catalog import format_catalog
from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage import Storage, join
from shardmill.schemas.tfrecord.framing import crc32c
from shardmill.transforms.build.assemble import ShardJob
from shardmill.transforms.build.parts import parse_sidecar
from shardmill.transforms.build.spec import SHARDS_FOLDER, SinkSpec
from shardmill.transforms.runtime.map_ordered import map_ordered, storage_threads


class BuiltCatalog(NamedTuple):
    """A finished catalog.

    Attributes:
        source: Current path, relative to the output.
        num_bytes: Size.
        crc32c: CRC-32C of the file.
    """

    source: str
    num_bytes: int
    crc32c: int


def write_catalog(storage: Storage, spec: SinkSpec, job: ShardJob) -> BuiltCatalog | None:
    """Write the catalog of a shard; None for a shard without records, or of tables and arrays.

    Raises:
        FileNotFoundError: A part was deleted.
        OutputError: A sidecar is damaged.
    """
    full = [part for part in job.parts if part.payload]
    if not job.total or not full or not all(part.catalog for part in full):
        return None
    data = format_catalog(_rows(storage, spec, [part.catalog for part in full]), spec.record_id)
    crc = crc32c(data)
    # Named by its content: workers with different releases of Arrow write different bytes.
    source = f"{spec.build_name}/{SHARDS_FOLDER}/{crc:08x}-{len(data)}.parquet"
    storage.replace(join(spec.output, source), data)
    return BuiltCatalog(source, len(data), crc)


def _rows(storage: Storage, spec: SinkSpec, sidecars: list[str]) -> Iterator[list[Any]]:
    paths = [join(spec.parts, name) for name in sidecars]
    for path, data in zip(
        paths, map_ordered(storage.read, paths, storage_threads(spec.parts)), strict=True
    ):
        sidecar = parse_sidecar(data)
        if sidecar is None:
            raise OutputError(f"{path} is damaged: run again.")
        yield from sidecar.rows
