"""Processes that work side by side on one machine and never outlive the one that started them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import TypeVar

from shardmill.schemas.errors import ShardmillError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_open: weakref.WeakSet[ProcessPool] = weakref.WeakSet()


class ProcessPool:
    """A pool of processes; they end at once when it is closed or when this process dies.

    Args:
        processes: How many.
    """

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("spawn")  # others' threads and locks are not copied
        ear, self._lifeline = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            processes, mp_context=context, initializer=_live_with, initargs=(ear,)
        )
        _open.add(self)

    def map(
        self, function: Callable[[_Item], _Result], items: Iterable[_Item]
    ) -> Iterator[_Result]:
        """Yields the results of a function, each as soon as it is there.

        Args:
            function: A module's function, or a partial one.
            items: Its arguments; those that take longest had best come first.

        Raises:
            ShardmillError: A process was killed.
        """
        futures = [self._pool.submit(function, item) for item in items]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise ShardmillError(
                "A process that read files was killed from outside, perhaps for want of memory: "
                "run again, with a smaller --processes if that is so."
            ) from error
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """Ends the processes, whatever they are doing."""
        _open.discard(self)
        self._lifeline.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def run_all(
    function: Callable[[_Item], _Result], items: Sequence[_Item], processes: int
) -> Iterator[_Result]:
    """Yields the results of a function, in no order; in processes where more than one is allowed.

    Args:
        function: A module's function, or a partial one.
        items: Its arguments; those that take longest had best come first.
        processes: How many processes may be started for it.
    """
    wanted = min(processes, len(items))
    if wanted < 2:
        yield from map(function, items)
        return
    pool = ProcessPool(wanted)
    try:
        yield from pool.map(function, items)
    finally:
        pool.close()


def close_all() -> None:
    """Closes every pool of this process."""
    for pool in list(_open):
        pool.close()


def usable_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _live_with(parent: Connection) -> None:
    """Ends this process when the one that started it closes the pool, or is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides

    def wait() -> None:
        with contextlib.suppress(EOFError, OSError):
            parent.recv()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
