"""Cut parts between records, so that the shards of a build have equal numbers of records.

A piece of a part is a file like a part. The members that the cut does not divide are copied as they
are compressed, and only the others are packed again. The bytes of a piece depend on those of the
part and on the range alone.
"""

from __future__ import annotations

import itertools

import numpy as np

from shardmill.schemas.errors import FormatError, OutputError
from shardmill.schemas.storage import RandomReader, Storage
from shardmill.schemas.tfrecord.framing import record_offsets
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.schemas.tfrecord.inflate import InflateError, inflate_member
from shardmill.schemas.tfrecord.member_index import read_index
from shardmill.schemas.tfrecord.range_scan import read_members
from shardmill.schemas.tfrecord.ranges import Range
from shardmill.schemas.tfrecord.reader import RecordReader
from shardmill.transforms.sink.record_writer import MemberWriter


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
