"""MapOrdered: a DoFn that works on several elements of a bundle at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from shardmill.transforms.runtime.map_ordered import OrderedCalls


class MapOrdered(beam.DoFn):
    """Calls a function for elements on threads, and yields its outputs in their order.

    For functions that wait for remote storage or release the GIL; Beam itself calls a function for
    one element after the other.

    Args:
        function: Takes an element and the side inputs of ``ParDo``, and returns the outputs.
        threads: Number of elements that are worked on at a time.
    """

    def __init__(self, function: Callable[..., Iterable[Any]], threads: int) -> None:
        self._function = function
        self._threads = threads
        self._calls: OrderedCalls[list[Any]] | None = None

    def start_bundle(self) -> None:
        """Discard what a failed bundle left."""
        self._close()

    def process(self, element: Any, *args: Any) -> Iterator[Any]:
        """Start the call for an element; yield the outputs of an earlier one if there are many."""
        if self._calls is None:
            self._calls = OrderedCalls(self._threads, self._threads + 1)
        outputs = self._take() if self._calls.is_full() else []
        self._calls.submit(0, self._call, element, args)
        yield from outputs

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Yield the outputs of all remaining calls."""
        while self._calls:
            for output in self._take():
                yield _in_window(output)
        self._close()

    def teardown(self) -> None:
        """Discard what a failed bundle left."""
        self._close()

    def _call(self, element: Any, args: Any) -> list[Any]:
        return list(self._function(element, *args))

    def _take(self) -> list[Any]:
        if self._calls is None:
            raise AssertionError("no calls")
        return self._calls.take()

    def _close(self) -> None:
        if self._calls is not None:
            self._calls.close(wait=False)
            self._calls = None


def _in_window(output: Any) -> Any:
    if isinstance(output, beam.pvalue.TaggedOutput):
        return beam.pvalue.TaggedOutput(output.tag, GlobalWindows.windowed_value(output.value))
    return GlobalWindows.windowed_value(output)
