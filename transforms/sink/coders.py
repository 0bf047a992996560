"""The coders of what the sink sends through shuffles."""

from __future__ import annotations

from typing import Any, cast

from apache_beam import coders

from shardmill.schemas.refs import InputRef, SegmentRef
from shardmill.transforms.runtime.beam_steps import PRIMITIVES, TupleCoder
from shardmill.transforms.sink.placement import PartKey, PlacedRef

# The coder writes a reference's index in this tuple: append only.
_REFERENCES: tuple[type[Any], ...] = (InputRef, SegmentRef)


class PlacedRefCoder(TupleCoder):
    """Coder of ``PlacedRef``: a flat tuple of the reference's type, the order and its fields."""

    def encode(self, value: tuple[object, ...]) -> bytes:
        """Return the bytes of a ``PlacedRef``."""
        order, ref = cast("PlacedRef", value)
        return super().encode((_REFERENCES.index(type(ref)), order, *ref))

    def decode(self, encoded: bytes) -> PlacedRef:
        """Return the ``PlacedRef`` of some bytes."""
        number, order, *fields = PRIMITIVES.decode(encoded)
        return PlacedRef(order, _REFERENCES[number](*fields))


INPUTS, PLACED = TupleCoder(InputRef), PlacedRefCoder(PlacedRef)
coders.registry.register_coder(PartKey, TupleCoder)
coders.registry.register_coder(PlacedRef, PlacedRefCoder)
