"""Caches of limited size: of values in memory, and of copies of remote shards on a disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import google_crc32c

from shardmill.loaders.hosts import find_worker
from shardmill.loaders.stats import BYTES, DISK_HITS, DISK_MISSES, REQUESTS, Counters
from shardmill.schemas.dataset.manifest import Shard
from shardmill.schemas.errors import DeniedError, InputError, UsageError
from shardmill.schemas.numbers import plural
from shardmill.schemas.storage import open_storage, scheme_of
from shardmill.schemas.tfrecord.scanner import DamagedError, FileFault

T = TypeVar("T")
_MOST_DROPPED = 100_000
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_SUFFIX = ".copy"
_NAME = 48  # characters of the name of a shard, so that the copy's has at most 255 bytes


class Spare:
    """Bytes that several caches may grow by together."""

    def __init__(self, left: int) -> None:
        self.left, self.lock = left, threading.Lock()


class LruCache:
    """A thread-safe cache that drops the least recently used values above a size limit.

    The limit grows by each dropped value that is asked for again. So it remains small if each value
    is used at one time, and becomes the size of all values if they are used at random.

    Args:
        limit: Maximum total cost of the values; the newest value is kept in any case.
        spare: Bytes that the limit may grow by.
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

    Memory is the container's or the machine's. Processes are torchrun's on this machine, each with
    the workers of a DataLoader.
    """
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            sizes.append(int(Path(path).read_text()))
    worker = find_worker()
    hosts = os.environ.get("LOCAL_WORLD_SIZE", "1")
    processes = (int(hosts) if hosts.isdecimal() else 1) * (worker.count if worker else 1)
    return min(sizes) // 4 // max(1, processes)


class DiskCache:
    """A folder with the copies that were used last; its files are named by content.

    Args:
        folder: The folder; made if it does not exist.
        max_bytes: Size of all copies; the newest is kept in any case.

    Raises:
        UsageError: It cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        is_path = isinstance(folder, str | os.PathLike) and os.fspath(folder) != ""
        if not is_path or scheme_of(os.fspath(folder)):
            raise UsageError(f"cache_dir={folder!r} must be a folder of a local disk.")
        self._folder, self._max_bytes = Path(folder).absolute(), max_bytes
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cache_dir={os.fspath(folder)!r} cannot be made: {error.strerror}; give a folder "
                "of a local disk."
            ) from error

    def path_of(self, path: str, shard: Shard, counters: Counters | None = None) -> str:
        """Return the path of a copy, which is read from the storage if there is none.

        Args:
            path: Path of the shard.
            shard: Its entry in the manifest.
            counters: Count what is read; None if they are not needed.

        Raises:
            DamagedError: The shard does not exist.
            InputError: The shard does not match the manifest, or the disk is full.
            StorageError: The storage failed.
        """
        copy = self._copy_of(shard)
        counters = counters or Counters()
        is_hit = True
        try:
            os.utime(copy)  # marks it as used
        except FileNotFoundError:
            try:
                is_hit = not self._copy(path, shard, copy, counters)
            except FileNotFoundError as error:
                fault = FileFault("not_found", 0, 0, "the file does not exist")
                raise DamagedError(fault) from error
            except DeniedError:  # an OSError too, but of the storage
                raise
            except OSError as error:
                raise InputError(
                    f"{path} cannot be copied to {self._folder}: {error.strerror}; free space, or "
                    "give another cache_dir."
                ) from error
            self._drop_oldest(copy)
        except OSError:  # a copy of another user, or on a read-only disk, can still be read
            pass
        counters.cells[DISK_HITS if is_hit else DISK_MISSES] += 1
        return str(copy)

    def drop_damaged(self, shard: Shard) -> str:
        """Delete the copy of a shard if its bytes differ from the shard, as after a crash.

        Args:
            shard: The entry of the shard in the manifest.

        Returns:
            Path of the copy if it is deleted, by this process or another one; empty if it is sound.
        """
        copy = str(self._copy_of(shard))
        storage = open_storage(copy)
        with contextlib.suppress(FileNotFoundError):
            if shard.crc32c in (None, f"{storage.checksum(copy):08x}"):
                return ""
            storage.delete(copy)
        return copy

    def _copy_of(self, shard: Shard) -> Path:
        name = shard.file.replace("/", "-")[-_NAME:]
        return self._folder / f"{shard.crc32c}-{shard.bytes}-{name}{_SUFFIX}"

    def _copy(self, path: str, shard: Shard, copy: Path, counters: Counters) -> bool:
        """Copies a shard; returns whether it had to, since no other process did."""
        part = copy.with_suffix(".part")
        with copy.with_suffix(".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process may copy the same shard
            if copy.exists():
                return False
            checksum = 0
            counters.cells[REQUESTS] += 1  # to open it
            try:
                with part.open("wb") as file, open_storage(path).open_read(path) as chunks:
                    for chunk in chunks:
                        file.write(chunk)
                        checksum = google_crc32c.extend(checksum, chunk)
                        counters.cells[REQUESTS] += 1
                        counters.cells[BYTES] += len(chunk)
                size = part.stat().st_size
                if size != shard.bytes or shard.crc32c not in (None, f"{checksum:08x}"):
                    raise InputError(
                        f"{path} has {plural(size, 'byte')} with the CRC-32C {checksum:08x}, and "
                        f"the manifest says {shard.bytes:,} and {shard.crc32c}: run `shardmill "
                        "verify`."
                    )
                part.replace(copy)
                return True
            finally:
                part.unlink(missing_ok=True)

    def _drop_oldest(self, newest: Path) -> None:
        """Delete the least recently used copies; open files can still be read."""
        copies = []
        for copy in self._folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):  # another process deletes too
                state = copy.stat()
                copies.append((state.st_mtime_ns, state.st_size, copy))
        total = sum(size for _, size, _ in copies)
        for _, size, copy in sorted(copies):
            if total <= self._max_bytes:
                return
            if copy != newest:
                copy.unlink(missing_ok=True)
                total -= size
