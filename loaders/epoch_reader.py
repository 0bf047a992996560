"""EpochReader: what one worker of one host reads of the rest of an epoch."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from shardmill.loaders.order import Chunk, EpochOrder, Window
from shardmill.loaders.pieces import (
    Piece,
    Reader,
    count,
    divided,
    drop,
    examples_in,
    redeal,
    share_of,
    size_of,
)
from shardmill.loaders.position import Position
from shardmill.loaders.shards import ShardFiles
from shardmill.loaders.steps import Remainder

_PLACES = 4096  # records that are placed at one time
_READ_AHEAD = 512  # records whose windows are begun
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
Load = Callable[[], list[bytes]]


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
    """

    def __init__(
        self, order: EpochOrder, position: Position, reader: Reader,
        remainder: Callable[[int], Remainder], *, by_records: bool,
    ) -> None:  # fmt: skip
        self._order, self._reader, self._taken = order, reader, position.taken
        self._by_records = by_records
        pieces = [Piece(0, len(order), 0, len(order))]
        for deal in position.deals:
            pieces = redeal(pieces, deal, order.window, remainder(deal.hosts))
        self._pieces, self._rule = pieces, remainder(reader.host.count)
        examples = examples_in(pieces)
        self._dealt = divided(examples, reader.host.count, self._rule)
        each = size_of(examples, reader.host, self._rule)
        self._size = count(each, reader.worker, reader.batch)
        self.left = max(0, self._size - position.taken)

    def payloads(self, files: ShardFiles, *, remote: bool) -> Payloads:
        """Yields the records that are left; those that only pad are the last ones."""
        read = self._read_places(files) if self._by_records else self._read_windows(files, remote)
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

    def _read_windows(self, files: ShardFiles, remote: bool) -> Payloads:
        share = share_of(self._pieces, self._reader, self._rule)
        windows = self._order.windows(list(drop(share, self._taken, self._order.window)))
        with _open_pool(_REMOTE_THREADS) as pool:
            yield from _load_windows(files, windows, pool if remote else None)


def _load_windows(
    files: ShardFiles, windows: Iterator[Window], pool: ThreadPoolExecutor | None
) -> Payloads:
    """Yields the records of windows; loads each member once, when its first record is needed.

    Args:
        files: The files of the shards.
        windows: The windows.
        pool: Loads all members of a window when it begins: the next one before this one ends. None
            to load none ahead.
    """
    begun: deque[tuple[Window, dict[int, Load]]] = deque()
    waiting = 0  # records of windows that were begun, and are not read yet

    def begin() -> bool:
        nonlocal waiting
        window = next(windows, None)
        if window is not None:
            begun.append((window, _start(files, window, pool)))
            waiting += len(window.owners)
        return window is not None

    while begun or begin():
        window, members = begun[0]
        loaded: dict[int, list[bytes]] = {}
        for owner, offset in zip(window.owners.tolist(), window.offsets.tolist(), strict=True):
            while pool and waiting < _READ_AHEAD and begin():
                pass
            payloads = loaded.get(owner)
            if payloads is None:
                payloads = loaded[owner] = members.pop(owner)()
            payload, payloads[offset] = payloads[offset], b""
            waiting -= 1
            chunk = window.chunks[owner]
            yield PlacedRecord(chunk[0], int(chunk[1][offset])), payload
        begun.popleft()


def _start(files: ShardFiles, window: Window, pool: ThreadPoolExecutor | None) -> dict[int, Load]:
    """Returns a function to the payloads of each chunk of a window, in the order of their use."""
    loads = {
        at: partial(_load, files, window.chunks[at]) for at in dict.fromkeys(window.owners.tolist())
    }
    return {at: pool.submit(load).result for at, load in loads.items()} if pool else {**loads}


def _load(files: ShardFiles, chunk: Chunk) -> list[bytes]:
    first = int(chunk.records[0])
    payloads = files.payloads(chunk.part, first, int(chunk.records[-1]) + 1)
    if isinstance(chunk.records, range):
        return payloads
    return [payloads[number] for number in (chunk.records - first).tolist()]


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
    with _open_pool(workers) as pool:
        ahead: deque[Future[Any]] = deque()
        for future in _submit(pool, function, items):
            ahead.append(future)
            if len(ahead) > 2 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _submit(
    pool: ThreadPoolExecutor, function: Callable[[T], Any], items: Iterator[T]
) -> Iterator[Future[Any]]:
    """Yields the future of each item; an error of the items follows the results before it."""
    try:
        for item in items:
            yield pool.submit(function, item)
    except Exception as error:  # noqa: BLE001 - raised in its turn
        failed: Future[Any] = Future()
        failed.set_exception(error)
        yield failed


@contextlib.contextmanager
def _open_pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Returns a pool; at the end of the block what it has not begun is left out."""
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
