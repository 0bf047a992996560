"""Mixture: which of several datasets each example of a mix is of; a pure function of its number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Until = Literal["first", "all"]
MAX_PERIOD = 100_000  # examples after which the datasets take the same turns again


class _Period(NamedTuple):
    """The turns of the datasets, after which they begin again.

    Attributes:
        components: Number of the dataset of each example, shape [period].
        draws: How many examples of this dataset are before it, shape [period].
        positions: Of each dataset, the positions of its examples, ascending.
    """

    components: npt.NDArray[np.int64]
    draws: npt.NDArray[np.int64]
    positions: list[npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Mixture:
    """The order in which several datasets take turns.

    After any number n of examples, a dataset has had less than one example more or fewer than its
    weighted share of n. To take the largest debt, which is share minus examples, does not ensure
    that with three datasets or more. This is the rule of R. Tijdeman, "The chairman assignment
    problem" (1980): of the datasets with a debt of 1 / (2k - 2) or more of k datasets, the one
    whose debt would be the first to reach the limit 1 - 1 / (2k - 2).

    Attributes:
        weights: A positive integer of each dataset.
    """

    weights: tuple[int, ...]

    @cached_property
    def shares(self) -> tuple[int, ...]:
        """Examples of each dataset in a period."""
        divisor = math.gcd(*self.weights)
        return tuple(weight // divisor for weight in self.weights)

    @property
    def period(self) -> int:
        """Number of examples after which the turns are the same again."""
        return sum(self.shares)

    @cached_property
    def _turns(self) -> _Period:
        components = np.array(_assign(self.shares), np.int64)
        draws = np.empty(len(components), np.int64)
        positions = []
        for component, share in enumerate(self.shares):
            places = np.flatnonzero(components == component)
            draws[places] = np.arange(share)
            positions.append(places)
        return _Period(components, draws, positions)

    def at(self, numbers: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the dataset of some examples, and how many of its examples are before each.

        Args:
            numbers: Numbers of examples in the mix, of any shape.
        """
        turns = self._turns
        rounds, rest = np.divmod(np.asarray(numbers, np.int64), self.period)
        components = turns.components[rest]
        return components, rounds * np.array(self.shares)[components] + turns.draws[rest]

    def find(self, number: int) -> tuple[int, int]:
        """Returns the dataset of an example, and how many of its examples are before it."""
        rounds, rest = divmod(number, self.period)
        component = int(self._turns.components[rest])
        return component, rounds * self.shares[component] + int(self._turns.draws[rest])

    def counts(self, examples: int) -> list[int]:
        """Returns how many of the first examples are of each dataset."""
        rounds, rest = divmod(examples, self.period)
        return [
            rounds * share + int(places.searchsorted(rest))
            for share, places in zip(self.shares, self._turns.positions, strict=True)
        ]

    def number_of(self, component: int, draw: int) -> int:
        """Returns the number in the mix of an example of a dataset."""
        rounds, rest = divmod(draw, self.shares[component])
        return rounds * self.period + int(self._turns.positions[component][rest])

    def length(self, sizes: Sequence[int], until: Until | int) -> int:
        """Returns the number of examples in an epoch.

        Args:
            sizes: Number of examples of each dataset, 1 or more.
            until: ``first`` for the longest epoch in which no example repeats, ``all`` for the
                shortest one that has each example, or the number of examples.
        """
        components = range(len(sizes))
        if until == "first":
            return min(self.number_of(component, sizes[component]) for component in components)
        if until == "all":
            return 1 + max(
                self.number_of(component, sizes[component] - 1) for component in components
            )
        return until


def _assign(shares: Sequence[int]) -> list[int]:
    """Returns the number of the dataset of each example of a period."""
    if len(shares) == 1:
        return [0] * shares[0]
    period = sum(shares)
    scale = 2 * len(shares) - 2
    debts = [0] * len(shares)  # multiplied by the period
    turns = []
    for _ in range(period):
        chosen, least = -1, 0
        for component, share in enumerate(shares):
            debts[component] += share
            left = period * (scale - 1) - debts[component] * scale  # to the limit
            # Compares left / share of both without division.
            is_due = debts[component] * scale >= period
            if is_due and (chosen < 0 or left * shares[chosen] < least * share):
                chosen, least = component, left
        debts[chosen] -= period
        turns.append(chosen)
    return turns
