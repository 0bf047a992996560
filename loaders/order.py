"""The order of an epoch: a pure function of the selection, the seed and the epoch.

Its permutations are functions of a key: the same with every version of Python and NumPy.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardmill.loaders.pieces import Cut, Piece
from shardmill.loaders.selection import ShardSlice

Numbers = npt.NDArray[np.int64]
_FIRST_GROUPS = 2  # whose shards are fetched before the size of a window is measured
_WINDOWS_AHEAD = 2  # whose shards are fetched before they are opened
GROUP = 4  # shards whose members are interleaved
Hashes = npt.NDArray[np.uint64]
_ROUNDS = 6
_STEP = 0x9E3779B97F4A7C15  # of SplitMix64, as the multipliers of its finalizer


class Chunk(NamedTuple):
    """Records of one member of a part: their numbers in its shard, ascending."""

    part: int
    records: range | Numbers


class Window(NamedTuple):
    """Examples that are mixed with each other.

    Attributes:
        chunks: Where they are.
        owners: The chunk of each example in the order in which they are read, shape [examples].
        offsets: Number of each example in its chunk, shape [examples].
    """

    chunks: list[Chunk]
    owners: Numbers
    offsets: Numbers


@dataclass(frozen=True)
class EpochOrder:
    """The order of all examples of an epoch.

    ``places`` is a permutation of all examples. ``windows`` reads whole members: shards in random
    order, the members of each in random order, and then the examples of consecutive members mixed
    in windows. The members of shards of different labels (``--shard_by=label``) are spread evenly
    over the epoch. If nothing is shuffled, both have the order of the shards.

    Attributes:
        parts: The parts of the selection.
        numbers: Numbers of the examples in the selection, ascending; None for all of it.
        permuted: Whether to shuffle.
        name: The seed and the epoch, which determine the order.
        measure: Returns the number of examples in a window; it reads the first member.
        bounds: Returns, for each of some parts, the number of the first record of each member of
            its shard, and the number of all records; it opens the shards.
        ahead: Called with the next parts when some were opened, to fetch them meanwhile; it
            returns at once.
    """

    parts: Sequence[ShardSlice]
    numbers: Numbers | None
    permuted: bool
    name: str
    measure: Callable[[], int]
    bounds: Callable[[Sequence[int]], Iterable[Sequence[int]]]
    ahead: Callable[[Sequence[int]], object] = lambda _: None

    @cached_property
    def window(self) -> int:
        """Number of examples in a window."""
        return self.measure()

    @cached_property
    def _ends(self) -> list[int]:
        """Number of the example in the selection after each part."""
        return list(accumulate(part.records for part in self.parts))

    @cached_property
    def _cuts(self) -> list[int]:
        """Number of examples of this epoch before each part, and of all."""
        ends = [0, *self._ends]
        return ends if self.numbers is None else np.searchsorted(self.numbers, ends).tolist()

    def __len__(self) -> int:
        """Returns the number of examples."""
        return self._cuts[-1]

    def places(self, positions: Numbers) -> tuple[Numbers, Numbers]:
        """Returns the part, and the number in its shard, of the records at some positions."""
        if self.permuted:
            positions = permute(self._key("records"), len(self), positions)
        numbers = positions if self.numbers is None else self.numbers[positions]
        # Parts may begin and end in the middle of a shard: the number of a record in its shard is
        # its number in the selection, moved by the difference of both ends of its part.
        parts = np.searchsorted(self._ends, numbers, "right")
        return parts, numbers + np.array(
            [part.stop - end for part, end in zip(self.parts, self._ends, strict=True)], np.int64
        )[parts]

    def windows(self, pieces: Sequence[Piece]) -> Iterator[Window]:
        """Yields the windows of some pieces of the order; opens only the shards in them."""
        for start, stop, cuts in pieces:
            if self.permuted:
                for low in range(start, stop, self.window):
                    yield self._window(Piece(low, min(low + self.window, stop), cuts), stop)
                continue
            for chunk in self.chunks(start, stop, stop):
                size = len(chunk.records)
                yield Window([chunk], np.zeros(size, np.int64), np.arange(size))

    def _window(self, piece: Piece, end: int) -> Window:
        start, stop, cuts = piece
        chunks = list(self.chunks(start, stop, end))
        firsts = np.cumsum([0, *(len(chunk.records) for chunk in chunks)])
        # The key is of the whole window, also where some of it was read: the rest must have the
        # same order on every host.
        places = cut_places(shuffled(self._key("window", start), stop - start), cuts)
        owners = np.searchsorted(firsts, places, "right") - 1
        return Window(chunks, owners, places - firsts[owners])

    def chunks(self, start: int, stop: int, end: int) -> Iterator[Chunk]:
        """Yields the chunks from ``start`` to ``stop``; this reader's share ends at ``end``."""
        ends = self._group_ends
        for group in range(bisect_right(ends, start), bisect_left(ends, stop) + 1):
            most = min(end, ends[group] + _WINDOWS_AHEAD * self.window)
            # Groups beyond ``end`` belong to another reader, so they are not fetched.
            for upcoming in range(group + 1, bisect_left(ends, most, group) + 1):
                self._fetch(upcoming)
            places, chunks = self._last_group(group)
            cut = slice(max(0, bisect_right(places, start) - 1), bisect_left(places, stop))
            for at, (part, records) in zip(places[cut], chunks[cut], strict=False):
                yield Chunk(part, records[max(start - at, 0) : stop - at])

    def fetch(self, start: int, stop: int) -> None:
        """Starts to open the first shards from start to stop; does not wait."""
        ends = self._group_ends
        groups = range(bisect_right(ends, start), bisect_left(ends, stop) + 1)
        for group in groups[:_FIRST_GROUPS]:
            self._fetch(group)

    def _fetch(self, group: int) -> None:
        """Fetches a group once, although several windows are in it."""
        if group not in self._fetched:
            self._fetched.add(group)
            self.ahead(self._groups[group])

    @cached_property
    def _fetched(self) -> set[int]:
        """Groups that were fetched ahead."""
        return set()

    @cached_property
    def _last(self) -> dict[int, tuple[list[int], list[Chunk]]]:
        """The last group that was interleaved, by its number."""
        return {}

    def _last_group(self, group: int) -> tuple[list[int], list[Chunk]]:
        """Returns ``_interleaved``, which many windows need of one group.

        An ``lru_cache`` of the method would make a cycle of references, in which files stay open
        until the garbage collector runs.
        """
        result = self._last.get(group)
        if result is None:
            result = self._interleaved(group)
            self._last.clear()
            self._last[group] = result
        return result

    @cached_property
    def _group_ends(self) -> list[int]:
        """Place after each group in the order of members."""
        return list(accumulate(sum(map(self._size, group)) for group in self._groups))

    @cached_property
    def _groups(self) -> list[list[int]]:
        """Numbers of the parts whose members are interleaved."""
        if not self.permuted:
            return [[number] for number in range(len(self.parts))]
        # Groups bound how many shards are open. Shards of one label are one group: of four of them
        # a window would have four labels.
        numbers = shuffled(self._key("parts"), len(self.parts)).tolist()
        if any(part.shard.label is not None for part in self.parts):
            return [numbers]
        return [numbers[at : at + GROUP] for at in range(0, len(numbers), GROUP)]

    def _interleaved(self, group: int) -> tuple[list[int], list[Chunk]]:
        """Returns the chunks of a group, each part's evenly spread, and their places."""
        placed: list[tuple[float, int, Chunk]] = []
        read = [number for number in self._groups[group] if self._size(number)]
        for number, bounds in zip(read, self.bounds(read), strict=True):
            # Chunk i of n is put at (i + offset) / n of the epoch. So the chunks of any part are
            # spread evenly, however many it has, and the random offset keeps parts of equal size
            # from taking turns in one fixed order.
            chunks = self._chunks_of(number, np.array(bounds))
            offset = self._key("offset", number) / (1 << 64)
            placed += [((at + offset) / len(chunks), number, c) for at, c in enumerate(chunks)]
        chunks = [chunk for *_, chunk in sorted(placed, key=lambda place: place[:2])]
        begin = self._group_ends[group] - sum(map(self._size, read))
        return list(accumulate((len(c.records) for c in chunks), initial=begin)), chunks

    def _size(self, number: int) -> int:
        return self._cuts[number + 1] - self._cuts[number]

    def _chunks_of(self, number: int, bounds: Numbers) -> list[Chunk]:
        """Returns the chunks of a part in their order."""
        part, size = self.parts[number], self._size(number)
        records: range | Numbers = range(part.first, part.stop)
        cuts = np.clip(bounds - part.first, 0, size)
        if self.numbers is not None:
            # Only some records are selected: search the bounds of the members among them.
            low, high = self._cuts[number : number + 2]
            records = self.numbers[low:high] + (part.stop - self._ends[number])
            cuts = np.searchsorted(records, bounds)
        chunks = [Chunk(number, records[a:b]) for a, b in pairwise(cuts.tolist()) if a < b]
        if not self.permuted:
            return chunks
        return [chunks[at] for at in shuffled(self._key("chunks", number), len(chunks))]

    def _key(self, *names: str | int) -> int:
        return key_of(self.name, *names)


def key_of(*names: str | int) -> int:
    """Returns a key of 64 bits for shuffling."""
    text = "/".join(map(str, names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def cut_places(places: Numbers, cuts: Iterable[Cut]) -> Numbers:
    """Returns what is left of a window.

    Args:
        places: Places of its examples in the order of members, in the order in which they are read.
        cuts: Each drops the examples that were read, from the front, ranks the rest in the order of
            members and keeps this reader's range of ranks.
    """
    for read, low, high in cuts:
        places = places[read:]
        ranks = places.argsort().argsort()
        places = places[(low <= ranks) & (ranks < high)]
    return places


def mix(values: Hashes) -> Hashes:
    """Returns pseudorandom 64-bit numbers that depend on all bits of the given ones."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


def shuffled(key: int, size: int) -> npt.NDArray[np.int64]:
    """Returns the numbers 0 to size - 1 in random order."""
    keys = mix(np.arange(1, size + 1, dtype=np.uint64) * np.uint64(_STEP) + np.uint64(key))
    return np.argsort(keys, kind="stable")


def permute(key: int, size: int, positions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Returns the numbers at some positions of a random order of 0 to size - 1.

    Memory does not depend on the size. A Feistel network permutes 2 ** (2 * bits) numbers, fewer
    than four times the size; one that is not below the size is permuted again (cycle walking).

    Args:
        key: Key of the order, below 2 ** 64.
        size: How many numbers are ordered.
        positions: Positions below the size, of any shape.
    """
    bits = np.uint64(max(1, (size - 1).bit_length() + 1 >> 1))
    mask = (np.uint64(1) << bits) - np.uint64(1)
    keys = mix(np.arange(_ROUNDS, dtype=np.uint64) * np.uint64(_STEP) + np.uint64(key))

    def network(values: Hashes) -> Hashes:
        left, right = values >> bits, values & mask
        # A round can be undone for any function in place of ``mix``, since it keeps one half: so
        # the network is a permutation.
        for round_key in keys:
            left, right = right, left ^ (mix(right + round_key) & mask)
        joined: Hashes = (left << bits) | right
        return joined

    # Walking ends: the walk is along a cycle of the network, which contains the position itself.
    permuted = network(positions.astype(np.uint64))
    while (outside := permuted >= size).any():
        permuted[outside] = network(permuted[outside])
    return permuted.astype(np.int64)
