"""The order of an epoch: a pure function of the seed, the epoch, the share and the shards."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from shardmill.loaders.selection import ShardSlice

_END = 1 << 64  # places of records of parts below 2**30 differ by one or more, or are equal


class Chunk(NamedTuple):
    """Consecutive records of a part, from ``first`` to ``stop`` - 1, as in its shard.

    Attributes:
        part: Number of the part.
        first: Number of the first record in the shard.
        stop: Number of the record after the last.
    """

    part: int
    first: int
    stop: int


@dataclass(frozen=True)
class Order:
    """How the records of an epoch are ordered, and which of them a share gets.

    Parts are read one after the other, each in chunks. Of shards that were built with
    ``--shard_by=label``, each share gets the same fraction instead, and their chunks are
    interleaved: each share then has all labels, as it has with other shards. ``shuffle`` shuffles
    parts and chunks; then, and where chunks are interleaved, records are drawn at random from a
    buffer.

    Attributes:
        parts: The parts of the selection.
        shuffle: Whether to shuffle.
        seed: Seed of the order.
        buffer: Returns the number of records in the buffer.
        bounds: Returns the number of the first record of each chunk of a part's shard, and the
            number of all records; it opens the shard.
        ahead: Called with the next part when one was opened, to fetch it meanwhile; it returns
            at once.
    """

    parts: Sequence[ShardSlice]
    shuffle: bool
    seed: int
    buffer: Callable[[], int]
    bounds: Callable[[int], Sequence[int]]
    ahead: Callable[[int], object] = lambda _: None

    @property
    def interleaved(self) -> bool:
        """Whether the chunks of all parts are interleaved."""
        return any(part.shard.label is not None for part in self.parts)

    def records(self, epoch: int, start: int, stop: int) -> Iterator[tuple[Chunk, int]]:
        """Yield a range of the epoch: each record with its chunk; opens only the shards in it.

        Args:
            epoch: Number of the epoch.
            start: Position of the first record in the order of chunks.
            stop: Position after the last one.
        """
        items = (
            (chunk, record)
            for chunk in self._chunks(epoch, start, stop)
            for record in range(chunk.first, chunk.stop)
        )
        if not self.shuffle and not self.interleaved:
            return items
        # Without shuffling, each epoch has the same order.
        return _draw(items, self._random(epoch if self.shuffle else 0, start, stop), self.buffer())

    def _chunks(self, epoch: int, start: int, stop: int) -> Iterator[Chunk]:
        """Yield the chunks of a range of the epoch, the first and the last of them cut."""
        if self.interleaved:
            yield from self._interleave(epoch, start, stop)
            return
        numbers = list(range(len(self.parts)))
        if self.shuffle:
            self._random(epoch).shuffle(numbers)
        at = 0
        for number, following in zip(numbers, [*numbers[1:], None], strict=True):
            size = self.parts[number].records
            if at < stop and at + size > start:
                chunks = self._chunks_of(number, 0, size)
                if following is not None and at + size < stop:
                    self.ahead(following)
                if self.shuffle:
                    self._random(epoch, number).shuffle(chunks)
                yield from _cut(chunks, start - at, stop - at)
            at += size

    def _interleave(self, epoch: int, start: int, stop: int) -> Iterator[Chunk]:
        """Yield the chunks of a range that has the same fraction of each part."""
        placed: list[tuple[float, Chunk]] = []
        sizes = [part.records for part in self.parts]
        ranges = zip(sizes, divide_parts(sizes, start), divide_parts(sizes, stop), strict=True)
        for number, (size, low, high) in enumerate(ranges):
            rng, turn, offset = self._random(epoch, number), 0, 0.5
            if self.shuffle and size:  # another fraction of the part in each epoch
                turn, offset = rng.randrange(size), rng.random()
            first, last = low + turn, high + turn
            chunks = self._chunks_of(number, first, min(last, size))
            chunks += self._chunks_of(number, max(first, size) - size, last - size)
            if self.shuffle:
                rng.shuffle(chunks)
            placed += [((at + offset) / len(chunks), chunk) for at, chunk in enumerate(chunks)]
        yield from (chunk for _, chunk in sorted(placed))

    def _chunks_of(self, number: int, low: int, high: int) -> list[Chunk]:
        """Return the chunks of the records low to high - 1 of a part."""
        if low >= high:
            return []
        begin = self.parts[number].first
        bounds = pairwise(self.bounds(number))
        cut = ((max(first, begin + low), min(stop, begin + high)) for first, stop in bounds)
        return [Chunk(number, first, stop) for first, stop in cut if first < stop]

    def _random(self, *names: int) -> random.Random:
        return random.Random("/".join(map(str, (self.seed, *names))))  # noqa: S311 - no secrets


def divide_parts(sizes: Sequence[int], position: int) -> list[int]:
    """Return how many records of each part are before a position, if all parts are mixed evenly.

    Record i of n is at (i + 1/2) / n; of several at one place, that of the first part comes first.

    Args:
        sizes: Number of records of each part.
        position: Number of records before the position, from 0 to their sum.
    """

    def before(place: int) -> list[int]:
        return [(2 * size * place + _END) // (2 * _END) for size in sizes]

    low, high = 0, _END
    while high - low > 1:
        middle = (low + high) // 2
        if sum(before(middle)) < position:
            low = middle
        else:
            high = middle
    counts, above = before(low), before(high)
    missing = position - sum(counts)
    for number, (count, limit) in enumerate(zip(counts, above, strict=True)):
        more = min(missing, limit - count)
        counts[number] += more
        missing -= more
    return counts


def _cut(chunks: list[Chunk], start: int, stop: int) -> Iterator[Chunk]:
    """Yield the part of consecutive chunks from start to stop."""
    at = 0
    for part, first, end in chunks:
        size = end - first
        low, high = max(start - at, 0), min(stop - at, size)
        if low < high:
            yield Chunk(part, first + low, first + high)
        at += size


def _draw(
    items: Iterator[tuple[Chunk, int]], rng: random.Random, buffer: int
) -> Iterator[tuple[Chunk, int]]:
    """Yield items in random order, drawn from a buffer of limited size."""
    held: list[tuple[Chunk, int]] = []
    for item in items:
        if len(held) < buffer:
            held.append(item)
            continue
        place = int(rng.random() * buffer)
        drawn, held[place] = held[place], item
        yield drawn
    rng.shuffle(held)
    yield from held
