"""Loading the chunks of records that an order names."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from shardmill.loaders.order import Chunk
from shardmill.loaders.records import Records

_READ_AHEAD = 512  # records of a remote storage


class PlacedRecord(NamedTuple):
    """A record in the order of an epoch.

    Attributes:
        chunk: The chunk that has it.
        record: Number of the record in its shard.
        weight: 0 for one that only pads the share of a host, else 1.
    """

    chunk: Chunk
    record: int
    weight: float = 1.0


Payloads = Iterator[tuple[PlacedRecord, bytes]]


class ChunkLoader:
    """Loads chunks when their first record is needed, and keeps them until the last one was.

    Args:
        records: The records.
        pool: Loads the chunks of the next records ahead; None to load none ahead.

    Attributes:
        position: Number of records that were yielded or skipped.
    """

    def __init__(self, records: Records, pool: ThreadPoolExecutor | None) -> None:
        self._files, self._pool = records.files, pool
        self._chunks: dict[Chunk, Future[list[bytes]] | list[bytes]] = {}
        self._left: dict[Chunk, int] = {}
        self.position = 0

    def load(self, places: Iterator[PlacedRecord], skip: int) -> Payloads:
        """Yields each place with its payload, except for the first ones, which are skipped."""
        for place in itertools.islice(places, skip):
            self._count(place)
        self.position = skip
        ahead: deque[PlacedRecord] = deque()
        depth = _READ_AHEAD if self._pool else 1
        for place in places:
            if place.weight:
                self._start(place.chunk)
            ahead.append(place)
            if len(ahead) >= depth:
                yield self._take(ahead.popleft())
        while ahead:
            yield self._take(ahead.popleft())

    def _start(self, chunk: Chunk) -> None:
        if chunk not in self._chunks:
            load = self._files.payloads
            self._chunks[chunk] = self._pool.submit(load, *chunk) if self._pool else load(*chunk)

    def _take(self, place: PlacedRecord) -> tuple[PlacedRecord, bytes]:
        part, first, _ = chunk = place.chunk
        self.position += 1
        if not place.weight:  # a copy, whose chunk may be gone
            return place, self._files.payloads(part, place.record, place.record + 1)[0]
        found = self._chunks[chunk]
        payloads = found.result() if isinstance(found, Future) else found
        payload, payloads[place.record - first] = payloads[place.record - first], b""
        self._count(place)
        return place, payload

    def _count(self, place: PlacedRecord) -> None:
        """Drops the chunk of a place with the last of its records."""
        chunk = place.chunk
        left = self._left.pop(chunk, chunk.stop - chunk.first) - 1
        if left > 0:
            self._left[chunk] = left
        else:
            self._chunks.pop(chunk, None)
