"""Stream: sequential or shuffled reading of a split, divided exactly among hosts and workers."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from shardmill.loaders.records import Records
from shardmill.loaders.steps import Share, parse_share
from shardmill.schemas.errors import UsageError

SHUFFLE_BUFFER = 4096


class _Chunk(NamedTuple):
    """Consecutive records of a shard, from ``first`` to ``stop`` - 1."""

    shard: int
    first: int
    stop: int


class Stream:
    """Reads the examples of a split sequentially, each exactly once in an epoch.

    The examples are divided evenly: the numbers of examples of two hosts, or of two workers of a
    host, differ by at most one. Inside a torch ``DataLoader`` the stream gets its worker number
    from torch (see ``torch_data.torch_stream``).

    With ``shuffle`` the order depends on the seed, the epoch and the share of this worker: shards
    and members are read in random order, and examples are drawn from a buffer. Call ``set_epoch``
    before each epoch for another order, as with torch's DistributedSampler; all hosts must set the
    same epoch.

    Args:
        records: The result of ``open_dataset``.
        shuffle: Whether to shuffle.
        seed: Seed of the order.
        buffer: Number of serialized examples in the shuffle buffer.
        host: Number of this host, and number of hosts that divide the split.
        worker: Number of this worker, and number of workers that divide the share of the host;
            None to ask torch.
        equal: Whether each host gets exactly the same number of examples: up to
            ``host count - 1`` are then left out of an epoch (others in each epoch, if shuffled).
        where: Predicate on the values of an example; the others are left out, and the number of
            examples is then unknown.

    Raises:
        UsageError: An option is invalid.
    """

    def __init__(  # noqa: PLR0913 - all but one are keyword-only
        self,
        records: Records,
        *,
        shuffle: bool = False,
        seed: int = 0,
        buffer: int = SHUFFLE_BUFFER,
        host: tuple[int, int] = (0, 1),
        worker: tuple[int, int] | None = None,
        equal: bool = False,
        where: Callable[[Any], bool] | None = None,
    ) -> None:
        if buffer < 1:
            raise UsageError(f"buffer={buffer} must be 1 or more.")
        self.records = records
        self.shuffle, self.seed, self.buffer = shuffle, seed, buffer
        self.host = parse_share("host", host)
        self.worker = None if worker is None else parse_share("worker", worker)
        self.equal, self.where = equal, where
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, which changes the order of a shuffled stream."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Returns the number of examples of this host in an epoch, over all of its workers.

        Raises:
            TypeError: The stream has a predicate.
        """
        if self.where is not None:
            raise TypeError("the number of examples that where keeps is unknown before reading")
        start, stop = self._host_range()
        return stop - start

    def __iter__(self) -> Iterator[Any]:
        """Yields the examples of this worker in the epoch."""
        start, stop = _divide(*self._host_range(), self._worker_share())
        rng = random.Random(f"{self.seed}/{self.epoch}/{start}/{stop}")  # noqa: S311 - no secrets
        items: Iterator[tuple[int, int, bytes]] = (
            (chunk.shard, number, payload)
            for chunk in self._chunks(start, stop)
            for number, payload in enumerate(self.records.files.payloads(*chunk), chunk.first)
        )
        if self.shuffle:
            items = _shuffle(items, rng, self.buffer)
        for shard, number, payload in items:
            example = self.records.decode(shard, number, payload)
            if self.where is None or self.where(example):
                yield example

    def _host_range(self) -> tuple[int, int]:
        total = len(self.records)
        if self.equal:
            each = total // self.host.count
            return self.host.index * each, (self.host.index + 1) * each
        return _divide(0, total, self.host)

    def _worker_share(self) -> Share:
        if self.worker is not None:
            return self.worker
        torch = sys.modules.get("torch.utils.data")  # every DataLoader worker has imported it
        info = None if torch is None else torch.get_worker_info()
        return Share(0, 1) if info is None else Share(info.id, info.num_workers)

    def _chunks(self, start: int, stop: int) -> Iterator[_Chunk]:
        """Yields the chunks of a range of the epoch's order; opens only the shards in it."""
        sizes = [shard.records for shard in self.records.source.shards]
        order = list(range(len(sizes)))
        if self.shuffle:
            random.Random(f"{self.seed}/{self.epoch}").shuffle(order)  # noqa: S311
        at = 0
        for shard in order:
            size = sizes[shard]
            if at < stop and at + size > start:
                yield from _clip(self._members(shard), start - at, stop - at)
            at += size

    def _members(self, shard: int) -> list[_Chunk]:
        bounds = pairwise(self.records.files.member_bounds(shard))
        chunks = [_Chunk(shard, first, stop) for first, stop in bounds if first < stop]
        if self.shuffle:
            random.Random(f"{self.seed}/{self.epoch}/{shard}").shuffle(chunks)  # noqa: S311
        return chunks


def _divide(start: int, stop: int, share: Share) -> tuple[int, int]:
    """Returns one share of a range; the sizes of two shares differ by at most one."""
    size = stop - start
    low, high = share.index * size // share.count, (share.index + 1) * size // share.count
    return start + low, start + high


def _clip(chunks: list[_Chunk], start: int, stop: int) -> Iterator[_Chunk]:
    """Yields the part of consecutive chunks from start to stop."""
    at = 0
    for shard, first, end in chunks:
        size = end - first
        low, high = max(start - at, 0), min(stop - at, size)
        if low < high:
            yield _Chunk(shard, first + low, first + high)
        at += size


def _shuffle(items: Iterator[Any], rng: random.Random, buffer: int) -> Iterator[Any]:
    """Yields items in random order, drawn from a buffer of limited size."""
    held: list[Any] = []
    for item in items:
        if len(held) < buffer:
            held.append(item)
            continue
        place = int(rng.random() * buffer)
        drawn, held[place] = held[place], item
        yield drawn
    rng.shuffle(held)
    yield from held
