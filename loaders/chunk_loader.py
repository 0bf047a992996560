"""Loading the records that an order names."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from shardmill.loaders.order import Chunk, Window
from shardmill.loaders.shards import ShardFiles

_READ_AHEAD = 512  # records whose windows are begun


class PlacedRecord(NamedTuple):
    """A record in the order of an epoch.

    Attributes:
        part: Number of the part of the selection.
        record: Number of the record in its shard.
        weight: 0 for one that only pads the share of a host, else 1.
    """

    part: int
    record: int
    weight: float = 1.0


Payloads = Iterator[tuple[PlacedRecord, bytes]]
Load = Callable[[], list[bytes]]


def load_windows(
    files: ShardFiles, windows: Iterator[Window], pool: ThreadPoolExecutor | None
) -> Payloads:
    """Yields the records of windows; loads each member once, when its first record is needed.

    Args:
        files: The files of the shards.
        windows: The windows.
        pool: Loads all members of a window when it begins: the next one before this one ends. None
            to load none ahead.
    """
    begun: deque[tuple[Window, dict[int, Load]]] = deque()
    waiting = 0  # records of windows that were begun, and are not read yet

    def begin() -> bool:
        nonlocal waiting
        window = next(windows, None)
        if window is not None:
            begun.append((window, _start(files, window, pool)))
            waiting += len(window.owners)
        return window is not None

    while begun or begin():
        window, members = begun[0]
        loaded: dict[int, list[bytes]] = {}
        for owner, offset in zip(window.owners.tolist(), window.offsets.tolist(), strict=True):
            while pool and waiting < _READ_AHEAD and begin():
                pass
            payloads = loaded.get(owner)
            if payloads is None:
                payloads = loaded[owner] = members.pop(owner)()
            payload, payloads[offset] = payloads[offset], b""
            waiting -= 1
            chunk = window.chunks[owner]
            yield PlacedRecord(chunk[0], int(chunk[1][offset])), payload
        begun.popleft()


def _start(files: ShardFiles, window: Window, pool: ThreadPoolExecutor | None) -> dict[int, Load]:
    """Returns a function to the payloads of each chunk of a window, in the order of their use."""
    loads = {
        at: partial(_load, files, window.chunks[at]) for at in dict.fromkeys(window.owners.tolist())
    }
    return {at: pool.submit(load).result for at, load in loads.items()} if pool else {**loads}


def _load(files: ShardFiles, chunk: Chunk) -> list[bytes]:
    first = int(chunk.records[0])
    payloads = files.payloads(chunk.part, first, int(chunk.records[-1]) + 1)
    if isinstance(chunk.records, range):
        return payloads
    return [payloads[number] for number in (chunk.records - first).tolist()]
