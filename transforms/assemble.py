"""Assembling: finished parts become temporary shards; nothing of the parts is deleted."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from shardmill.schemas.framing import combine_crc32c, crc32c
from shardmill.schemas.index import build_indexes
from shardmill.schemas.members import Member
from shardmill.schemas.names import ShardName, ShardTemplate
from shardmill.schemas.storage import Storage, join
from shardmill.transforms.parts import FOLDER as PARTS_FOLDER
from shardmill.transforms.parts import Part
from shardmill.transforms.placement import REFUSED, PartKey, Series
from shardmill.transforms.planning import ShardSpec, count_shards, deal_parts

SHARDS_FOLDER = "shards"


@dataclass(frozen=True)
class ShardJob:
    """One shard that is to be assembled from consecutive parts; no shard where total is 0."""

    series: Series
    index: int
    total: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class BuiltShard:
    """A temporary shard, and the tallies of its parts.

    Attributes:
        series: Series that it belongs to.
        index: Its number in the series.
        file: Final name; empty for the refs that were refused while matching.
        source: Where it lies now, relative to the build folder.
        num_bytes: Size.
        crc32c: CRC-32C of the file.
        parts: The parts it was made of, without their members.
    """

    series: Series
    index: int
    file: str
    source: str
    num_bytes: int
    crc32c: int
    parts: tuple[Part, ...] = field(default=())

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(part.records for part in self.parts)


def plan_shards(
    spec: ShardSpec, series: Series, parts: int, found: Sequence[Part]
) -> Iterator[ShardJob]:
    """Yields the shards of a series.

    Args:
        spec: What shards are wanted.
        series: The series.
        parts: How many parts it has by plan.
        found: The parts that got any refs.
    """
    by_number = {part.key[2]: part for part in found}
    ordered = [by_number.get(n) or Part(PartKey(*series, n)) for n in range(parts)]
    if series == REFUSED:
        yield ShardJob(series, 0, 0, tuple(sorted(found, key=lambda part: part.key[2])))
        return
    records = sum(part.records for part in ordered)
    num_bytes = sum(part.num_bytes for part in ordered)
    shards = count_shards(spec, records, num_bytes, parts)
    by_records = spec.shard_examples is not None
    sizes = [part.records if by_records else part.num_bytes for part in ordered]
    ranges = deal_parts(sizes, shards, exact=spec.num_shards is not None)
    for index, numbers in enumerate(ranges):
        mine = tuple(ordered[n] for n in numbers if n in by_number)
        yield ShardJob(series, index, len(ranges), mine)


def assemble_shard(
    storage: Storage, build: str, job: ShardJob, template: ShardTemplate, *, indexed: bool
) -> BuiltShard:
    """Concatenates a shard's parts under a temporary name.

    Args:
        storage: Where the build folder lies.
        build: The build folder.
        job: What to assemble.
        template: Pattern of the final name.
        indexed: Whether the shard is gzip and gets an index.

    Raises:
        FileNotFoundError: A part is gone.
    """
    slim = tuple(_without_members(part) for part in job.parts)
    if not job.total:
        return BuiltShard(job.series, 0, "", "", 0, 0, slim)
    full = [part for part in job.parts if part.payload]
    members = [[Member(*member) for member in part.members] for part in full]
    tail = build_indexes(members) if indexed else []
    crc, size = _checksum(full, tail)
    records = sum(part.records for part in full)
    name = template.format(
        ShardName(job.series.split, job.index, job.total, records, job.series.label)
    )
    source = f"{SHARDS_FOLDER}/{uuid.uuid4().hex}"
    sources = [join(build, PARTS_FOLDER, part.payload) for part in full]
    storage.concat(sources, tail, join(build, source))
    return BuiltShard(job.series, job.index, name, source, size, crc, slim)


def _checksum(parts: Sequence[Part], tail: Sequence[tuple[int, bytes]]) -> tuple[int, int]:
    """Returns the CRC-32C and size of parts with indexes between them, from the parts' own."""
    crc = size = 0
    indexes = dict(tail)
    for number in range(len(parts) + 1):
        if number in indexes:
            crc = combine_crc32c(crc, crc32c(indexes[number]), len(indexes[number]))
            size += len(indexes[number])
        if number < len(parts):
            crc = combine_crc32c(crc, parts[number].crc32c, parts[number].num_bytes)
            size += parts[number].num_bytes
    return crc, size


def _without_members(part: Part) -> Part:
    return replace(part, members=())
