"""MapOrdered: a DoFn that works on several elements of a bundle at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from shardmill.transforms.runtime.process_pool import usable_cores


class MapOrdered(beam.DoFn):
    """Calls a function for elements on threads, and yields its outputs in their order.

    For functions that wait for remote storage or release the GIL; Beam itself calls a function for
    one element after the other.

    Args:
        function: Takes an element and the side inputs of ``ParDo``, and returns the outputs.
        threads: Number of elements that are worked on at a time; 0 for one per core of the machine
            that it runs on.
        window: Number of elements that are taken at a time, which a runner cannot give to other
            workers any more; 0 for twice the threads.
    """

    def __init__(
        self, function: Callable[..., Iterable[Any]], threads: int, window: int = 0
    ) -> None:
        self._function = function
        self._threads = threads
        self._window = window
        self._calls: deque[Future[list[Any]]] = deque()

    def setup(self) -> None:
        """Count the cores here, not where the job was submitted, and start the threads."""
        self._threads = self._threads or usable_cores()
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="elements")

    def teardown(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def start_bundle(self) -> None:
        """Forget the calls of a failed bundle."""
        self._calls = deque()

    def process(self, element: Any, *args: Any) -> Iterator[Any]:
        """Call the function for an element, after yielding the outputs of the oldest of many."""
        if len(self._calls) >= (self._window or 2 * self._threads):
            yield from self._take()
        call = self._function
        self._calls.append(self._pool.submit(lambda: [*call(element, *args)]))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Yield the outputs of all remaining elements."""
        while self._calls:
            yield from map(_in_window, self._take())

    def _take(self) -> list[Any]:
        """Return the outputs of the oldest call; after an error, wait until no call is running."""
        try:
            return self._calls.popleft().result()
        except BaseException:
            for call in self._calls:
                call.cancel()
            wait(self._calls)
            raise


def _in_window(output: Any) -> Any:
    if isinstance(output, beam.pvalue.TaggedOutput):
        return beam.pvalue.TaggedOutput(output.tag, GlobalWindows.windowed_value(output.value))
    return GlobalWindows.windowed_value(output)
