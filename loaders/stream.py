"""Stream: a split read in order or shuffled, shared out exactly over hosts and workers."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from shardmill.loaders.records import Records
from shardmill.schemas.errors import UsageError

SHUFFLE_BUFFER = 4096


class _Chunk(NamedTuple):
    """Neighbouring records of a shard: those from ``first`` to before ``after``."""

    shard: int
    first: int
    after: int


class Stream:
    """Reads the examples of a split one after the other, each exactly once an epoch.

    Every host and every worker gets a share of its own: hosts get the same number of examples but
    for one, and so do the workers of a host; together they read all. Inside a torch ``DataLoader``
    the worker is found out by itself (see ``torch_data.torch_stream``).

    With ``shuffle`` the order is decided by seed, epoch and this worker's share: shards and members
    are put in another order, and examples are drawn from a buffer. ``set_epoch`` before each epoch
    gives another order, as in torch's DistributedSampler; on all hosts it must be the same one.

    Args:
        records: What is read.
        shuffle: Whether to shuffle.
        seed: Another one gives another order.
        buffer: How many examples are held to draw from; they are held as they were written.
        host: Number of this host.
        hosts: How many hosts share the split.
        worker: Number of this worker in its host; None to find out from torch.
        workers: How many workers share a host's part; None to find out from torch.
        equal: Whether each host gets exactly the same number: up to ``hosts - 1`` examples are
            then left out of an epoch; shuffled, others in each.
        where: Which examples are kept, told by their values; the number is then not known.

    Raises:
        UsageError: A number breaks its rule.
    """

    def __init__(  # noqa: PLR0913 - all but one are named
        self,
        records: Records,
        *,
        shuffle: bool = False,
        seed: int = 0,
        buffer: int = SHUFFLE_BUFFER,
        host: int = 0,
        hosts: int = 1,
        worker: int | None = None,
        workers: int | None = None,
        equal: bool = False,
        where: Callable[[Any], bool] | None = None,
    ) -> None:
        if not 0 <= host < hosts:
            raise UsageError(f"host={host} of hosts={hosts}: hosts count from 0.")
        if (worker is None) != (workers is None):
            raise UsageError("worker and workers go together: give both, or none.")
        if worker is not None and workers is not None and not 0 <= worker < workers:
            raise UsageError(f"worker={worker} of workers={workers}: workers count from 0.")
        if buffer < 1:
            raise UsageError(f"buffer={buffer} must be 1 or more.")
        self.records = records
        self.shuffle, self.seed, self.buffer = shuffle, seed, buffer
        self.host, self.hosts = host, hosts
        self.worker, self.workers = worker, workers
        self.equal, self.where = equal, where
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch comes next; shuffled, each has an order of its own."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Returns how many examples this host reads in an epoch, over all of its workers.

        Raises:
            TypeError: A filter decides that.
        """
        if self.where is not None:
            raise TypeError("how many examples a filter keeps is not known before they are read")
        start, stop = self._host_part()
        return stop - start

    def __iter__(self) -> Iterator[Any]:
        """Yields this worker's examples of the epoch."""
        start, stop = _share(*self._host_part(), *self._worker())
        rng = random.Random(f"{self.seed}/{self.epoch}/{start}/{stop}")  # noqa: S311 - no secrets
        found = self._payloads(start, stop)
        for shard, number, payload in _drawn(found, rng, self.buffer) if self.shuffle else found:
            example = self.records.decoded(shard, number, payload)
            if self.where is None or self.where(example):
                yield example

    def _host_part(self) -> tuple[int, int]:
        total = len(self.records)
        if self.equal:
            each = total // self.hosts
            return self.host * each, (self.host + 1) * each
        return _share(0, total, self.host, self.hosts)

    def _worker(self) -> tuple[int, int]:
        if self.worker is not None and self.workers is not None:
            return self.worker, self.workers
        torch = sys.modules.get("torch.utils.data")  # whoever has workers has loaded it
        info = None if torch is None else torch.get_worker_info()
        return (0, 1) if info is None else (info.id, info.num_workers)

    def _payloads(self, start: int, stop: int) -> Iterator[tuple[int, int, bytes]]:
        """Yields (shard, number in it, payload) of a range of the epoch's order."""
        for chunk in self._chunks(start, stop):
            payloads = self.records.files.payloads(*chunk)
            for number, payload in enumerate(payloads, chunk.first):
                yield chunk.shard, number, payload

    def _chunks(self, start: int, stop: int) -> Iterator[_Chunk]:
        """Yields the chunks of a range of the epoch's order; only shards in it are looked into."""
        sizes = [shard.records for shard in self.records.source.shards]
        order = list(range(len(sizes)))
        if self.shuffle:
            random.Random(f"{self.seed}/{self.epoch}").shuffle(order)  # noqa: S311
        at = 0
        for shard in order:
            size = sizes[shard]
            if at < stop and at + size > start:
                yield from _clipped(self._members(shard), start - at, stop - at)
            at += size

    def _members(self, shard: int) -> list[_Chunk]:
        sizes = self.records.files.member_sizes(shard).tolist()
        ends = list(accumulate(sizes))
        chunks = [
            _Chunk(shard, end - size, end) for size, end in zip(sizes, ends, strict=True) if size
        ]
        if self.shuffle:
            random.Random(f"{self.seed}/{self.epoch}/{shard}").shuffle(chunks)  # noqa: S311
        return chunks


def _share(start: int, stop: int, number: int, of: int) -> tuple[int, int]:
    """Returns one of so many parts of a range; their sizes differ by one at most."""
    size = stop - start
    return start + number * size // of, start + (number + 1) * size // of


def _clipped(chunks: list[_Chunk], start: int, stop: int) -> Iterator[_Chunk]:
    """Yields what lies from start to stop of chunks that follow each other."""
    at = 0
    for shard, first, after in chunks:
        size = after - first
        low, high = max(start - at, 0), min(stop - at, size)
        if low < high:
            yield _Chunk(shard, first + low, first + high)
        at += size


def _drawn(items: Iterator[Any], rng: random.Random, buffer: int) -> Iterator[Any]:
    """Yields items in an order drawn from a buffer."""
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
