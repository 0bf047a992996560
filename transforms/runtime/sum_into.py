"""Sums of whole collections, and ``SumInto``, which merges elements into an accumulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import apache_beam as beam


def singleton_sum(combine: Any) -> beam.CombineGlobally:
    """Return a step that gives the combination of a collection as a side input of one value.

    Wires 5 steps less than a collection of that value, which needs a default if it is empty.

    Args:
        combine: A CombineFn, or a function of several elements.
    """
    return beam.CombineGlobally(combine).as_singleton_view()


class SumInto(beam.CombineFn):
    """Combines elements into an accumulator that has a method ``merge``.

    Args:
        create: Returns an empty accumulator.
        add: Adds an element to an accumulator, in place.
    """

    def __init__(self, create: Callable[[], Any], add: Callable[[Any, Any], None]) -> None:
        self._create = create
        self._add = add

    def create_accumulator(self) -> Any:
        """Return an empty accumulator."""
        return self._create()

    def add_input(self, mutable_accumulator: Any, element: Any) -> Any:
        """Add one element."""
        self._add(mutable_accumulator, element)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        """Merge partial accumulators."""
        total = self._create()
        for accumulator in accumulators:
            total.merge(accumulator)
        return total

    def extract_output(self, accumulator: Any) -> Any:
        """Return the accumulator."""
        return accumulator
