"""map_ordered: a function over many items on threads, with results in the order of the items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from shardmill.schemas.storage import scheme_of

T = TypeVar("T")
S = TypeVar("S")
_STORAGE_CALLS = 16


def map_ordered(
    function: Callable[[T], S], items: Iterable[T], threads: int, *, window: int = 0,
    size_of: Callable[[T], int] = lambda _: 0, max_size: int = 0,
) -> Generator[S, None, None]:  # fmt: skip
    """Yield the result of a function for each item, in the order of the items.

    Args:
        function: Called on threads; its error is raised in place of the result.
        items: Its arguments.
        threads: Number of threads; 0 to call in the caller's thread.
        window: Largest number of results that wait; 0 for twice the threads.
        size_of: Size of an item.
        max_size: Largest total size of items in calls that wait; one may exceed it alone. 0 for no
            limit.
    """
    if not threads:
        yield from map(function, items)
        return
    calls: deque[tuple[int, Future[S]]] = deque()
    total = 0
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ordered")
    try:
        for item in items:
            size = size_of(item)
            while calls and (len(calls) >= (window or 2 * threads) or 0 < max_size < total + size):
                taken, call = calls.popleft()
                total -= taken
                yield call.result()
            calls.append((size, pool.submit(function, item)))
            total += size
        while calls:
            yield calls.popleft()[1].result()
    finally:  # running calls may use a file that the caller closes next
        pool.shutdown(wait=True, cancel_futures=True)


def storage_threads(path: str) -> int:
    """Return how many calls of a path's storage wait for the network at a time; 0 for one.

    On gs:// and s3:// one call after the other takes an hour for ten thousand shards.
    """
    return _STORAGE_CALLS if scheme_of(path) else 0
