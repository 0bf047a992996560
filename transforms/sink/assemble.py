"""Assemble temporary shards from finished parts or pieces of them; the parts are not deleted."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from shardmill.schemas.dataset.catalog import format_catalog
from shardmill.schemas.dataset.manifest import CatalogFile, Shard
from shardmill.schemas.dataset.shard_names import catalog_name
from shardmill.schemas.errors import StaleBuildError
from shardmill.schemas.storage import Storage, join, map_ordered, storage_threads
from shardmill.schemas.tfrecord.framing import combine_crc32c, crc32c
from shardmill.schemas.tfrecord.gzip_member import Packing, empty_shard
from shardmill.transforms.publish.publish import FinalFile
from shardmill.transforms.sink.parts import PartFile, parse_sidecar
from shardmill.transforms.sink.placement import (
    REJECTED,
    Series,
    ShardSpec,
    count_shards,
    deal_parts,
    deal_records,
)
from shardmill.transforms.sink.record_writer import cut_part, loses_records, repack
from shardmill.transforms.sink.spec import SHARDS_FOLDER, SinkSpec, damaged_part


class PartSlice(NamedTuple):
    """The records ``first`` to ``stop - 1`` of a part."""

    part: PartFile
    first: int
    stop: int


@dataclass(frozen=True)
class PlannedShard:
    """A shard to assemble from slices of consecutive parts; no shard if ``total`` is 0."""

    series: Series
    index: int
    total: int
    slices: tuple[PartSlice, ...]


@dataclass(frozen=True)
class BuiltShard:
    """A temporary shard. The publishing worker holds all of them in memory, so it is small.

    Attributes:
        series: Series that it belongs to.
        index: Its number in the series.
        shard: Its entry in the manifest; None for inputs that were rejected while matching.
        files: The shard, and its catalog if it has one.
        rejects: File names of the sidecars of its parts with rejects, in the order of parts. A part
            belongs to the shard with its first record.
        failure: Why it could not be assembled; a sentence, or empty.
    """

    series: Series
    index: int
    shard: Shard | None = None
    files: tuple[FinalFile, ...] = ()
    rejects: tuple[str, ...] = ()
    failure: str = ""


def plan_shards(
    spec: ShardSpec, series: Series, parts: int, part_files: Sequence[PartFile]
) -> Iterator[PlannedShard]:
    """Yield the shards of a series.

    Args:
        spec: Number or size of the shards.
        series: The series.
        parts: Number of parts in the plan.
        part_files: The parts that have references.
    """
    all_slices = tuple(PartSlice(part, 0, part.records) for part in sorted(part_files))
    if series == REJECTED:
        yield PlannedShard(series, 0, 0, all_slices)
        return
    by_number = {part.number: part for part in part_files}
    # A part that no reference was placed in was never written; it counts as empty, so that
    # the others keep their numbers.
    ordered = [by_number.get(number) or PartFile(number) for number in range(parts)]
    records = [part.records for part in ordered]
    dealt: Iterable[list[tuple[int, int, int]]]
    if spec.num_shards is not None:
        total, dealt = spec.num_shards, deal_records(records, spec.num_shards)
    elif not any(records):
        yield PlannedShard(series, 0, 0, all_slices)
        return
    else:
        num_bytes = [part.num_bytes for part in ordered]
        shards = count_shards(spec, sum(records), sum(num_bytes), parts)
        sizes = num_bytes if spec.shard_examples is None else records
        ranges = deal_parts(sizes, shards)
        # Whole parts: no record is packed again.
        total = len(ranges)
        whole = [(number, 0, count) for number, count in enumerate(records)]
        dealt = (whole[numbers.start : numbers.stop] for numbers in ranges)
    # Only numbers are dealt; parts that were never written have no file to read from.
    for index, slices in enumerate(dealt):
        mine = (PartSlice(ordered[n], *bounds) for n, *bounds in slices if n in by_number)
        yield PlannedShard(series, index, total, tuple(mine))


def assemble_shard(
    storage: Storage, spec: SinkSpec, job: PlannedShard, packing: Packing
) -> BuiltShard:
    """Concatenate the slices of a shard to a file with a temporary name.

    Args:
        storage: Storage of the output.
        spec: Output and options of the build.
        job: The shard to assemble.
        packing: Compression of the parts. A gzip shard without records is an empty member.

    Raises:
        FileNotFoundError: A part was deleted.
    """
    rejects = tuple(
        part_slice.part.rejects
        for part_slice in job.slices
        if part_slice.part.rejects and not part_slice.first
    )
    if not job.total:
        return BuiltShard(job.series, 0, rejects=rejects)
    full = [part_slice for part_slice in job.slices if part_slice.part.payload]
    records = sum(part_slice.stop - part_slice.first for part_slice in full)
    names = spec.shards.template
    name = names.format(job.series.split, job.index, job.total, records, job.series.label)
    # Not the final name: attempts with other parts must not write to one file.
    source = f"{spec.build_name}/{SHARDS_FOLDER}/{_content_id(job, full)}"
    path = join(spec.output, source)
    size, crc = 0, 0
    if not full:
        empty = b"" if packing == "none" else empty_shard()
        with storage.open_write(path) as target:
            size, crc = target.write(empty), crc32c(empty)
    with _open_slices(storage, spec.parts, full, path, packing) as pieces:
        for _, num_bytes, piece_crc in pieces:
            # gzip members may be concatenated (RFC 1952 section 2.2), so the shard's checksum
            # follows from its parts' checksums, and the bytes are not read.
            crc = combine_crc32c(crc, piece_crc, num_bytes)
            size += num_bytes
        sources = [piece for piece, *_ in pieces]
        # Decided by the sizes of members, so each run and runner repacks the same shards.
        if packing != "none" and loses_records(storage, sources, size):
            size, crc = repack(storage, sources, path, packing)
        elif sources:
            storage.concat(sources, path)
    shard = Shard(name, records, size, f"{crc:08x}", job.series.label or None)
    files = (FinalFile(source, name, size),)
    return BuiltShard(job.series, job.index, shard, files, rejects)


@contextlib.contextmanager
def _open_slices(
    storage: Storage, folder: str, slices: Sequence[PartSlice], path: str, packing: Packing
) -> Iterator[list[tuple[str, int, int]]]:
    """Return files with the records of slices as (path, size, CRC-32C); delete pieces at the end.

    Pieces have unique names, since another builder of this output may cut the same parts.
    """
    pieces: list[str] = []
    files = []
    try:
        for part, first, stop in slices:
            source = join(folder, part.payload)
            # A whole part is used unchanged: its members keep their bytes.
            if stop - first == part.records:
                files.append((source, part.num_bytes, part.crc32c))
                continue
            pieces.append(f"{path}.{uuid.uuid4().hex}.piece")
            cut = cut_part(storage, source, first, stop, pieces[-1], packing)
            files.append((pieces[-1], *cut))
        yield files
    finally:  # also after a failure: a rerun cuts pieces under new names
        for piece in pieces:
            storage.delete(piece)


def _content_id(job: PlannedShard, slices: Sequence[PartSlice]) -> str:
    """Return a name for a temporary shard that depends on its content alone.

    Killed attempts do not accumulate files: the next one replaces theirs.
    """
    contents = [
        (part_slice.part.payload, part_slice.first, part_slice.stop) for part_slice in slices
    ]
    text = repr((tuple(job.series), job.index, job.total, contents))
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"shardmill-shard").hexdigest()


def add_catalog(
    storage: Storage, spec: SinkSpec, job: PlannedShard, built: BuiltShard
) -> BuiltShard:
    """Write the catalog of a shard, and return the shard with it.

    A shard without records, or of tables and arrays, has none.

    Raises:
        FileNotFoundError: A part was deleted.
        OutputError: A sidecar is damaged.
    """
    slices = [part_slice for part_slice in job.slices if part_slice.stop > part_slice.first]
    if (
        built.shard is None
        or not slices
        or not all(part_slice.part.catalog for part_slice in slices)
    ):
        return built
    data = format_catalog(_rows(storage, spec, slices), spec.record_id, built.shard.crc32c)
    crc, name = crc32c(data), catalog_name(built.shard.file)
    # Named by its content: workers with different releases of Arrow write different bytes.
    source = f"{spec.build_name}/{SHARDS_FOLDER}/{crc:08x}-{len(data)}.parquet"
    storage.replace(join(spec.output, source), data)
    shard = replace(built.shard, catalog=CatalogFile(name, len(data), f"{crc:08x}"))
    return replace(built, shard=shard, files=(*built.files, FinalFile(source, name, len(data))))


def _rows(storage: Storage, spec: SinkSpec, slices: Sequence[PartSlice]) -> Iterator[list[Any]]:
    paths = [join(spec.parts, part_slice.part.catalog) for part_slice in slices]
    texts = map_ordered(storage.read, paths, storage_threads(spec.parts))
    for path, data, part_slice in zip(paths, texts, slices, strict=True):
        sidecar = parse_sidecar(data, spec.root)
        if sidecar is None:
            raise damaged_part(path)
        # A sidecar has a row for each record of its part, in order, so a cut divides both alike.
        yield from sidecar.rows[part_slice.first : part_slice.stop]


@contextlib.contextmanager
def raise_if_stale() -> Iterator[None]:
    """Raise ``StaleBuildError`` if a file of the build is missing."""
    try:
        yield
    except FileNotFoundError as error:
        path = error.filename or error
        raise StaleBuildError(
            f"{path} is gone: another command published or cleaned this output; run again."
        ) from error
