"""ShardFiles: random access to the records of shards, in bounded memory."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardmill.loaders.caches import DiskCache, LruCache, Spare, spare_bytes
from shardmill.loaders.order import GROUP, Chunk
from shardmill.loaders.source import Source, open_catalog
from shardmill.loaders.stats import BYTES, LOOKUPS, MISSES, REQUESTS, Counters
from shardmill.schemas.dataset.shard_names import check_not_deleted
from shardmill.schemas.errors import FormatError, InputError
from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.numbers import plural
from shardmill.schemas.storage import map_ordered, scheme_of
from shardmill.schemas.tfrecord.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    payload_at,
    record_offsets,
    unframe,
)
from shardmill.schemas.tfrecord.gzip_member import (
    INDEX_BYTES,
    LENGTH_BYTES,
    find_blocks,
    stored_range,
    strip_block_headers,
)
from shardmill.schemas.tfrecord.inflate import inflate_member
from shardmill.schemas.tfrecord.members import FileReads, Members, OpenFile, read_members
from shardmill.schemas.tfrecord.scanner import DamagedError

_CACHE_BYTES = 64 << 20  # of inflated members; as many of record offsets, of indexes and of keys
_MAX_OPEN_FILES = 64
_REMOTE_THREADS = 16


class _Layout(NamedTuple):
    """Positions of the records of a member.

    Attributes:
        offsets: Of each record in the content, and its end; shape [records + 1].
        data_offset: Position in the file of the first stored block, or of the content of an
            uncompressed chunk; -1 if the member must be inflated.
    """

    offsets: npt.NDArray[Any]
    data_offset: int


def _file_cost(_: OpenFile) -> int:
    return 1


def _members_cost(members: Members) -> int:
    return 24 * len(members.first) + 512


def _layout_cost(layout: _Layout) -> int:
    return layout.offsets.nbytes + 256


class Caches(NamedTuple):
    """Limits of caches.

    Attributes:
        memory: Maximum bytes of inflated members in memory; of record offsets, of member indexes
            and of keys. None to begin with 64 MiB each, and to let reused ones take
            up to ``spare_bytes`` together.
        disk: Copies of remote shards, or None.
    """

    memory: int | None
    disk: DiskCache | None = None


class _ProcessCaches:
    """The caches of this process, which copies of ``ShardFiles`` share."""

    def __init__(self, given: int | None) -> None:
        self._given = given
        self.drop()

    def drop(self) -> None:
        """Begin with empty caches, and leave the former ones to threads that still use them."""
        given = self._given
        memory = _CACHE_BYTES if given is None else given
        spare = Spare(max(0, spare_bytes() - 4 * memory) if given is None else 0)
        self.files = LruCache(_MAX_OPEN_FILES, Spare(0))
        self.tables, self.layouts, self.contents, self.keys = (
            LruCache(memory, spare) for _ in range(4)
        )
        self.pid = os.getpid()


class ShardFiles:
    """Random access to the records of shards; may be pickled, forked and shared by threads.

    Args:
        source: The opened dataset.
        caches: Limits of the caches.
        counters: Count what is read; None if they are not needed.
    """

    def __init__(self, source: Source, caches: Caches, counters: Counters | None = None) -> None:
        self._source, self._limits = source, caches
        self._paths, self._shards = source.paths, source.shards
        self._caches = _ProcessCaches(caches.memory)
        self._counters = counters or Counters()

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns the arguments, without open files and caches."""
        return ShardFiles, (self._source, self._limits, self._counters)

    def counting(self, counters: Counters) -> ShardFiles:
        """Returns the same files with the same caches, whose reads other counters count."""
        copied = self.__new__(type(self))
        copied.__dict__.update(self.__dict__, _counters=counters)
        return copied

    def close(self) -> None:
        """Closes files and drops caches; reading opens them again."""
        self._caches.drop()

    @property
    def _cache(self) -> _ProcessCaches:
        """The caches of this process: a forked child may inherit locks that stay held."""
        if self._caches.pid != os.getpid():
            self._caches.drop()
        return self._caches

    @cached_property
    def record_bytes(self) -> int:
        """Average bytes of a record, not compressed, in the shards that are mixed.

        All shards are if each has a label; else it is of the group with the largest records.
        """
        filled = [shard for shard in self._shards if shard.records]
        if all(shard.label is None for shard in filled):
            filled = sorted(filled, key=lambda shard: shard.bytes / shard.records)[-GROUP:]
        records = max(1, sum(shard.records for shard in filled))
        return max(1, int(sum(shard.bytes for shard in filled) * self._inflation) // records)

    @cached_property
    def _inflation(self) -> float:
        """Bytes of records in a byte of the shards, as in the first member; of a mix the maximum.

        Raises:
            InputError: The shard does not match the manifest.
        """
        firsts = self._source.first_parts
        threads = _REMOTE_THREADS if self.is_remote else 0
        return max(map_ordered(self._inflation_of, firsts, threads), default=1.0)

    def _inflation_of(self, shard: int) -> float:
        try:
            members = self._members(shard)
            size = content = int(members.num_bytes[0])
            if members.is_gzip:
                length = self._read_at(self._open(shard), size - LENGTH_BYTES, LENGTH_BYTES)
                content = int.from_bytes(length, "little")
                size -= INDEX_BYTES  # which is part of the first member
            payloads = content - (HEADER_BYTES + FOOTER_BYTES) * int(members.first[1])
            if payloads < 0:  # as the zeros that a crash leaves in a copy
                raise FormatError("the length of its first member is damaged")
        except FormatError as error:
            raise self._damaged(shard, 0, error) from error
        return payloads / max(1, size)

    def bytes_of(self, chunk: Chunk) -> int:
        """Returns the approximate bytes of some records of a member, not compressed."""
        members = self._members(chunk.part)
        number = int(members.first.searchsorted(chunk.records[0], "right")) - 1
        share = len(chunk.records) / int(members.first[number + 1] - members.first[number])
        return int(int(members.num_bytes[number]) * self._inflation * share)

    @cached_property
    def reads_alone(self) -> bool:
        """Whether a record is read without its whole member, as the first member shows."""
        firsts = self._source.first_parts
        for number in firsts:
            self.member_bounds(number)  # an error of it is one sentence
            if self._caches_content(self._layout(number, 0).data_offset):
                return False
        return bool(firsts)

    def payload(self, shard: int, record: int) -> bytes:
        """Returns the payload of one record after checking its CRCs.

        Args:
            shard: Number of the shard.
            record: Number of the record in it.

        Raises:
            InputError: The shard does not match the manifest, or the record is damaged.
            StorageError: The storage failed.
        """
        try:
            return self._source.adapt(shard, unframe(self._framed_record(shard, record)))
        except FormatError as error:
            raise self._damaged(shard, record, error) from error

    def id_of(self, shard: int, record: int, payload: bytes) -> str:
        """Returns the key of a record: of its image, or of rows with ``--key``; else its place.

        Raises:
            InputError: The catalog cannot be read.
        """
        entry = self._shards[shard]
        if entry.catalog is None:
            column = self._source.manifest.build.config.get("key") or ""
            feature = parse_example(payload).get(column)
            if feature is None or len(feature.values) != 1:
                return f"{entry.file}:{record}"
            key = feature.values[0]
            if isinstance(key, bytes):
                return key.decode("utf-8", "backslashreplace")
            return str(key)
        folder = self._source.folder_of(shard)
        make = lambda: open_catalog(folder, entry, ["key"]).column("key").to_pylist()  # noqa: E731
        keys = self._cache.keys.get(shard, make, lambda made: sum(map(sys.getsizeof, made)))
        return str(keys[record])

    def member_bounds(self, shard: int) -> list[int]:
        """Returns the number of the first record of each member of a shard, and of all records.

        Raises:
            InputError: The shard does not match the manifest.
        """
        try:
            bounds: list[int] = self._members(shard).first.tolist()
        except FormatError as error:
            raise self._damaged(shard, 0, error) from error
        return bounds

    def bounds_of(self, shards: Sequence[int]) -> list[list[int]]:
        """Returns the member bounds of several shards; remote ones are opened at the same time."""
        threads = _REMOTE_THREADS if self.is_remote else 0
        return list(map_ordered(self.member_bounds, shards, threads))

    def payloads(self, shard: int, first: int, stop: int) -> list[bytes]:
        """Returns the payloads of records first to stop - 1, which are of one member.

        Raises:
            InputError: The shard does not match the manifest, or a record is damaged.
        """
        payloads: list[bytes] = []
        try:
            members = self._members(shard)
            number = int(members.first.searchsorted(first, "right")) - 1
            content = self._read_content(shard, number)[1]
            base = int(members.first[number])
            offsets = self._record_offsets(members, number, content)[first - base : stop - base + 1]
            for start, end in pairwise(offsets):
                payloads.append(self._source.adapt(shard, payload_at(content, start, end)))
        except FormatError as error:
            raise self._damaged(shard, first + len(payloads), error) from error
        return payloads

    def records(self, shard: int, first: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yields the numbers and payloads of records first to stop - 1, in memory of a member.

        Raises:
            InputError: The shard does not match the manifest, or a record is damaged.
        """
        for begin, end in pairwise(self.member_bounds(shard)):
            low, high = max(begin, first), min(end, stop)
            if low < high:
                yield from enumerate(self.payloads(shard, low, high), low)

    def _framed_record(self, shard: int, record: int) -> bytes:
        members = self._members(shard)
        number = int(members.first.searchsorted(record, "right")) - 1
        offsets, data_offset = self._layout(shard, number)
        inside = record - int(members.first[number])
        start, end = int(offsets[inside]), int(offsets[inside + 1])
        if self._caches_content(data_offset):
            self._counters.cells[LOOKUPS] += 1
            make = partial(self._read_cached_content, shard, number)
            return self._cache.contents.get((shard, number), make, sys.getsizeof)[start:end]
        file = self._open(shard)
        if not members.is_gzip:
            return self._read_at(file, data_offset + start, end - start)
        first, last = stored_range(start, end)
        return strip_block_headers(self._read_at(file, data_offset + first, last - first), start)

    def _read_cached_content(self, shard: int, number: int) -> bytes:
        self._counters.cells[MISSES] += 1
        return self._read_content(shard, number)[1]

    def _read_at(self, file: OpenFile, offset: int, length: int) -> bytes:
        is_request = file.needs_request(offset, length)
        data = file.read_at(offset, length)
        if is_request:
            cells = self._counters.cells
            cells[REQUESTS] += 1
            cells[BYTES] += len(data)
        return data

    def _open(self, shard: int) -> OpenFile:
        return self._cache.files.get(shard, partial(self._open_new, shard), _file_cost)

    def open_ahead(self, shards: Sequence[int]) -> None:
        """Starts to open remote shards, copied to the disk cache if there is one; does not wait."""
        if not self.is_remote:
            return
        left = deque(shards)
        for _ in range(min(len(shards), _REMOTE_THREADS)):
            threading.Thread(target=self._try_to_open, args=(left,), daemon=True).start()

    def _try_to_open(self, left: deque[int]) -> None:
        with contextlib.suppress(IndexError):
            while True:
                shard = left.popleft()
                with contextlib.suppress(Exception):  # the reader of the shard meets an error too
                    self._members(shard)

    def _open_new(self, shard: int) -> OpenFile:
        path, entry, disk = self._paths[shard], self._shards[shard], self._limits.disk
        if disk is not None and scheme_of(path):
            with contextlib.suppress(DamagedError):  # another process deleted the copy again
                copy = disk.path_of(path, entry, self._counters)
                return OpenFile(copy, entry.bytes, is_copy=True)
            disk.drop_damaged(entry)  # or its size is wrong
        version = self._source.versions.get(path, "")
        if not version:
            self._counters.cells[REQUESTS] += 1
        return OpenFile(path, entry.bytes, version)

    @cached_property
    def is_remote(self) -> bool:
        """Whether the shards are on a remote storage."""
        return any(scheme_of(self._paths[number]) for number in self._source.first_parts)

    def _members(self, shard: int) -> Members:
        return self._cache.tables.get(shard, partial(self._read_members, shard), _members_cost)

    def _read_members(self, shard: int) -> Members:
        file = self._open(shard)
        reads = FileReads(partial(self._read_at, file), file.size, file.gap)
        path, records = self._paths[shard], self._shards[shard].records
        return read_members(reads, self._source.folder_of(shard), path, records)

    def _layout(self, shard: int, number: int) -> _Layout:
        make = partial(self._read_layout, shard, number)
        return self._cache.layouts.get((shard, number), make, _layout_cost)

    def _caches_content(self, data_offset: int) -> bool:
        """Returns whether the content of a member is cached; else records are read one by one."""
        # On a remote storage each read is a request, so the member is fetched once.
        return data_offset < 0 or (self.is_remote and self._limits.disk is None)

    def _read_content(self, shard: int, number: int) -> tuple[bytes, bytes]:
        """Returns the bytes of a member in the file, and its content."""
        members = self._members(shard)
        offset, size = int(members.offset[number]), int(members.num_bytes[number])
        data = self._read_at(self._open(shard), offset, size)
        if not members.is_gzip:
            return data, data
        content_bytes = int.from_bytes(data[-4:], "little")
        blocks = find_blocks(data, content_bytes)
        if blocks >= 0 and content_bytes:  # the CRCs of records protect them
            first, last = stored_range(0, content_bytes)
            return data, strip_block_headers(memoryview(data)[blocks + first : blocks + last], 0)
        return data, b"".join(inflate_member(data, offset))

    def _read_layout(self, shard: int, number: int) -> _Layout:
        members = self._members(shard)
        member, content = self._read_content(shard, number)
        offsets = self._record_offsets(members, number, content)
        blocks = find_blocks(member, len(content)) if members.is_gzip else 0
        data_offset = int(members.offset[number]) + blocks if blocks >= 0 else -1
        if self._caches_content(data_offset):  # the caller reads one of its records next
            self._counters.cells[MISSES] += 1
            self._cache.contents.get((shard, number), lambda: content, sys.getsizeof)
        dtype = np.uint32 if len(content) < 1 << 32 else np.uint64
        return _Layout(np.array(offsets, dtype), data_offset)

    def _record_offsets(self, members: Members, number: int, content: bytes) -> list[int]:
        offsets = record_offsets(content)
        count, expected = len(offsets) - 1, members.first[number + 1] - members.first[number]
        if count != expected:
            at = members.offset[number]
            raise FormatError(
                f"its member index is wrong: the member at byte {at:,} has "
                f"{plural(count, 'record')}, not {expected:,}"
            )
        return offsets

    def _damaged(self, shard: int, record: int, error: Exception) -> InputError:
        path, disk, copy = self._paths[shard], self._limits.disk, ""
        folder = self._source.folder_of(shard)
        if isinstance(error, DamagedError) and error.fault.reason == "unreadable":
            return InputError(
                f"{path} may not be read by this process: give its user the permission, or give it "
                "credentials that have it."
            )
        if isinstance(error, DamagedError) and error.fault.reason == "changed":
            return InputError(
                f"{path} was replaced after the dataset was opened: open the dataset again."
            )
        if isinstance(error.__cause__, FileNotFoundError):
            check_not_deleted(folder)
        elif disk and scheme_of(path):
            copy = disk.drop_damaged(self._shards[shard])
        if copy:
            self.close()
            return InputError(
                f"{copy}, the copy of {path}, was damaged, as by a crash of this machine, and is "
                "deleted now: read again."
            )
        reason = error.fault.message if isinstance(error, DamagedError) else str(error)
        return InputError(
            f"{path}, record {record:,}: {reason}; run `shardmill verify {folder}` to see "
            "what else is wrong, and build or copy the dataset again."
        )
