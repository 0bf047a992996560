"""map_ordered: a function over many items on threads, with results in the order of the items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn, TypeVar

from shardmill.schemas.storage import scheme_of

T = TypeVar("T")
S = TypeVar("S")
_STORAGE_CALLS = 16


def map_ordered(
    function: Callable[[T], S], items: Iterable[T], threads: int, *, window: int = 0,
    size_of: Callable[[T], int] = lambda _: 0, max_size: float = 0, wait: bool = True,
) -> Generator[S, None, None]:  # fmt: skip
    """Yield the result of a function for each item, in the order of the items.

    Args:
        function: Called on threads; its error is raised in place of the result.
        items: Its arguments; their error is raised after the results of those before it.
        threads: Number of threads; 0 to call in the caller's thread.
        window: Largest number of results that wait; 0 for twice the threads.
        size_of: Size of an item.
        max_size: Largest total size of items in calls that wait; one may exceed it alone. 0 for no
            limit.
        wait: Whether closing waits for running calls, which may use a file that the caller closes
            next.
    """
    if not threads:
        yield from map(function, items)
        return

    def sized() -> Iterator[tuple[int, Callable[[], Any]]]:
        try:
            for item in items:
                yield size_of(item), partial(function, item)
        except Exception as error:  # noqa: BLE001 - raised in its turn
            yield 0, partial(_raise, error)

    calls: deque[tuple[int, Future[S]]] = deque()
    total = 0
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ordered")
    try:
        for size, call in sized():
            while calls and (len(calls) >= (window or 2 * threads) or 0 < max_size < total + size):
                taken, first = calls.popleft()
                total -= taken
                yield first.result()
            calls.append((size, pool.submit(call)))
            total += size
        while calls:
            yield calls.popleft()[1].result()
    finally:
        pool.shutdown(wait=wait, cancel_futures=True)


def _raise(error: Exception) -> NoReturn:
    raise error


def storage_threads(path: str) -> int:
    """Return how many calls of a path's storage wait for the network at a time; 0 for one.

    On gs:// and s3:// one call after the other takes an hour for ten thousand shards.
    """
    return _STORAGE_CALLS if scheme_of(path) else 0
