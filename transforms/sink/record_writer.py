"""Write records: framed, divided into members by order and bytes alone, and indexed."""

from __future__ import annotations

import functools
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO

import google_crc32c
import numpy as np
import numpy.typing as npt

from shardmill.schemas.tfrecord.framing import combine_crc32c, crc32c, frame
from shardmill.schemas.tfrecord.gzip_member import (
    HEADER,
    Member,
    Packing,
    deflate_offset,
    pack_member,
)
from shardmill.schemas.tfrecord.member_index import INDEX_BYTES, build_index, entry_bytes, fits
from shardmill.transforms.runtime.process_pool import usable_cores

MEMBER_BYTES = 2 << 20


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
        self._pending: list[bytes | memoryview] = []
        self._pending_bytes = 0
        self._pending_records = 0
        self._packed: deque[tuple[Future[bytes], int]] = deque()
        self._group: list[Member] = []
        self._group_crc = 0
        self._group_entries = 0
        self.crc = 0
        self.num_bytes = 0

    def add(self, record: bytes) -> None:
        """Append one record."""
        self._append(frame(record), 1)

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
            self._append(frames[at:end], after - first)
            first, at = after, end

    def add_member(self, packed: bytes, records: int) -> None:
        """Append a finished gzip member of this packing; its data is not compressed again."""
        self._flush()
        self._write(HEADER + packed[deflate_offset(packed) :], records)

    def close(self) -> None:
        """Write the pending records and the index."""
        self._flush()
        self._close_group()

    def _flush(self) -> None:
        self._close_member()
        while self._packed:
            self._write_first()

    def _append(self, frames: bytes | memoryview, records: int) -> None:
        self._pending.append(frames)
        self._pending_bytes += len(frames)
        self._pending_records += records
        if self._pending_bytes >= self._member_bytes:
            self._close_member()

    def _close_member(self) -> None:
        if not self._pending:
            return
        data, records = b"".join(self._pending), self._pending_records
        self._pending, self._pending_bytes, self._pending_records = [], 0, 0
        if self._packing != "deflated":
            self._write(pack_member(data, self._packing), records)
            return
        self._packed.append((_packers().submit(pack_member, data, self._packing), records))
        # Members are packed concurrently and written in the order in which they were filled; the
        # queue bounds memory where the storage is slower than the codec.
        if len(self._packed) > 2 * usable_cores():
            self._write_first()

    def _write_first(self) -> None:
        packed, records = self._packed.popleft()
        self._write(packed.result(), records)

    def _write(self, packed: bytes, records: int) -> None:
        member = Member(len(packed), records)
        if self._packing == "none":
            self._target.write(packed)
            self.crc = google_crc32c.extend(self.crc, packed)
            self.num_bytes += len(packed)
            return
        # The index of a group is in the header of its first member, whose size is reserved before
        # the other members are known.
        if self._group and not fits(self._group_entries + entry_bytes(member)):
            self._close_group()
        if not self._group:
            packed = packed[len(HEADER) :]
            member = Member(INDEX_BYTES + len(packed), member.records)
            self._target.write(bytes(INDEX_BYTES))
        self._target.write(packed)
        self._group_crc = google_crc32c.extend(self._group_crc, packed)
        self._group_entries += entry_bytes(member)
        self._group.append(member)

    def _close_group(self) -> None:
        if not self._group:
            return
        index = build_index(self._group)
        size = sum(member.num_bytes for member in self._group)
        self._target.seek(self.num_bytes)
        self._target.write(index)
        self._target.seek(self.num_bytes + size)
        # The index is written last but comes first in the file, so the checksum of the file is put
        # together from the checksums of the index and of what follows it.
        self.crc = combine_crc32c(self.crc, crc32c(index), INDEX_BYTES)
        self.crc = combine_crc32c(self.crc, self._group_crc, size - INDEX_BYTES)
        self.num_bytes += size
        self._group, self._group_crc, self._group_entries = [], 0, 0
