"""map_ahead: a function of items, computed by threads for the next few of them, in their order."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def map_ahead(function: Callable[[T], Any], items: Iterator[T], workers: int) -> Iterator[Any]:
    """Yields the result for each item in order; an exception is raised in its place.

    Args:
        function: Called by threads if there are any.
        items: The items; at most twice as many as threads are taken ahead.
        workers: Number of threads; 0 for none.
    """
    if not workers:
        yield from map(function, items)
        return
    with contextlib.ExitStack() as stack:
        pool = ThreadPoolExecutor(workers)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        ahead: deque[Future[Any]] = deque()
        for future in _submit(pool, function, items):
            ahead.append(future)
            if len(ahead) > 2 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _submit(
    pool: ThreadPoolExecutor, function: Callable[[T], Any], items: Iterator[T]
) -> Iterator[Future[Any]]:
    """Yields the future of each item; an error of the items follows the results before it."""
    try:
        for item in items:
            yield pool.submit(function, item)
    except Exception as error:  # noqa: BLE001 - raised in its turn
        failed: Future[Any] = Future()
        failed.set_exception(error)
        yield failed
