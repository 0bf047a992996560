"""StreamStats: what a stream has read, and how long the trainer waited for its batches."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from typing import Any, Generic, TypeVar

from shardmill.loaders.epoch_log import COUNTERS, EpochLog
from shardmill.schemas.errors import UsageError
from shardmill.schemas.numbers import human_bytes, plural

# Cells of the counters of a process. Lookups in memory are hits and misses.
RECORDS, DROPPED, BYTES, REQUESTS, LOOKUPS, MISSES, DISK_HITS, DISK_MISSES = range(8)
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class StreamStats:
    """What a stream has read since it was made, and how long the trainer waited.

    The numbers are sums over the stream's process and all workers of its DataLoaders. The
    difference of two is what was read between them.

    Attributes:
        records: Records that became examples, with repeated ones and padding. DataLoaders and
            ``keras_dataset`` read some ahead.
        dropped: Records that a predicate ``where`` left out after they were read.
        bytes_read: Bytes of shards that were read from the storage of the dataset; not from copies
            in ``cache_dir``.
        requests: Calls of that storage: a shard is opened, or some bytes of it are read.
        memory_hits: Records of ``order="records"`` whose inflated member was in memory.
        memory_misses: Members that were read for one of these records.
        disk_hits: Shards that were opened and had a copy in ``cache_dir``.
        disk_misses: Shards that were copied to ``cache_dir``.
        wait_seconds: Seconds in which the loop over ``Stream.timed`` waited for a batch.
        busy_seconds: Seconds in which this loop did something else, such as training.
    """

    records: int = 0
    dropped: int = 0
    bytes_read: int = 0
    requests: int = 0
    memory_hits: int = 0
    memory_misses: int = 0
    disk_hits: int = 0
    disk_misses: int = 0
    wait_seconds: float = 0.0
    busy_seconds: float = 0.0

    def __sub__(self, earlier: StreamStats) -> StreamStats:
        """Returns what was read since earlier numbers of the same stream."""
        pairs = zip(astuple(self), astuple(earlier), strict=True)
        return StreamStats(*(later - before for later, before in pairs))

    @property
    def wait_share(self) -> float | None:
        """Share of the time of the loop in which it waited, 0 to 1; None if it was not timed."""
        seconds = self.wait_seconds + self.busy_seconds
        if seconds:
            return self.wait_seconds / seconds
        return None

    def __str__(self) -> str:
        """Returns one line."""
        size = human_bytes(self.bytes_read)
        texts = [f"{plural(self.records, 'record')}, {size} in {plural(self.requests, 'request')}"]
        if self.dropped:
            texts.append(f"{self.dropped:,} dropped by where")
        if self.memory_hits or self.memory_misses:
            texts.append(_describe_cache("memory", self.memory_hits, self.memory_misses))
        if self.disk_hits or self.disk_misses:
            texts.append(_describe_cache("cache_dir", self.disk_hits, self.disk_misses))
        if self.wait_share is not None:
            seconds = self.wait_seconds + self.busy_seconds
            texts.append(
                f"waited {self.wait_seconds:,.1f} of {seconds:,.1f} s ({self.wait_share:.0%})"
            )
        return "; ".join(texts)

    def prometheus(self, **labels: str) -> str:
        """Returns the numbers in the text format of Prometheus.

        Args:
            labels: Labels of all samples, as in ``split="train"``.

        Raises:
            UsageError: A name is not one of a label, or is ``cache``.
        """
        for name in labels:
            if not _LABEL.fullmatch(name) or name == "cache" or name.startswith("__"):
                raise UsageError(
                    f"{name!r} cannot be a label: use letters, digits and single underscores, and "
                    "not the label cache, which distinguishes memory and disk."
                )
        memory, disk = {"cache": "memory"}, {"cache": "disk"}
        lines = [
            *_counter("records", "Records that became examples.", labels, self.records),
            *_counter("dropped_records", "Records that where left out.", labels, self.dropped),
            *_counter("read_bytes", "Bytes read from the storage.", labels, self.bytes_read),
            *_counter("requests", "Calls of the storage.", labels, self.requests),
            *_counter("cache_hits", "Values found in a cache.", labels | memory, self.memory_hits),
            _sample("cache_hits", labels | disk, self.disk_hits),
            *_counter(
                "cache_misses", "Values read into a cache.", labels | memory, self.memory_misses
            ),
            _sample("cache_misses", labels | disk, self.disk_misses),
            *_counter(
                "wait_seconds", "Time the trainer waited for data.", labels, self.wait_seconds
            ),
            *_counter("busy_seconds", "Time between two waits.", labels, self.busy_seconds),
        ]
        return "\n".join(lines) + "\n"


def _describe_cache(name: str, hits: int, misses: int) -> str:
    return f"{name}: {plural(hits, 'hit')}, {misses:,} missed"


def _counter(name: str, text: str, labels: dict[str, str], value: float) -> list[str]:
    """Returns the lines of a counter with its first sample."""
    full = f"shardmill_{name}_total"
    return [f"# HELP {full} {text}", f"# TYPE {full} counter", _sample(name, labels, value)]


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    pairs = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
    if pairs:
        return f"shardmill_{name}_total{{{pairs}}} {value}"
    return f"shardmill_{name}_total {value}"


def _escape(text: str) -> str:
    return str(text).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Counters:
    """The counters of one stream in this process.

    A worker of a DataLoader counts in its part of the file of the stream's log, which the process
    of the stream reads: what a worker has counted stays when it is killed.

    Attributes:
        cells: The numbers. ``cells[n] += 1`` needs no lock: the interpreter switches threads only
            where a function is called or a loop jumps back.
        wait_seconds: See ``StreamStats``.
        busy_seconds: See ``StreamStats``.
        timers: Number of loops that ``TimedBatches`` measures now.

    Args:
        log: The log of the stream; None if they are not needed.
    """

    def __init__(self, log: EpochLog | None = None) -> None:
        self._log = log
        self._start(_private_cells())

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns what makes the counters of a copy, which begin at 0 in each process."""
        return _unpickle, (self._log,)

    def _start(self, cells: memoryview) -> None:
        self.cells = cells
        self.wait_seconds = self.busy_seconds = 0.0
        self.timers = 0
        self._process: int | None = os.getpid()

    def enter(self) -> None:
        """Counts from 0 if this process is another one than before."""
        if self._process == os.getpid():
            return
        shared = None if self._log is None else self._log.open_counters()
        self._start(_private_cells() if shared is None else shared)

    def read(self) -> StreamStats:
        """Returns the sums over all processes."""
        self.enter()
        of_workers = [0] * COUNTERS if self._log is None else self._log.sum_counters()
        is_worker = self._log is not None and self._log.is_of_worker
        own = [0] * COUNTERS if is_worker else self.cells.tolist()
        total = [ours + theirs for ours, theirs in zip(own, of_workers, strict=True)]
        return StreamStats(
            records=total[RECORDS],
            dropped=total[DROPPED],
            bytes_read=total[BYTES],
            requests=total[REQUESTS],
            # A member may have been read before its first record is looked up.
            memory_hits=max(0, total[LOOKUPS] - total[MISSES]),
            memory_misses=total[MISSES],
            disk_hits=total[DISK_HITS],
            disk_misses=total[DISK_MISSES],
            wait_seconds=self.wait_seconds,
            busy_seconds=self.busy_seconds,
        )

    def begin_epoch(self) -> StreamStats | None:
        """Returns the numbers before an epoch, for ``log_epoch``; None if they are not logged."""
        if _logger.isEnabledFor(logging.INFO):
            return self.read()
        return None

    def log_epoch(self, before: StreamStats | None) -> None:
        """Logs what was read since ``begin_epoch``."""
        epoch = None if self._log is None else self._log.last_epoch
        if before is not None and epoch is not None:
            _logger.info("epoch %d: %s", epoch, self.read() - before)


def _private_cells() -> memoryview:
    return memoryview(bytearray(8 * COUNTERS)).cast("q")


def _unpickle(log: EpochLog | None) -> Counters:
    counters = Counters(log)
    counters._process = None  # noqa: SLF001 - of this module; a worker has to enter
    return counters


class TimedBatches(Generic[T]):
    """The result of ``Stream.timed``: batches, whose waits are measured."""

    def __init__(self, batches: Iterable[T], counters: Counters) -> None:
        self._batches, self._counters = batches, counters

    def __len__(self) -> int:
        """Returns the number of batches."""
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        """Yields the batches of one pass; the last one is followed by a line of the log."""
        counters = self._counters
        before = counters.begin_epoch()
        counters.timers += 1
        at = time.perf_counter()
        try:
            batches = iter(self._batches)
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                finally:
                    began, at = at, time.perf_counter()
                    counters.wait_seconds += at - began
                try:
                    yield batch
                finally:
                    began, at = at, time.perf_counter()
                    counters.busy_seconds += at - began
        finally:
            counters.timers -= 1
        counters.log_epoch(before)
