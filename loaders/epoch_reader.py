"""EpochReader: what one worker of one host reads of the rest of an epoch."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from shardmill.loaders.chunk_loader import Payloads, PlacedRecord, load_windows
from shardmill.loaders.order import EpochOrder
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
    take,
)
from shardmill.loaders.position import Position
from shardmill.loaders.shards import ShardFiles
from shardmill.loaders.steps import Remainder

_PLACES = 4096  # records that are placed at one time
_REMOTE_THREADS = 8


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
            if by_records:
                pieces = take(pieces, deal.examples, len(order))
            else:
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
        with contextlib.ExitStack() as stack:
            pool = None
            if remote:
                pool = ThreadPoolExecutor(_REMOTE_THREADS)
                stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            yield from load_windows(files, windows, pool)
