"""ShardFiles: the records of shards at any place, through the index, in bounded memory."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from shardmill.loaders.frames import (
    FrameError,
    Starts,
    payload_of,
    stored_at,
    stored_range,
    walk_frames,
    without_headers,
)
from shardmill.schemas.dataset.manifest import Shard
from shardmill.schemas.errors import InputError
from shardmill.schemas.storage import RandomReader, scheme_of
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES, starts_record
from shardmill.schemas.tfrecord.gzip_member import HEADER
from shardmill.schemas.tfrecord.inflate import InflateError, inflate_member
from shardmill.schemas.tfrecord.member_index import read_index
from shardmill.schemas.tfrecord.open import open_file
from shardmill.schemas.tfrecord.scanner import DamagedError

T = TypeVar("T")
CACHE_BYTES = 64 << 20  # of inflated members, and as much of where records begin
_OPEN_FILES = 64
_EXTENT = 2 << 20  # of an uncompressed file: read at a time where records are read in order
_HEAD = 1 << 12


class _Members(NamedTuple):
    """The members of a shard; arrays of shape [members], but ``first`` of [members + 1]."""

    offset: npt.NDArray[np.int64]
    num_bytes: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]  # number of its first record
    packed: bool


class _Layout(NamedTuple):
    """Where the records of a member are.

    ``blocks`` is where in the file its stored blocks begin, or its content where it is not packed;
    -1 where it must be inflated.
    """

    starts: Starts
    blocks: int


class _Open:
    """An open file; closed when nobody holds it any more, so another thread may still read it.

    Whoever reads must hold it and not the reader in it: that one may be closed under their hands.
    """

    def __init__(self, path: str, size: int) -> None:
        self._opened = open_file(path, "", size)
        self._reader: RandomReader = self._opened.__enter__()
        self.size = self._reader.size

    def read_at(self, offset: int, length: int) -> bytes:
        """See ``RandomReader.read_at``."""
        return self._reader.read_at(offset, length)


class _Lru:
    """Values by key, the least recently used dropped when they take too many bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Any, make: Callable[[], T], cost: Callable[[T], int]) -> T:
        """Returns a value, made where it is not held; two threads may make it at once."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                value: T = found[0]
                return value
        value = make()
        size = cost(value)
        with self._lock:
            old = self._held.pop(key, None)
            self._bytes += size - (old[1] if old else 0)
            self._held[key] = value, size
            while self._bytes > self._limit and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1][1]
        return value


class ShardFiles:
    """The records of some shards. May be pickled, forked, and used by many threads.

    Args:
        folder: Where the shards lie; for messages.
        paths: Path of each shard.
        shards: What the manifest says of each.
        cache_bytes: Bytes of inflated members that are kept, and as many of record offsets.
    """

    def __init__(
        self, folder: str, paths: Sequence[str], shards: Sequence[Shard], cache_bytes: int
    ) -> None:
        self._folder = folder
        self._paths = list(paths)
        self._shards = list(shards)
        self._cache_bytes = cache_bytes
        self._pid = 0

    def __getstate__(self) -> dict[str, Any]:
        """Leaves what is cached and open behind."""
        names = ("_folder", "_paths", "_shards", "_cache_bytes")
        return {**{name: getattr(self, name) for name in names}, "_pid": 0}

    def _refresh(self) -> None:
        """Makes the caches of this process; locks of a parent may be held for ever in a child."""
        if self._pid != os.getpid():
            self._files = _Lru(_OPEN_FILES)
            self._tables = _Lru(self._cache_bytes)
            self._layouts = _Lru(self._cache_bytes)
            self._contents = _Lru(self._cache_bytes)
            self._pid = os.getpid()

    def payload(self, shard: int, record: int) -> bytes:
        """Returns one record's payload, its CRCs checked.

        Args:
            shard: Number of the shard.
            record: Number of the record in it.

        Raises:
            InputError: The shard is not what the manifest says, or damaged there.
            StorageError: The medium failed.
        """
        self._refresh()
        try:
            return payload_of(self._frame(shard, record))
        except (FrameError, InflateError, DamagedError) as error:
            raise self._damaged(shard, record, error) from error

    def member_sizes(self, shard: int) -> npt.NDArray[np.int64]:
        """Returns how many records each member of a shard has, in their order.

        Raises:
            InputError: The shard is not what the manifest says.
        """
        self._refresh()
        try:
            return np.diff(self._members(shard).first)
        except (FrameError, InflateError, DamagedError) as error:
            raise self._damaged(shard, 0, error) from error

    def payloads(self, shard: int, first: int, after: int) -> list[bytes]:
        """Returns the payloads of neighbouring records, each member read and inflated once.

        Raises:
            InputError: The shard is not what the manifest says, or damaged there.
        """
        self._refresh()
        found: list[bytes] = []
        at = first
        try:
            members = self._members(shard)
            while at < after:
                number = int(np.searchsorted(members.first, at, "right")) - 1
                base = int(members.first[number])
                stop = min(after, int(members.first[number + 1]))
                content = self._read_content(shard, number)[1]
                starts = self._walk(members, number, content).tolist()
                for record in range(at - base, stop - base):
                    found.append(payload_of(content[starts[record] : starts[record + 1]]))
                    at += 1
        except (FrameError, InflateError, DamagedError) as error:
            raise self._damaged(shard, at, error) from error
        return found

    def _frame(self, shard: int, record: int) -> bytes:
        members = self._members(shard)
        number = int(members.first.searchsorted(record, "right")) - 1
        starts, blocks = self._layout(shard, number)
        inside = record - int(members.first[number])
        start, end = int(starts[inside]), int(starts[inside + 1])
        if self._is_kept(shard, blocks):
            return self._content(shard, number)[start:end]
        reader = self._open(shard)
        if not members.packed:
            return reader.read_at(blocks + start, end - start)
        first, last = stored_range(start, end)
        return without_headers(reader.read_at(blocks + first, last - first), start)

    def _open(self, shard: int) -> _Open:
        path, size = self._paths[shard], self._shards[shard].bytes
        return self._files.get(shard, lambda: _Open(path, size), lambda _: 1)

    def _members(self, shard: int) -> _Members:
        return self._tables.get(
            shard, lambda: self._read_members(shard), lambda table: 24 * len(table.first) + 512
        )

    def _layout(self, shard: int, number: int) -> _Layout:
        def make() -> _Layout:
            return self._lay_out(shard, number)

        return self._layouts.get((shard, number), make, lambda made: made.starts.nbytes + 256)

    def _is_kept(self, shard: int, blocks: int) -> bool:
        """Tells whether a member's content is kept; else each record is read from the file."""
        # Where each call is a request, the member is fetched once.
        return blocks < 0 or bool(scheme_of(self._paths[shard]))

    def _content(self, shard: int, number: int) -> bytes:
        def make() -> bytes:
            return self._read_content(shard, number)[1]

        return self._contents.get((shard, number), make, len)

    def _read_members(self, shard: int) -> _Members:
        reader = self._open(shard)
        wanted = self._shards[shard].records
        listed = read_index(reader.read_at, reader.size)
        packed = listed is not None
        if listed is None:
            self._check_plain(shard, reader)
            found = _extents(reader)
        else:
            found = [tuple(member) for member in listed]  # type: ignore[misc]
        table = np.array(found, np.int64).reshape(-1, 3)
        first = np.concatenate([[0], np.cumsum(table[:, 2])])
        if first[-1] != wanted:
            raise FrameError(f"it has {first[-1]:,} records and the manifest says {wanted:,}")
        return _Members(table[:, 0].copy(), table[:, 1].copy(), first, packed)

    def _check_plain(self, shard: int, reader: _Open) -> None:
        """Refuses a file without a sound index unless it is uncompressed.

        Raises:
            InputError: Others wrote it.
            FrameError: It is damaged.
        """
        head = reader.read_at(0, HEADER_BYTES)
        if not head or starts_record(head):
            return
        if head.startswith(HEADER[:4]):
            raise InputError(
                f"{self._paths[shard]} has no index, so its records cannot be read at any place: "
                "read it with keras_dataset or tf.data, or build the dataset with Shardmill; if "
                f"Shardmill built it, run `shardmill verify {self._folder}`."
            )
        if head.startswith(HEADER[:2]):
            raise FrameError("its index is damaged, or not that of the whole file")
        raise FrameError("the length of record 0 is damaged, or this is no shard")

    def _read_content(self, shard: int, number: int) -> tuple[bytes, bytes]:
        """Returns a member as it is in the file, and its content."""
        members = self._members(shard)
        at, size = int(members.offset[number]), int(members.num_bytes[number])
        data = self._open(shard).read_at(at, size)
        if not members.packed:
            return data, data
        return data, b"".join(inflate_member(data, at))

    def _lay_out(self, shard: int, number: int) -> _Layout:
        members = self._members(shard)
        at = int(members.offset[number])
        member, content = self._read_content(shard, number)
        starts = self._walk(members, number, content)
        blocks = stored_at(member, len(content)) if members.packed else 0
        blocks = at + blocks if blocks >= 0 else -1
        if self._is_kept(shard, blocks):  # a record of it is read next
            self._contents.get((shard, number), lambda: content, len)
        return _Layout(starts, blocks)

    def _walk(self, members: _Members, number: int, content: bytes) -> Starts:
        starts = walk_frames(content)
        wanted = int(members.first[number + 1] - members.first[number])
        if len(starts) - 1 != wanted:
            raise FrameError(
                f"the index lies: the member at byte {int(members.offset[number]):,} has "
                f"{len(starts) - 1:,} records and not {wanted:,}"
            )
        return starts

    def _damaged(self, shard: int, record: int, error: Exception) -> InputError:
        said = error.fault.message if isinstance(error, DamagedError) else str(error)
        return InputError(
            f"{self._paths[shard]}, record {record:,}: {said}; run `shardmill verify "
            f"{self._folder}` to see what else is wrong, and build or copy the dataset again."
        )


def _extents(reader: _Open) -> list[tuple[int, int, int]]:
    """Returns (offset, bytes, records) of neighbouring records of an uncompressed file."""
    found: list[tuple[int, int, int]] = []
    at = begin = records = 0
    data, held = b"", 0
    while at < reader.size:
        if at + HEADER_BYTES > held + len(data):
            data, held = reader.read_at(at, max(_HEAD, HEADER_BYTES)), at
        header = data[at - held : at - held + HEADER_BYTES]
        if not starts_record(header):
            raise FrameError("the length of a record is damaged")
        at += HEADER_BYTES + int.from_bytes(header[:8], "little") + FOOTER_BYTES
        if at > reader.size:
            raise FrameError("a record is cut")
        records += 1
        if at - begin >= _EXTENT or at == reader.size:
            found.append((begin, at - begin, records))
            begin, records = at, 0
    return found
