"""EpochReader: the share of one worker of one host in the rest of an epoch."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from shardmill.loaders.mixed_order import MixedOrder
from shardmill.loaders.order import Chunk, EpochOrder, Window
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
from shardmill.schemas.storage.base import map_ordered

_PLACES = 4096  # records that are placed at one time
_AHEAD_BYTES = 64 << 20  # of members on remote storage
_REMOTE_THREADS = 32


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
        position: Where the share begins.
        reader: The worker.
        remainder: Returns, for a number of hosts, the rule for examples they cannot divide evenly.
        by_records: Whether hosts and workers take single records of the order in turn, or
            consecutive members.

    Attributes:
        position: The position, resolved for the worker.
        left: Number of examples that are left for the worker, with padding.
        is_over: Whether no host has examples left.
    """

    def __init__(
        self,
        order: EpochOrder | MixedOrder,
        position: Position,
        reader: Reader,
        remainder: Callable[[int], Remainder],
        *,
        by_records: bool,
    ) -> None:
        self._order, self._reader, self._taken = order, reader, position.taken
        self._by_records = by_records
        self.position = position.resolve(reader, by_records=by_records)
        pieces = [Piece(0, len(order))]
        for deal in self.position.deals:
            pieces = redeal(pieces, deal, order.window, remainder(deal.hosts))
        self._pieces, self._rule = pieces, remainder(reader.host.count)
        examples = sum(piece.size for piece in pieces)
        self._dealt = divided(examples, reader.host.count, self._rule)
        host_size = size_of(examples, reader.host, self._rule)
        self._size = count(host_size, reader.worker, reader.batch)
        self.is_over = not self._dealt
        self.left = max(0, self._size - position.taken)

    def payloads(self, files: ShardFiles, limit: float) -> Payloads:
        """Yields the records that are left; padding comes last.

        Args:
            files: The files of the shards.
            limit: Bytes of records held at one time.
        """
        read = self._read_places(files) if self._by_records else self._read_windows(files, limit)
        yield from itertools.islice(itertools.chain(read, self._padding(files)), self.left)

    def _padding(self, files: ShardFiles) -> Payloads:
        parts, records = self._order.places(np.zeros(1, np.int64))
        part, record = int(parts[0]), int(records[0])
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
        for piece in share[:1]:  # while the size of a window is measured
            self._order.fetch(piece.start, piece.stop)
        windows, again = itertools.tee(
            self._order.windows(list(drop(share, self._taken, self._order.window)))
        )
        needed = (
            window.chunks[owner]
            for window in again
            for owner in dict.fromkeys(window.owners.tolist())
        )
        threads, most = _REMOTE_THREADS if files.is_remote else 0, min(limit / 2, _AHEAD_BYTES)
        loaded = map_ordered(
            partial(_load, files),
            needed,
            threads,
            window=sys.maxsize,
            size_of=files.bytes_of,
            max_size=most,
            wait=False,
        )
        for window in windows:
            yield from _mix(files, window, loaded, limit)
        next(loaded, None)  # raises an error of a window that was opened ahead


def _load(files: ShardFiles, chunk: Chunk) -> list[bytes]:
    """Returns the payloads of a chunk."""
    first = int(chunk.records[0])
    payloads = files.payloads(chunk.part, first, int(chunk.records[-1]) + 1)
    return [payloads[number] for number in (np.asarray(chunk.records) - first).tolist()]


def _mix(files: ShardFiles, window: Window, loaded: Iterator[Any], limit: float) -> Payloads:
    """Yields the records of a window.

    Chunks of more than ``limit`` bytes, because records are larger than on average, are not held
    at one time: the oldest are dropped, and loaded again.

    Args:
        files: The files of the shards.
        window: The window.
        loaded: The payloads of its chunks, in the order in which they are needed.
        limit: Bytes of records that are held.
    """
    held: dict[int, list[bytes]] = {}
    begun, size = set(), 0
    for owner, offset in zip(window.owners.tolist(), window.offsets.tolist(), strict=True):
        chunk = window.chunks[owner]
        if owner not in held:
            held[owner] = _load(files, chunk) if owner in begun else next(loaded)
            begun.add(owner)
            size += sum(map(len, held[owner]))
            while size > limit and len(held) > 1:
                size -= sum(map(len, held.pop(next(iter(held)))))
        payload, held[owner][offset] = held[owner][offset], b""
        size -= len(payload)
        yield PlacedRecord(chunk.part, int(chunk.records[offset])), payload
