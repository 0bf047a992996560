"""MapAhead: one function over many elements, several of them at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue


class MapAhead(beam.DoFn):
    """Applies a function to elements on threads, and gives what it returns in their order.

    For work that waits for a far disk or lets go of the interpreter; where Beam itself would call
    a function for one element after the other.

    Args:
        function: Takes an element (and what is given to ``ParDo`` besides) and returns the outputs.
        threads: How many elements are worked on at a time.
    """

    def __init__(self, function: Callable[..., Iterable[Any]], threads: int) -> None:
        self._function = function
        self._threads = threads
        self._waiting: deque[Future[list[Any]]] = deque()
        self._pool: ThreadPoolExecutor | None = None

    def start_bundle(self) -> None:
        """Begins with nothing under way."""
        self._stop()

    def process(self, element: Any, *args: Any) -> Iterator[Any]:
        """Takes an element, and yields the outputs of an earlier one when enough are under way."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="ahead")
        self._waiting.append(self._pool.submit(self._call, element, args))
        if len(self._waiting) > self._threads:
            yield from self._first()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Yields the outputs of all that is still under way."""
        while self._waiting:
            for output in self._first():
                yield _in_window(output)
        self._stop()

    def teardown(self) -> None:
        """Lets go of what a failed bundle left."""
        self._stop()

    def _call(self, element: Any, args: Any) -> list[Any]:
        return list(self._function(element, *args))

    def _first(self) -> list[Any]:
        try:
            return self._waiting.popleft().result()
        except BaseException:
            self._stop()
            raise

    def _stop(self) -> None:
        self._waiting.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _in_window(output: Any) -> Any:
    if isinstance(output, beam.pvalue.TaggedOutput):
        return beam.pvalue.TaggedOutput(output.tag, GlobalWindows.windowed_value(output.value))
    return GlobalWindows.windowed_value(output)


__all__ = ["MapAhead"]
