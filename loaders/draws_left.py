"""DrawsLeft: which examples of a dataset a mix still has to take, after a state of another mix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

Interval = tuple[int, int]  # first draw, and the one after the last


@dataclass(frozen=True)
class DrawsLeft:
    """The draws of a dataset that are left, of those that its own epochs number one by one.

    Hosts and workers that were stopped inside of an epoch have each read a range of it, so that
    unread draws may be before others that were read. They are taken first.

    Attributes:
        start: Draws from this one on are left.
        unread: Earlier ones that are left too, ascending.
    """

    start: int = 0
    unread: tuple[Interval, ...] = ()

    @cached_property
    def _firsts(self) -> npt.NDArray[np.int64]:
        """Number of draws before each interval, and before ``start``."""
        sizes = (high - low for low, high in self.unread)
        return np.array([*accumulate(sizes, initial=0)], np.int64)

    @cached_property
    def _lows(self) -> npt.NDArray[np.int64]:
        return np.array([*(low for low, _ in self.unread), self.start], np.int64)

    @property
    def num_read(self) -> int:
        """Number of examples that were read."""
        return self.start - int(self._firsts[-1])

    def draws(self, numbers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Returns the draws that are taken at some numbers, ascending if these are."""
        at = np.searchsorted(self._firsts, numbers, "right") - 1
        draws: npt.NDArray[np.int64] = self._lows[at] + numbers - self._firsts[at]
        return draws

    def intervals(self, low: int, high: int) -> list[Interval]:
        """Returns the draws that are taken from one number to another."""
        taken: list[Interval] = []
        firsts = [*self._firsts.tolist(), max(high, int(self._firsts[-1]))]
        for base, first, stop in zip(self._lows.tolist(), firsts, firsts[1:], strict=False):
            begin, end = max(low, first), min(high, stop)
            if begin < end:
                taken.append((base + begin - first, base + end - first))
        return taken

    def after(self, numbers: int) -> DrawsLeft:
        """Returns what is left when the draws at the first numbers were taken."""
        total = int(self._firsts[-1])
        if numbers >= total:
            return DrawsLeft(self.start + numbers - total)
        return DrawsLeft(self.start, tuple(self.intervals(numbers, total)))

    def with_unread(self, intervals: Iterable[Interval]) -> DrawsLeft:
        """Returns the same with earlier draws that are left, in any order."""
        merged: list[Interval] = []
        for low, high in sorted([*self.unread, *intervals]):
            if merged and merged[-1][1] == low:
                merged[-1] = merged[-1][0], high
            else:
                merged.append((low, high))
        return DrawsLeft(self.start, tuple(merged))


def intervals_of(numbers: npt.NDArray[np.int64]) -> list[Interval]:
    """Returns numbers as intervals."""
    if not len(numbers):
        return []
    ordered = np.sort(numbers)
    ends = np.flatnonzero(np.diff(ordered) != 1)
    lows = ordered[[0, *(ends + 1).tolist()]]
    highs = ordered[[*ends.tolist(), -1]] + 1
    return list(zip(lows.tolist(), highs.tolist(), strict=True))
