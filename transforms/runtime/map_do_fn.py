"""MapOrdered: a DoFn that works on several elements of a bundle at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from shardmill.schemas.map_ordered import map_ordered
from shardmill.transforms.runtime.process_pool import usable_cores

_ROUNDS = 64  # calls per thread that are started together


class MapOrdered(beam.DoFn):
    """Calls a function for elements on threads, and yields its outputs in their order.

    For functions that wait for remote storage or release the GIL; Beam itself calls a function for
    one element after the other.

    Args:
        function: Takes an element and the side inputs of ``ParDo``, and returns the outputs.
        threads: Number of elements that are worked on at a time; 0 for one per core of the machine
            that it runs on.
    """

    def __init__(self, function: Callable[..., Iterable[Any]], threads: int) -> None:
        self._function = function
        self._threads = threads
        self._waiting: list[tuple[Any, ...]] = []

    def setup(self) -> None:
        """Count the cores here, not where the job was submitted."""
        self._threads = self._threads or usable_cores()

    def start_bundle(self) -> None:
        """Discard what a failed bundle left."""
        self._waiting = []

    def process(self, element: Any, *args: Any) -> Iterator[Any]:
        """Keep an element; yield the outputs of all kept ones when there are many."""
        self._waiting.append((element, *args))
        if len(self._waiting) >= _ROUNDS * self._threads:
            yield from self._call_all()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Yield the outputs of all remaining elements."""
        yield from map(_in_window, self._call_all())

    def _call_all(self) -> Iterator[Any]:
        waiting, self._waiting = self._waiting, []
        call = lambda element: list(self._function(*element))  # noqa: E731
        for outputs in map_ordered(call, waiting, self._threads):
            yield from outputs


def _in_window(output: Any) -> Any:
    if isinstance(output, beam.pvalue.TaggedOutput):
        return beam.pvalue.TaggedOutput(output.tag, GlobalWindows.windowed_value(output.value))
    return GlobalWindows.windowed_value(output)
