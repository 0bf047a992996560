"""MixedOrder: the order of an epoch of a mix, made of the orders of its datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardmill.loaders.draws_left import DrawsLeft
from shardmill.loaders.mixture import Mixture
from shardmill.loaders.order import (
    Chunk,
    EpochOrder,
    Numbers,
    Window,
    cut_places,
    key_of,
    shuffled,
)
from shardmill.loaders.pieces import Piece

_UNSHUFFLED = 1 << 14  # examples in a window that is not shuffled
_FAR = 4096  # draws; unread ones that are closer together are read with what is between
_ROUNDS = 4  # orders of a dataset that are kept


@dataclass
class ComponentOrder:
    """The examples of one dataset in the order in which a mix takes them.

    The dataset begins its next order when it has ended one, in the middle of any epoch of the mix.

    Attributes:
        order: Returns the order of an epoch of the dataset.
        size: Number of examples in each.
        left: The draws of the dataset that the mix takes.
        start: Number of draws that earlier epochs of the mix have taken.
        first_part: Number in the mix of its first part.
        permuted: Whether the order is shuffled.
    """

    order: Callable[[int], EpochOrder]
    size: int
    left: DrawsLeft
    start: int
    first_part: int
    permuted: bool
    _orders: dict[int, EpochOrder] = field(default_factory=dict)

    def places(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Returns the parts, and the numbers in their shards, of some examples."""
        rounds, positions = np.divmod(self.left.draws(numbers + self.start), self.size)
        parts, records = np.empty_like(numbers), np.empty_like(numbers)
        for number in np.unique(rounds).tolist():
            own = rounds == number
            parts[own], records[own] = self._order(number).places(positions[own])
        return parts + self.first_part, records

    def chunks(self, low: int, high: int, end: int) -> Iterator[Chunk]:
        """Yields the chunks of consecutive examples; this reader's share ends at ``end``."""
        draws = self.left.draws(np.arange(low, high) + self.start)
        gaps = np.flatnonzero(np.diff(draws) > _FAR) + 1
        for group in np.split(draws, gaps):
            if len(group):
                yield from self._chosen_chunks(group, high, end)

    def fetch(self, low: int, high: int) -> None:
        """Starts to open the first shards of consecutive examples; does not wait."""
        first, last = self.left.draws(np.array([low, high - 1]) + self.start).tolist()
        number, start = divmod(first, self.size)
        self._order(number).fetch(start, min(start + last - first + 1, self.size))

    def _chosen_chunks(self, draws: Numbers, high: int, end: int) -> Iterator[Chunk]:
        """Yields the chunks of some draws that are close together, ascending."""
        at, stop = int(draws[0]), int(draws[-1]) + 1
        is_whole = len(draws) == stop - at
        # What follows the share is not fetched ahead, nor what follows a part that is read alone.
        last = stop if self.left.unread else stop + end - high
        for part, records in self._consecutive_chunks(at, stop, last):
            if is_whole:
                yield Chunk(part, records)
            else:
                inside = draws[(at <= draws) & (draws < at + len(records))] - at
                if len(inside):
                    yield Chunk(part, np.asarray(records)[inside])
            at += len(records)

    def _consecutive_chunks(self, low: int, high: int, end: int) -> Iterator[Chunk]:
        while low < high:
            number, begin = divmod(low, self.size)
            base = number * self.size
            stop, last = min(high - base, self.size), min(end - base, self.size)
            for part, records in self._order(number).chunks(begin, stop, last):
                yield Chunk(part + self.first_part, records)
            low = base + stop

    def _order(self, number: int) -> EpochOrder:
        if number not in self._orders:
            while len(self._orders) >= _ROUNDS:
                del self._orders[next(iter(self._orders))]
            self._orders[number] = self.order(number)
        return self._orders[number]


@dataclass
class MixedOrder:
    """The order of an epoch of a mix; it has the interface of ``EpochOrder``.

    A place in it is the number of an example in the mix. The examples of a window are shuffled
    within each dataset, so that the datasets take turns in it as everywhere.

    Attributes:
        components: The datasets.
        mixture: The turns that they take.
        length: Number of examples.
        name: The seed and the epoch, which determine the order.
        measure: Returns the number of examples in a window.
    """

    components: Sequence[ComponentOrder]
    mixture: Mixture
    length: int
    name: str
    measure: Callable[[], int]

    @cached_property
    def window(self) -> int:
        """Number of examples in a window."""
        return self.measure()

    def __len__(self) -> int:
        """Returns the number of examples."""
        return self.length

    @cached_property
    def _permuted(self) -> bool:
        return any(component.permuted for component in self.components)

    def places(self, positions: Numbers) -> tuple[Numbers, Numbers]:
        """Returns the part, and the number in its shard, of the records at some positions."""
        components, draws = self.mixture.at(positions)
        parts, records = np.empty_like(draws), np.empty_like(draws)
        for number, component in enumerate(self.components):
            own = components == number
            parts[own], records[own] = component.places(draws[own])
        return parts, records

    def fetch(self, start: int, stop: int) -> None:
        """Starts to open the first shards of each dataset from start to stop; does not wait."""
        lows, highs = map(self.mixture.counts, (start, stop))
        for component, low, high in zip(self.components, lows, highs, strict=True):
            if low < high:
                component.fetch(low, high)

    def windows(self, pieces: Sequence[Piece]) -> Iterator[Window]:
        """Yields the windows of some pieces of the order; opens only the shards in them."""
        size = self.window if self._permuted else _UNSHUFFLED
        for start, stop, cuts in pieces:
            for low in range(start, stop, size):
                yield self._window(Piece(low, min(low + size, stop), cuts), stop)

    def _window(self, piece: Piece, end: int) -> Window:
        start, stop, cuts = piece
        components, draws = self.mixture.at(np.arange(start, stop))
        lows, highs, ends = map(self.mixture.counts, (start, stop, end))
        permuted = [component.permuted for component in self.components]
        places = cut_places(window_places(components, permuted, self.name, start), cuts)
        components, draws = components[places], draws[places]
        chunks: list[Chunk] = []
        owners, offsets = np.empty_like(places), np.empty_like(places)
        for number, component in enumerate(self.components):
            low = lows[number]
            own = list(component.chunks(low, highs[number], ends[number]))
            firsts = np.cumsum([0, *(len(chunk.records) for chunk in own)])
            slots = components == number
            inside = draws[slots] - low
            chosen = np.searchsorted(firsts, inside, "right") - 1
            owners[slots] = chosen + len(chunks)
            offsets[slots] = inside - firsts[chosen]
            chunks += own
        return Window(chunks, owners, offsets)


def window_places(components: Numbers, permuted: Sequence[bool], name: str, start: int) -> Numbers:
    """Returns the places of a window in the order in which they are read.

    The key is of the whole window, also where some of it was read: the rest must have the same
    order on every host.

    Args:
        components: Number of the dataset of each example.
        permuted: Whether the examples of each dataset are shuffled.
        name: The seed and the epoch.
        start: Number in the mix of its first example.
    """
    places = np.arange(len(components))
    for number, is_permuted in enumerate(permuted):
        if is_permuted:
            slots = np.flatnonzero(components == number)
            places[slots] = slots[shuffled(key_of(name, start, number), len(slots))]
    return places
