"""Process pools on one machine whose processes never outlive the one that started them."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from shardmill.schemas.errors import ShardmillError
from shardmill.transforms.runtime.lifeline import end_with_parent

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
WORTH_PROCESSES = 48 << 20  # bytes; fewer are read before a process has started
_open: weakref.WeakSet[ProcessPool] = weakref.WeakSet()
_starting = threading.Lock()  # a process killed while it starts another would orphan that one
_all_closed = threading.Event()
_kept: list[Connection] = []  # else they are closed when nothing refers to them


class ProcessPool:
    """A pool of processes; they end when it is closed or when this process dies.

    Args:
        processes: Number of processes.
    """

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("spawn")  # fork copies locks that threads hold
        child_end, self._lifeline = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            processes, mp_context=context, initializer=exit_with_parent, initargs=(child_end,)
        )
        _open.add(self)

    def map(
        self, function: Callable[[_Item], _Result], items: Iterable[_Item]
    ) -> Iterator[tuple[_Item, _Result]]:
        """Yield pairs of argument and result, each as soon as it is ready.

        Args:
            function: A function of a module, or a partial of one.
            items: Its arguments; the longest tasks should come first.

        Raises:
            ShardmillError: A process was killed.
        """

        def submit() -> dict[Future[_Result], _Item]:
            # The terminal sends Ctrl-C to all processes; this one ends its children itself.
            with _starting, uninterrupted(signal.SIGINT):
                if _all_closed.is_set():
                    raise ShardmillError("The run is over: no more processes are started.")
                return {self._pool.submit(function, item): item for item in items}

        # Ctrl-C is raised in the main thread: it must not interrupt the start of a process.
        with ThreadPoolExecutor(1) as starter:
            futures = starter.submit(submit).result()
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise ShardmillError(
                "A process that read files was killed, perhaps because memory ran out: run again, "
                "with a smaller --processes if so."
            ) from error

    def close(self) -> None:
        """End the processes at once."""
        _open.discard(self)
        self._lifeline.close()
        # The pool cancels waiting tasks. If a caller had cancelled them, the thread of a pool whose
        # processes end would print an InvalidStateError: https://github.com/python/cpython/pull/108974
        self._pool.shutdown(wait=False, cancel_futures=True)


def run_all(
    function: Callable[[_Item], _Result],
    items: Iterable[_Item],
    processes: int,
    cost: Callable[[_Item], int],
) -> Iterator[tuple[_Item, _Result]]:
    """Yield arguments and results of a function in any order, in processes if that is worth it.

    Args:
        function: A function of a module, or a partial of one. Each process imports that module, so
            it should not import Apache Beam.
        items: Its arguments.
        processes: Largest number of processes.
        cost: Returns the bytes that are read for an item; the longest tasks come first.
    """
    tasks = sorted(items, key=cost, reverse=True)
    workers = min(processes, len(tasks))
    if workers < 2 or sum(map(cost, tasks)) < WORTH_PROCESSES:
        yield from ((item, function(item)) for item in tasks)
        return
    with contextlib.closing(ProcessPool(workers)) as pool:
        yield from pool.map(function, tasks)


def close_all() -> None:
    """Close all pools of this process, which is about to end; no pool can be started again."""
    _all_closed.set()
    with _starting:
        for pool in list(_open):
            pool.close()


def usable_cores() -> int:
    """Return the number of cores that this process may use: its affinity, and its CPU quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return min(cores, cpu_quota() or cores)


@functools.cache
def cpu_quota(folder: str = "/sys/fs/cgroup") -> int:
    """Return the CPU quota of this container in cores, rounded up, or 0.

    Args:
        folder: Where the file systems of cgroups are mounted.
    """
    names = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))  # version 2, and 1
    for files in names:
        with contextlib.suppress(OSError, ValueError):  # "max": there is none
            texts = (Path(folder, name).read_text() for name in files)
            quota, period = map(int, " ".join(texts).split())
            return max(0, -(-quota // period))
    return 0


@contextlib.contextmanager
def uninterrupted(*numbers: int) -> Iterator[None]:
    """Block signals in this thread until the block ends; processes started in it never get them.

    Args:
        numbers: The signals.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_with_parent(lifeline: Connection) -> None:
    """End this process when the one that started it closes the pool or dies.

    Args:
        lifeline: End of a pipe, whose other end that process has.
    """
    _kept.append(lifeline)
    end_with_parent(lifeline.fileno())
