"""EpochReader: what one worker of one host reads of the rest of an epoch."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np

from shardmill.loaders.order import EpochOrder, Window
from shardmill.loaders.pieces import (
    Piece,
    Reader,
    count,
    divided,
    drop,
    redeal,
    share_of,
    size_of,
)
from shardmill.loaders.position import Position
from shardmill.loaders.shards import ShardFiles
from shardmill.loaders.steps import Remainder

_PLACES = 4096  # records that are placed at one time
_AHEAD_BYTES = 16 << 20  # of the next windows on remote storage, at least
_REMOTE_THREADS = 8
T = TypeVar("T")


class PlacedRecord(NamedTuple):
    """A record in the order of an epoch.

    Attributes:
        part: Number of the part of the selection.
        record: Number of the record in its shard.
        weight: 0 for one that only pads the share of a host, else 1.
    """

    part: int
    record: int
    weight: float = 1.0


Payloads = Iterator[tuple[PlacedRecord, bytes]]


class EpochReader:
    """Reads the share of a worker.

    Args:
        order: The order of the epoch.
        position: What was read before; see ``Position.resolve``.
        reader: The worker.
        remainder: Returns what happens to examples that a number of hosts cannot divide evenly.
        by_records: Whether hosts and workers take single records of the order in turn, or
            consecutive members.

    Attributes:
        left: Number of examples that are left for the worker, with padding.
        is_over: Whether no host has examples left.
    """

    def __init__(
        self, order: EpochOrder, position: Position, reader: Reader,
        remainder: Callable[[int], Remainder], *, by_records: bool,
    ) -> None:  # fmt: skip
        self._order, self._reader, self._taken = order, reader, position.taken
        self._by_records = by_records
        pieces = [Piece(0, len(order))]
        for deal in position.deals:
            pieces = redeal(pieces, deal, order.window, remainder(deal.hosts))
        self._pieces, self._rule = pieces, remainder(reader.host.count)
        examples = sum(piece.size for piece in pieces)
        self._dealt = divided(examples, reader.host.count, self._rule)
        each = size_of(examples, reader.host, self._rule)
        self._size = count(each, reader.worker, reader.batch)
        self.is_over = not self._dealt
        self.left = max(0, self._size - position.taken)

    def payloads(self, files: ShardFiles, limit: float) -> Payloads:
        """Yields the records that are left; those that only pad are the last ones.

        Args:
            files: The files of the shards.
            limit: Bytes of records that are held at one time.
        """
        read = self._read_places(files) if self._by_records else self._read_windows(files, limit)
        yield from itertools.islice(itertools.chain(read, self._padding(files)), self.left)

    def _padding(self, files: ShardFiles) -> Payloads:
        part, record = (int(each[0]) for each in self._order.places(np.zeros(1, np.int64)))
        yield from itertools.repeat((PlacedRecord(part, record, 0.0), files.payload(part, record)))

    def _read_places(self, files: ShardFiles) -> Payloads:
        host, worker, batch = self._reader
        base = self._pieces[0].start if self._pieces else 0
        for begin in range(self._taken, self._size, _PLACES):
            own = np.arange(begin, min(begin + _PLACES, self._size))
            of_host = (own // batch * worker.count + worker.index) * batch + own % batch
            positions = of_host * host.count + host.index
            parts, records = self._order.places(base + positions[positions < self._dealt])
            for part, record in zip(parts.tolist(), records.tolist(), strict=True):
                yield PlacedRecord(part, record), files.payload(part, record)

    def _read_windows(self, files: ShardFiles, limit: float) -> Payloads:
        share = share_of(self._pieces, self._reader, self._rule)
        windows = self._order.windows(list(drop(share, self._taken, self._order.window)))
        with _open_pool(_REMOTE_THREADS) as pool:
            yield from _load_windows(files, windows, pool if files.is_remote else None, limit)


class _OpenWindow:
    """Loads the members of a window, each when its first record is needed.

    Members of more than ``limit`` bytes, because records are larger than on average, are not held
    at one time: the oldest are dropped, and loaded again.

    Attributes:
        left: Bytes of the records that are left.
    """

    def __init__(
        self, files: ShardFiles, window: Window, pool: ThreadPoolExecutor | None, limit: float
    ) -> None:
        self.window, self._files, self._limit = window, files, limit
        self._held: dict[int, list[bytes]] = {}
        self._held_bytes = 0
        owners = dict.fromkeys(window.owners.tolist())
        sizes = [files.bytes_of(window.chunks[owner]) for owner in owners] if pool else []
        self.left, self._ahead = sum(sizes), dict[int, Future[list[bytes]]]()
        for owner, end in zip(owners, accumulate(sizes), strict=False):
            if pool and end <= limit:
                self._ahead[owner] = pool.submit(self._load, owner)

    def take(self, owner: int, offset: int) -> tuple[PlacedRecord, bytes]:
        """Returns a record of a chunk; each is taken once."""
        payloads = self._held.get(owner) or self._hold(owner)
        payload, payloads[offset] = payloads[offset], b""
        self._held_bytes -= len(payload)
        self.left -= len(payload)
        chunk = self.window.chunks[owner]
        return PlacedRecord(chunk.part, int(chunk.records[offset])), payload

    def _hold(self, owner: int) -> list[bytes]:
        ahead = self._ahead.pop(owner, None)
        payloads = self._held[owner] = self._load(owner) if ahead is None else ahead.result()
        self._held_bytes += sum(map(len, payloads))
        while self._held_bytes > self._limit and len(self._held) > 1:
            self._held_bytes -= sum(map(len, self._held.pop(next(iter(self._held)))))
        return payloads

    def _load(self, owner: int) -> list[bytes]:
        chunk = self.window.chunks[owner]
        first = int(chunk.records[0])
        payloads = self._files.payloads(chunk.part, first, int(chunk.records[-1]) + 1)
        if isinstance(chunk.records, range):
            return payloads
        return [payloads[number] for number in (chunk.records - first).tolist()]


def _load_windows(
    files: ShardFiles, windows: Iterator[Window], pool: ThreadPoolExecutor | None, limit: float
) -> Payloads:
    """Yields the records of windows.

    Args:
        files: The files of the shards.
        windows: The windows.
        pool: Loads the members of a window when the one before it is half read; None to load none
            ahead.
        limit: Bytes of records that a window holds.
    """
    opened = _until_error(map(partial(_OpenWindow, files, pool=pool, limit=limit), windows))
    begun = deque(itertools.islice(opened, 1))
    while begun:
        first = begun.popleft()
        if isinstance(first, Exception):
            raise first
        enough = max(first.left // 2, _AHEAD_BYTES)
        ahead = sum(map(_bytes_left, begun))
        for owner, offset in zip(
            first.window.owners.tolist(), first.window.offsets.tolist(), strict=True
        ):
            while pool and first.left + ahead < enough and (following := next(opened, None)):
                begun.append(following)
                ahead += _bytes_left(following)
            yield first.take(owner, offset)
        begun.extend(() if begun else itertools.islice(opened, 1))


def _bytes_left(window: _OpenWindow | Exception) -> float:
    return math.inf if isinstance(window, Exception) else window.left


def _until_error(items: Iterator[T]) -> Iterator[T | Exception]:
    """Yields items; their error, which is raised in its turn, is the last one."""
    try:
        yield from items
    except Exception as error:  # noqa: BLE001
        yield error


def map_ahead(function: Callable[[T], Any], items: Iterator[T], workers: int) -> Iterator[Any]:
    """Yields the result for each item in order; an exception is raised in its place.

    Args:
        function: Called by threads if there are any.
        items: The items; at most twice as many as threads are taken ahead.
        workers: Number of threads; 0 for none.
    """
    if not workers:
        yield from map(function, items)
        return

    def attempt(item: T | Exception) -> Any:
        if isinstance(item, Exception):
            raise item
        return function(item)

    with _open_pool(workers) as pool:
        ahead: deque[Future[Any]] = deque()
        for item in _until_error(items):
            ahead.append(pool.submit(attempt, item))
            if len(ahead) > 2 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


@contextlib.contextmanager
def _open_pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Returns a pool; at the end of the block what it has not begun is left out."""
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
