"""Write records: framed, divided into members by order and bytes alone, and indexed.

Records of parts are written again in two cases.

Parts are cut between records, so that the shards of a build have equal numbers of records. A piece
of a part is a file like a part. Members that the cut does not divide are copied compressed, and the
bytes of the piece depend only on the part's bytes and on the range.

TensorFlow stops early if its last read of a gzip file begins inside the trailer of a member
(``inflate.find_early_stop``), as in about one shard in 200,000. Such a shard is written from the
records of its parts with members of another size, which depends only on its bytes.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO

import google_crc32c
import numpy as np
import numpy.typing as npt

from shardmill.schemas.errors import FormatError, OutputError
from shardmill.schemas.storage import RandomReader, Storage
from shardmill.schemas.tfrecord.framing import combine_crc32c, crc32c, frame_pieces, record_offsets
from shardmill.schemas.tfrecord.gzip_member import (
    HEADER,
    INDEX_BYTES,
    Member,
    Packing,
    Piece,
    build_index,
    deflate_offset,
    entry_bytes,
    fits,
    pack_body,
    read_index,
)
from shardmill.schemas.tfrecord.inflate import TENSORFLOW_READS, find_early_stop, inflate_member
from shardmill.schemas.tfrecord.reader import open_records, read_members, read_payloads
from shardmill.schemas.tfrecord.scanner import DamagedError
from shardmill.transforms.runtime.process_pool import usable_cores
from shardmill.transforms.sink.spec import damaged_part

MEMBER_BYTES = 2 << 20
_STEP = 64 << 10  # bytes added to a member; doubled on each attempt
_FARTHEST = TENSORFLOW_READS + INDEX_BYTES


@functools.cache
def _packers() -> ThreadPoolExecutor:
    """Return the threads that compress; the codec releases the GIL."""
    return ThreadPoolExecutor(usable_cores(), thread_name_prefix="pack")


class MemberWriter:
    """Frames records and divides them into gzip members by order and bytes alone.

    The first member of each group reserves space for the group's index, which is written when the
    group is closed. Members are compressed concurrently and written in order.

    Args:
        target: The new file.
        packing: Compression of the members.
        member_bytes: Bytes of records after which a member is closed; 0 for 2 MiB.
    """

    def __init__(self, target: IO[bytes], packing: Packing, member_bytes: int = 0) -> None:
        self._target = target
        self._member_bytes = member_bytes or MEMBER_BYTES
        self._packing = packing
        self._pending: list[Piece] = []
        self._pending_bytes = 0
        self._pending_records = 0
        self._packed: deque[tuple[Future[Sequence[Piece]], int]] = deque()
        self._group: list[Member] = []
        self._group_crc = 0
        self._group_entries = 0
        self.crc = 0
        self.num_bytes = 0

    def add(self, record: bytes) -> None:
        """Append one record."""
        self._append(frame_pieces(record), 1)

    def add_frames(self, frames: memoryview, lengths: npt.NDArray[np.int64]) -> None:
        """Append framed records; the members are the same as if they were added one by one.

        Args:
            frames: The frames, one after another.
            lengths: Bytes of each frame; int64, shape [records].
        """
        ends = np.cumsum(lengths)
        first = at = 0
        while first < len(ends):
            # A member is closed by the record that reaches its size, as in add.
            room = self._member_bytes - self._pending_bytes
            after = min(int(np.searchsorted(ends, at + room)) + 1, len(ends))
            end = int(ends[after - 1])
            self._append((frames[at:end],), after - first)
            first, at = after, end

    def add_member(self, packed: bytes, records: int) -> None:
        """Append a finished gzip member of this packing; its data is not compressed again."""
        self._flush()
        self._write([packed[deflate_offset(packed) :]], records)

    def close(self) -> None:
        """Write the pending records and the index."""
        self._flush()
        self._close_group()

    def _flush(self) -> None:
        self._close_member()
        while self._packed:
            self._write_first()

    def _append(self, pieces: Sequence[Piece], records: int) -> None:
        self._pending += pieces
        self._pending_bytes += sum(map(len, pieces))
        self._pending_records += records
        if self._pending_bytes >= self._member_bytes:
            self._close_member()

    def _close_member(self) -> None:
        if not self._pending:
            return
        pieces, records = self._pending, self._pending_records
        self._pending, self._pending_bytes, self._pending_records = [], 0, 0
        if self._packing != "deflated":
            self._write(pack_body(pieces, self._packing), records)
            return
        self._packed.append((_packers().submit(pack_body, pieces, self._packing), records))
        # Members are packed concurrently and written in the order in which they were filled; the
        # queue bounds memory where the storage is slower than the codec.
        if len(self._packed) > 2 * usable_cores():
            self._write_first()

    def _write_first(self) -> None:
        packed, records = self._packed.popleft()
        self._write(packed.result(), records)

    def _write(self, pieces: Sequence[Piece], records: int) -> None:
        """Write a member, or records that are not packed, from pieces without the gzip header."""
        size = sum(map(len, pieces))
        if self._packing == "none":
            self.crc = self._write_pieces(pieces, self.crc)
            self.num_bytes += size
            return
        # The index of a group is in the header of its first member, whose size is reserved before
        # the other members are known.
        member = Member(len(HEADER) + size, records)
        if self._group and not fits(self._group_entries + entry_bytes(member)):
            self._close_group()
        if self._group:
            pieces = [HEADER, *pieces]
        else:
            self._target.write(bytes(INDEX_BYTES))
            member = Member(INDEX_BYTES + size, records)
        self._group_crc = self._write_pieces(pieces, self._group_crc)
        self._group_entries += entry_bytes(member)
        self._group.append(member)

    def _write_pieces(self, pieces: Sequence[Piece], crc: int) -> int:
        for piece in pieces:
            self._target.write(piece)
            crc = google_crc32c.extend(crc, bytes(piece))
        return crc

    def _close_group(self) -> None:
        if not self._group:
            return
        index = build_index(self._group)
        size = sum(member.num_bytes for member in self._group)
        self._target.seek(self.num_bytes)
        self._target.write(index)
        self._target.seek(self.num_bytes + size)
        # The index is written last but comes first in the file, so the checksum of the file is
        # combined from the checksums of the index and of the bytes after it.
        self.crc = combine_crc32c(self.crc, crc32c(index), INDEX_BYTES)
        self.crc = combine_crc32c(self.crc, self._group_crc, size - INDEX_BYTES)
        self.num_bytes += size
        self._group, self._group_crc, self._group_entries = [], 0, 0


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
            raise damaged_part(source)
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
                raise _part_damaged_detail(source=source, error=error) from error
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
                raise _part_records_wrong()
        except FormatError as error:
            raise _part_damaged_detail(source=source, error=error) from error
        writer.close()
    return writer.num_bytes, writer.crc


def _copy_records(reader: RandomReader, first: int, stop: int, writer: MemberWriter) -> int:
    """Copy records of an uncompressed part; return their number."""
    copied = 0
    for record in itertools.islice(read_payloads(reader, "none"), first, stop):
        writer.add(record)
        copied += 1
    return copied


def _copy_members(reader: RandomReader, first: int, stop: int, writer: MemberWriter) -> int:
    """Copy records of a part that consists of members; return their number."""
    members = read_index(reader.read_at, reader.size) or []
    ends = list(itertools.accumulate(member.records for member in members))
    # Members that have a record of the range: they end after its first record, and begin before
    # its end.
    overlapping = [
        member
        for member, end in zip(members, ends, strict=True)
        if first < end < stop + member.records
    ]
    if not overlapping:
        return 0
    # Counts of records before a member come from the index: nothing before it is read.
    at = begin = ends[members.index(overlapping[0])] - overlapping[0].records
    for (offset, num_bytes, records), prefetched in read_members(reader, overlapping):
        data = prefetched or reader.read_at(offset, num_bytes)
        low, high = max(first - at, 0), min(stop - at, records)
        if high - low == records:
            writer.add_member(data, records)
        else:
            content = b"".join(inflate_member(data, offset))
            offsets = record_offsets(content)
            if len(offsets) != records + 1:
                raise _part_records_wrong()
            # The range begins or ends in this member: its records are packed again with its
            # neighbours' records, by the rule by which a part is written.
            kept = np.array(offsets[low : high + 1])
            writer.add_frames(memoryview(content)[kept[0] : kept[-1]], np.diff(kept))
        at += records
    return min(stop, at) - max(first, begin)


def _part_records_wrong() -> FormatError:
    return FormatError("its number of records is wrong")


def _part_damaged_detail(source: object, error: object) -> OutputError:
    return OutputError(f"{source} is damaged ({error}): run again.")
