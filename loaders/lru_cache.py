"""LruCache: a cache of limited size, whose values one thread makes while others wait."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from shardmill.loaders.hosts import find_worker

T = TypeVar("T")
_MOST_DROPPED = 100_000
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Spare:
    """What several caches may grow by together."""

    def __init__(self, left: int) -> None:
        self.left, self.lock = left, threading.Lock()


class LruCache:
    """A thread-safe cache that drops the least recently used values above a size limit.

    The limit grows by each dropped value that is asked for again. So it remains small if each value
    is used at one time, and becomes the size of all values if they are used at random.

    Args:
        limit: Maximum total cost of the values; the newest value is kept in any case.
        spare: What the limit may grow by.
    """

    def __init__(self, limit: int, spare: Spare) -> None:
        self._limit, self._spare = limit, spare
        self._dropped: set[Any] = set()
        self._entries: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._making: dict[Any, threading.Event] = {}
        self._total, self._lock = 0, spare.lock

    def get(self, key: Any, make: Callable[[], T], cost: Callable[[T], int]) -> T:
        """Returns a value, made by one thread if it is not cached; the others wait for it."""
        while True:
            with self._lock:
                entry = self._entries.get(key)
                if entry is not None:
                    self._entries.move_to_end(key)
                    value: T = entry[0]
                    return value
                made = self._making.get(key)
                if made is None:
                    made = self._making[key] = threading.Event()
                    break
            made.wait()  # if making it fails, this thread tries itself
        try:
            value = make()
            size = cost(value)
            with self._lock:
                if key in self._dropped:
                    grown = min(size, self._spare.left)
                    self._limit, self._spare.left = self._limit + grown, self._spare.left - grown
                self._total += size
                self._entries[key] = value, size
                while self._total > self._limit and len(self._entries) > 1:
                    dropped, (_, paid) = self._entries.popitem(last=False)
                    self._total -= paid
                    if self._spare.left:
                        self._dropped.add(dropped)
                if len(self._dropped) > _MOST_DROPPED:  # of a dataset that will never fit
                    self._dropped.clear()
        finally:
            with self._lock:
                del self._making[key]
            made.set()
        return value


def spare_bytes() -> int:
    """Returns the bytes that a cache may take: a process's share of a quarter of the memory.

    The memory is that of the container or machine; the processes are those of torchrun on this
    machine, each with the workers of a DataLoader.
    """
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            sizes.append(int(Path(path).read_text()))
    worker = find_worker()
    hosts = os.environ.get("LOCAL_WORLD_SIZE", "1")
    processes = (int(hosts) if hosts.isdecimal() else 1) * (worker.count if worker else 1)
    return min(sizes) // 4 // max(1, processes)
