"""Assemble temporary shards from finished parts; the parts are not deleted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardmill.schemas.dataset.shard_names import ShardName, ShardTemplate
from shardmill.schemas.storage import Storage, join
from shardmill.schemas.tfrecord.framing import combine_crc32c, crc32c
from shardmill.schemas.tfrecord.member_index import empty_shard
from shardmill.transforms.build.parts import PartFile
from shardmill.transforms.build.placement import REJECTED, Series
from shardmill.transforms.build.planning import ShardSpec, count_shards, deal_parts
from shardmill.transforms.build.rechunk import loses_records, repack
from shardmill.transforms.build.spec import PARTS_FOLDER, SHARDS_FOLDER


@dataclass(frozen=True)
class ShardJob:
    """A shard to assemble from consecutive parts; no shard if ``total`` is 0."""

    series: Series
    index: int
    total: int
    parts: tuple[PartFile, ...]


@dataclass(frozen=True)
class BuiltShard:
    """A temporary shard. The publishing worker holds all of them in memory, so it is small.

    Attributes:
        series: Series that it belongs to.
        index: Its number in the series.
        file: Final name; empty for the series of inputs that were rejected while matching.
        source: Current path, relative to the output.
        num_bytes: Size.
        crc32c: CRC-32C of the file.
        records: Number of records.
        rejects: File names of the sidecars of its parts with rejects, in the order of parts.
        failure: Why it could not be assembled; a sentence, or empty.
        catalog: Path relative to the output, size and CRC-32C of its catalog; None for none.
    """

    series: Series
    index: int
    file: str = ""
    source: str = ""
    num_bytes: int = 0
    crc32c: int = 0
    records: int = 0
    rejects: tuple[str, ...] = ()
    failure: str = ""
    catalog: tuple[str, int, int] | None = None


def plan_shards(
    spec: ShardSpec, series: Series, parts: int, found: Sequence[PartFile]
) -> Iterator[ShardJob]:
    """Yield the shards of a series.

    Args:
        spec: Number or size of the shards.
        series: The series.
        parts: Number of parts in the plan.
        found: The parts that have references.
    """
    if series == REJECTED:
        yield ShardJob(series, 0, 0, tuple(sorted(found)))
        return
    by_number = {part.number: part for part in found}
    ordered = [by_number.get(number) or PartFile(number) for number in range(parts)]
    records = sum(part.records for part in ordered)
    if not records and spec.num_shards is None:
        yield ShardJob(series, 0, 0, tuple(sorted(found)))
        return
    num_bytes = sum(part.num_bytes for part in ordered)
    shards = count_shards(spec, records, num_bytes, parts)
    by_records = spec.shard_examples is not None
    sizes = [part.records if by_records else part.num_bytes for part in ordered]
    ranges = deal_parts(sizes, shards, exact=spec.num_shards is not None)
    for index, numbers in enumerate(ranges):
        mine = tuple(ordered[n] for n in numbers if n in by_number)
        yield ShardJob(series, index, len(ranges), mine)


def assemble_shard(
    storage: Storage,
    output: str,
    build: str,
    job: ShardJob,
    template: ShardTemplate,
    *,
    gzip: bool,
) -> BuiltShard:
    """Concatenate the parts of a shard to a file with a temporary name.

    Args:
        storage: Storage of the output.
        output: The output folder.
        build: Name of the build folder in it.
        job: The shard to assemble.
        template: Pattern of the final name.
        gzip: Whether shards are gzip; one without records is then an empty member.

    Raises:
        FileNotFoundError: A part was deleted.
    """
    rejects = tuple(part.rejects for part in job.parts if part.rejects)
    if not job.total:
        return BuiltShard(job.series, 0, rejects=rejects)
    full = [part for part in job.parts if part.payload]
    records = sum(part.records for part in full)
    name = template.format(
        ShardName(job.series.split, job.index, job.total, records, job.series.label)
    )
    empty = b"" if full or not gzip else empty_shard()
    crc, size = crc32c(empty), len(empty)
    for part in full:
        crc = combine_crc32c(crc, part.crc32c, part.num_bytes)
        size += part.num_bytes
    source = f"{build}/{SHARDS_FOLDER}/{_content_id(job, full)}"
    path = join(output, source)
    sources = [join(output, build, PARTS_FOLDER, part.payload) for part in full]
    if gzip and loses_records(storage, sources, size):
        size, crc = repack(storage, sources, path)
    elif not _is_assembled(storage, path, size, crc):
        storage.concat(sources or [empty], path)
    return BuiltShard(job.series, job.index, name, source, size, crc, records, rejects)


def _content_id(job: ShardJob, parts: Sequence[PartFile]) -> str:
    """Return a name for a temporary shard that depends on its content alone.

    Killed attempts do not accumulate files, and a shard that one of them finished is reused.
    """
    text = repr((tuple(job.series), job.index, job.total, [part.payload for part in parts]))
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"shardmill-shard").hexdigest()


def _is_assembled(storage: Storage, path: str, size: int, crc: int) -> bool:
    try:
        # In this order: an object store answers the first call of a missing file with one request,
        # but stat needs two, since the path may be a folder.
        if storage.checksum(path) != crc:
            return False
        entry = storage.stat(path)
    except FileNotFoundError:
        return False
    return entry is not None and entry.size == size
