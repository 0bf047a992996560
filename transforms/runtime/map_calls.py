"""Several calls at a time, where each of them waits for the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from shardmill.schemas.storage import scheme_of

T = TypeVar("T")
S = TypeVar("S")
_AT_A_TIME = 16
_WINDOW = 256  # results that are held


def map_calls(path: str, call: Callable[[T], S], items: Sequence[T]) -> Iterator[S]:
    """Yields what a call gives for each item, in their order.

    On gs:// several calls are under way at a time: publishing ten thousand shards one after the
    other would take an hour. Its client may be shared by threads, which not all others promise.

    Args:
        path: Where the calls go to.
        call: What to call; an error of it is raised in its turn.
        items: What to call it with.
    """
    if scheme_of(path) != "gs" or len(items) < 2:
        yield from map(call, items)
        return
    with ThreadPoolExecutor(min(_AT_A_TIME, len(items))) as pool:
        for first in range(0, len(items), _WINDOW):
            yield from pool.map(call, items[first : first + _WINDOW])
