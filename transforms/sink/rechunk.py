"""Write records of parts again: pieces of parts, and shards that TensorFlow would not read.

Parts are cut between records, so that the shards of a build have equal numbers of records. A piece
of a part is a file like a part. The members that the cut does not divide are copied as they are
compressed, and only the others are packed again. The bytes of a piece depend on those of the part
and on the range alone.

TensorFlow stops where its last read of a gzip file begins inside the trailer of a member
(``inflate.find_early_stop``); about one shard in 200,000 is affected. Such a shard is written again
from the records of its parts, with members of another size, which its bytes alone decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from shardmill.schemas.errors import FormatError, OutputError
from shardmill.schemas.storage import RandomReader, Storage
from shardmill.schemas.tfrecord.framing import record_offsets
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.schemas.tfrecord.inflate import (
    TENSORFLOW_READS,
    InflateError,
    find_early_stop,
    inflate_member,
)
from shardmill.schemas.tfrecord.member_index import INDEX_BYTES, read_index
from shardmill.schemas.tfrecord.range_scan import read_members
from shardmill.schemas.tfrecord.ranges import Range
from shardmill.schemas.tfrecord.reader import RecordReader, open_records
from shardmill.schemas.tfrecord.scanner import DamagedError
from shardmill.transforms.sink.record_writer import MEMBER_BYTES, MemberWriter

_STEP = 64 << 10  # bytes added to a member; doubled on each attempt
_FARTHEST = TENSORFLOW_READS + INDEX_BYTES


def loses_records(storage: Storage, sources: Sequence[str], size: int) -> bool:
    """Return whether TensorFlow would stop before the end of the concatenation of parts.

    Args:
        storage: Storage of the parts.
        sources: Paths of the parts, in order.
        size: Total bytes.
    """
    if size <= TENSORFLOW_READS:
        return False
    ends: list[int] = []
    at = size
    # Only the last reads of TensorFlow matter, so the parts are opened from the end.
    for source in reversed(sources):
        with storage.open_at(source) as reader:
            at -= reader.size
            members = read_index(reader.read_at, reader.size)
        if members is None:
            raise OutputError("part-damaged", path=source)
        ends += [at + member.offset + member.num_bytes for member in members]
        if at < size - _FARTHEST:
            break
    return find_early_stop(ends, size) >= 0


def repack(
    storage: Storage, sources: Sequence[str], path: str, packing: Packing
) -> tuple[int, int]:
    """Write the records of parts to one file that TensorFlow reads to its end.

    Args:
        storage: Storage of the parts.
        sources: Paths of the parts, in order.
        path: The new file.
        packing: Compression of the parts.

    Returns:
        Size and CRC-32C of the file.

    Raises:
        OutputError: A part is damaged.
    """
    # A member of another size moves all later ends; steps double, so that a search that fails
    # for one size does not fail for the same reason again.
    for attempt in itertools.count():
        with storage.open_write(path) as target:
            writer = MemberWriter(target, packing, MEMBER_BYTES + (_STEP << attempt))
            try:
                for source in sources:
                    with open_records(source) as records:
                        for record in records:
                            writer.add(record)
            except DamagedError as error:
                raise OutputError("part-damaged-detail", source=source, error=error) from error
            writer.close()
        if not loses_records(storage, [path], writer.num_bytes):
            return writer.num_bytes, writer.crc
    raise AssertionError("unreachable")


def cut_part(
    storage: Storage, source: str, first: int, stop: int, path: str, packing: Packing
) -> tuple[int, int]:
    """Write some records of a part to a new file.

    Args:
        storage: Storage of the part.
        source: Path of the part.
        first: Number of the first record.
        stop: Number after the last record.
        path: The new file.
        packing: Compression of the part.

    Returns:
        Size and CRC-32C of the new file.

    Raises:
        FileNotFoundError: The part was deleted.
        OutputError: The part is damaged.
    """
    copy = _copy_records if packing == "none" else _copy_members
    with storage.open_at(source) as reader, storage.open_write(path) as target:
        writer = MemberWriter(target, packing)
        try:
            if copy(reader, first, stop, writer) != stop - first:
                raise FormatError("part-records-wrong")
        except (FormatError, InflateError) as error:
            raise OutputError("part-damaged-detail", source=source, error=error) from error
        writer.close()
    return writer.num_bytes, writer.crc


def _copy_records(reader: RandomReader, first: int, stop: int, writer: MemberWriter) -> int:
    """Copy records of an uncompressed part; return their number."""
    copied = 0
    for record in itertools.islice(RecordReader(reader, "none", 0), first, stop):
        writer.add(record)
        copied += 1
    return copied


def _copy_members(reader: RandomReader, first: int, stop: int, writer: MemberWriter) -> int:
    """Copy records of a part that consists of members; return their number."""
    members = read_index(reader.read_at, reader.size) or []
    ends = list(itertools.accumulate(member.records for member in members))
    # Members that have a record of the range: they end after its first record, and begin before
    # its end.
    wanted = [m for m, end in zip(members, ends, strict=True) if first < end < stop + m.records]
    if not wanted:
        return 0
    # Counts of records before a member come from the index: nothing before it is read.
    at = begin = ends[members.index(wanted[0])] - wanted[0].records
    sizes = tuple((member.num_bytes, member.records) for member in wanted)
    last = wanted[-1].offset + wanted[-1].num_bytes
    needed = Range("", "", reader.size, "indexed", wanted[0].offset, last, sizes)
    for offset, num_bytes, records, found in read_members(reader, needed):
        data = found or reader.read_at(offset, num_bytes)
        low, high = max(first - at, 0), min(stop - at, records)
        if high - low == records:
            writer.add_member(data, records)
        else:
            content = b"".join(inflate_member(data, offset))
            offsets = record_offsets(content)
            if len(offsets) != records + 1:
                raise FormatError("part-records-wrong")
            # The range begins or ends in this member: its records are packed again with those of
            # its neighbours, by the same rule by which a part is written.
            kept = np.array(offsets[low : high + 1])
            writer.add_frames(memoryview(content)[kept[0] : kept[-1]], np.diff(kept))
        at += records
    return min(stop, at) - max(first, begin)
