"""Steps that pipelines share: a tuple coder, packed values, sums, ordered calls, option views.

Values are packed for shuffles, many small ones of a key as one that is compressed: references of
one part repeat most of each other's bytes, and a runner spends more time and memory on a value than
on its bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, TypeVar

import apache_beam as beam
import deflate
from apache_beam import coders
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from shardmill.schemas.storage.base import map_ordered
from shardmill.transforms.runtime.process_pool import usable_cores

# The implementation, since the coder's own methods take as long again to find it.
PRIMITIVES = coders.FastPrimitivesCoder().get_impl()
_WAITING = 1 << 17  # values of a bundle that wait to be packed
_ANY = coders.FastPrimitivesCoder()
_SIZE_BYTES = 6  # of the number of bytes before they are compressed
_ROUNDS = 64  # calls per thread that are started together
_View = TypeVar("_View", bound=PipelineOptions)


class TupleCoder(coders.Coder):
    """Codes a NamedTuple of primitives as the plain tuple that it is.

    Args:
        factory: The type of the tuples.
    """

    def __init__(self, factory: type) -> None:
        self.factory = factory

    @classmethod
    def from_type_hint(cls, typehint: Any, registry: object) -> TupleCoder:  # noqa: ARG003
        """Return the coder of a type, for Beam's registry."""
        return cls(typehint)

    def encode(self, value: tuple[object, ...]) -> bytes:
        """Return the bytes of a tuple."""
        encoded: bytes = PRIMITIVES.encode(tuple(value))
        return encoded

    def decode(self, encoded: bytes) -> Any:
        """Return the tuple of some bytes."""
        return self.factory(*PRIMITIVES.decode(encoded))

    def is_deterministic(self) -> bool:
        """Return True: equal tuples have equal bytes, so they can be keys of a shuffle."""
        return True

    def to_type_hint(self) -> type:
        """Return the type of the tuples."""
        return self.factory

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.factory is self.factory

    def __hash__(self) -> int:
        return hash(self.factory)


def pack_values(key: type, coder: coders.Coder = _ANY) -> beam.ParDo:
    """Return a step that packs the values of each key, for the GroupByKey that follows.

    Args:
        key: Type of the keys.
        coder: Coder of the values.
    """
    typed = tuple[key, bytes]  # type: ignore[valid-type]
    return beam.ParDo(_PackValues(coder)).with_output_types(typed)


def pack_all(coder: coders.Coder) -> beam.ParDo:
    """Return a step that packs all values, for a runner that stores them.

    Args:
        coder: Coder of the values.
    """
    return beam.ParDo(_PackAll(coder)).with_output_types(bytes)


def unpack(packed: Iterable[bytes], coder: coders.Coder = _ANY) -> Iterator[Any]:
    """Yield the values that were packed with the same coder."""
    for some in packed:
        size = int.from_bytes(some[:_SIZE_BYTES], "big")
        encoded = bytes(deflate.deflate_decompress(some[_SIZE_BYTES:], size))
        yield from map(coder.decode, PRIMITIVES.decode(encoded))


class _PackValues(beam.DoFn):
    """Packs the values of each key, as far as a bundle has them."""

    def __init__(self, coder: coders.Coder) -> None:
        self._coder = coder

    def start_bundle(self) -> None:
        """Begin without values."""
        self._values = defaultdict[Any, list[bytes]](list)
        self._waiting = 0

    def process(self, element: Any) -> Iterator[Any]:
        """Add a value; yield the packed values when there are many."""
        key, value = element
        self._values[key].append(self._coder.encode(value))
        self._waiting += 1
        if self._waiting == _WAITING:
            yield from self._pack()

    def finish_bundle(self) -> Iterator[Any]:
        """Yield the packed values that remain."""
        yield from map(GlobalWindows.windowed_value, self._pack())

    def _pack(self) -> Iterator[Any]:
        values = self._values
        self.start_bundle()
        for key, some in values.items():
            encoded = PRIMITIVES.encode(some)
            size = len(encoded).to_bytes(_SIZE_BYTES, "big")
            yield key, size + deflate.deflate_compress(encoded, 1)


class _PackAll(_PackValues):
    """Packs the values of a bundle, which have no keys."""

    def process(self, element: Any) -> Iterator[Any]:
        """Add a value; yield the packed values when there are many."""
        return super().process((None, element))

    def _pack(self) -> Iterator[Any]:
        return (packed for _, packed in super()._pack())


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


@dataclass(eq=False)
class RaiseIfFailed(beam.PTransform):
    """Fails the pipeline if no dataset was published: ``outcomes | RaiseIfFailed()``."""

    def expand(self, pcoll: beam.PCollection[Any]) -> beam.PCollection[Any]:
        """Wires the check."""
        return pcoll | "Check" >> beam.Map(methodcaller("check"))


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
        """Discard the leftovers of a failed bundle."""
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
        def call(element: tuple[Any, ...]) -> list[Any]:
            return list(self._function(*element))

        waiting, self._waiting = self._waiting, []
        for outputs in map_ordered(call, waiting, self._threads):
            yield from outputs


def _in_window(output: Any) -> Any:
    if isinstance(output, beam.pvalue.TaggedOutput):
        return beam.pvalue.TaggedOutput(output.tag, GlobalWindows.windowed_value(output.value))
    return GlobalWindows.windowed_value(output)


class CachedOptions(PipelineOptions):
    """Pipeline options that make each view of them once.

    Wiring a build asks for 500 views, and Beam parses the flags for each: half of the time of the
    wiring. All views share the values, so that one of each kind suffices.
    """

    def view_as(self, cls: type[_View]) -> _View:
        """Return the one view of a class."""
        views: dict[type, Any] = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        view: _View = views[cls]
        return view

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without views: a copy has its own values, and makes its own views."""
        return {**super().__getstate__(), "_views": {}}
