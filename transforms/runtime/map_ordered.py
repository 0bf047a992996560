"""map_ordered: a function over many items on threads, with results in the order of the items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from shardmill.schemas.storage import scheme_of

T = TypeVar("T")
S = TypeVar("S")
_STORAGE_CALLS = 16


class OrderedCalls(Generic[S]):
    """Calls on threads, whose results are taken in the order of submission.

    Args:
        threads: Number of threads.
        window: Largest number of calls whose results were not taken.
        max_size: Largest total size of these calls; one call may exceed it alone. 0: no limit.
    """

    def __init__(self, threads: int, window: int, max_size: int = 0) -> None:
        self._window = window
        self._max_size = max_size
        self._size = 0
        self._calls: deque[tuple[int, Future[S]]] = deque()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ordered")

    def __len__(self) -> int:
        return len(self._calls)

    def is_full(self, size: int = 0) -> bool:
        """Return whether a result must be taken before a call of a size is submitted."""
        if not self._calls:
            return False
        too_large = 0 < self._max_size < self._size + size
        return too_large or len(self._calls) >= self._window

    def submit(self, size: int, function: Callable[..., S], *args: Any) -> None:
        """Start a call on a thread."""
        self._calls.append((size, self._pool.submit(function, *args)))
        self._size += size

    def take(self) -> S:
        """Return the result of the oldest call, or raise its error."""
        size, call = self._calls.popleft()
        self._size -= size
        return call.result()

    def close(self, *, wait: bool) -> None:
        """Cancel the calls that did not start, and wait for the others if wanted."""
        self._calls.clear()
        self._pool.shutdown(wait=wait, cancel_futures=True)


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
        max_size: Largest total size of items in calls that wait; 0 for no limit.
    """
    if not threads:
        yield from map(function, items)
        return
    calls: OrderedCalls[S] = OrderedCalls(threads, window or 2 * threads, max_size)
    try:
        for item in items:
            size = size_of(item)
            while calls.is_full(size):
                yield calls.take()
            calls.submit(size, function, item)
        while calls:
            yield calls.take()
    finally:
        calls.close(wait=True)  # they may use a file that the caller closes next


def storage_threads(path: str) -> int:
    """Return how many calls of a path's storage wait for the network at a time; 0 for one.

    On gs:// and s3:// one call after the other takes an hour for ten thousand shards.
    """
    return _STORAGE_CALLS if scheme_of(path) else 0
