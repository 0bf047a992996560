"""Pack values for shuffles: many small ones of a key as one that is compressed.

References of one part repeat most of each other's bytes, and a runner spends more time and memory
on a value than on its bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import deflate
from apache_beam.coders import Coder, FastPrimitivesCoder
from apache_beam.transforms.window import GlobalWindows

from shardmill.transforms.runtime.tuple_coder import PRIMITIVES

_WAITING = 1 << 17  # values of a bundle that wait to be packed
_ANY = FastPrimitivesCoder()
_SIZE_BYTES = 6  # of the number of bytes before they are compressed


def pack_values(key: type, coder: Coder = _ANY) -> beam.ParDo:
    """Return a step that packs the values of each key, for the GroupByKey that follows.

    Args:
        key: Type of the keys.
        coder: Coder of the values.
    """
    typed = tuple[key, bytes]  # type: ignore[valid-type]
    return beam.ParDo(_PackValues(coder)).with_output_types(typed)


def pack_all(coder: Coder) -> beam.ParDo:
    """Return a step that packs all values, for a runner that stores them.

    Args:
        coder: Coder of the values.
    """
    return beam.ParDo(_PackAll(coder)).with_output_types(bytes)


def unpack(packed: Iterable[bytes], coder: Coder = _ANY) -> Iterator[Any]:
    """Yield the values that were packed with the same coder."""
    for some in packed:
        size = int.from_bytes(some[:_SIZE_BYTES], "big")
        encoded = bytes(deflate.deflate_decompress(some[_SIZE_BYTES:], size))
        yield from map(coder.decode, PRIMITIVES.decode(encoded))


class _PackValues(beam.DoFn):
    """See ``pack_values``."""

    def __init__(self, coder: Coder) -> None:
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
    """See ``pack_all``."""

    def process(self, element: Any) -> Iterator[Any]:
        """Add a value; yield the packed values when there are many."""
        return super().process((None, element))

    def _pack(self) -> Iterator[Any]:
        return (packed for _, packed in super()._pack())
