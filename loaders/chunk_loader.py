"""Loading the records that an order names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from shardmill.loaders.order import Chunk, Window
from shardmill.loaders.shards import ShardFiles

_READ_AHEAD = 512  # records before the end of a window, when the members of the next one are read


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


def load_windows(
    files: ShardFiles, windows: Iterator[Window], pool: ThreadPoolExecutor | None
) -> Payloads:
    """Yields the records of windows; loads each member once, when its first record is needed.

    Args:
        files: The files of the shards.
        windows: The windows.
        pool: Loads all members of a window when it begins, and those of the next one before it
            ends; None to load none ahead.
    """

    def start(chunk: Chunk) -> Callable[[], list[bytes]]:
        if pool is None:
            return lambda: _load(files, chunk)
        return pool.submit(_load, files, chunk).result

    def begin(window: Window) -> tuple[Window, dict[int, Callable[[], list[bytes]]]]:
        return window, {
            owner: start(window.chunks[owner]) for owner in dict.fromkeys(window.owners.tolist())
        }

    begun = map(begin, windows)
    following = next(begun, None)
    while following is not None:
        (window, members), following = following, None
        loaded: dict[int, list[bytes]] = {}
        look_ahead = max(0, len(window.owners) - _READ_AHEAD)
        places = zip(window.owners.tolist(), window.offsets.tolist(), strict=True)
        for number, (owner, offset) in enumerate(places):
            if number == look_ahead:
                following = next(begun, None)
            if owner not in loaded:
                loaded[owner] = members.pop(owner)()
            payloads, (part, records) = loaded[owner], window.chunks[owner]
            payload, payloads[offset] = payloads[offset], b""
            yield PlacedRecord(part, int(records[offset])), payload


def _load(files: ShardFiles, chunk: Chunk) -> list[bytes]:
    first = int(chunk.records[0])
    payloads = files.payloads(chunk.part, first, int(chunk.records[-1]) + 1)
    if isinstance(chunk.records, range):
        return payloads
    return [payloads[number] for number in (chunk.records - first).tolist()]
