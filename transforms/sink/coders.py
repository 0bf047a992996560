"""Compact, deterministic coders for what crosses shuffles."""

from __future__ import annotations

from typing import Any, cast

from apache_beam import coders

from shardmill.schemas.refs import ArrayRef, InputRef, SegmentRef
from shardmill.transforms.match.counts import MatchCounts
from shardmill.transforms.sink.placement import PartKey, PlacedRef

# The coder writes a reference's place in this tuple: append only.
_REFERENCES: tuple[type[Any], ...] = (InputRef, SegmentRef, ArrayRef)


class _NamedTupleCoder(coders.Coder):
    """Codes a NamedTuple of primitives as the plain tuple that it is."""

    factory: type

    def __init__(self) -> None:
        self._tuples = coders.FastPrimitivesCoder()

    def encode(self, value: tuple[object, ...]) -> bytes:
        encoded: bytes = self._tuples.encode(tuple(value))
        return encoded

    def decode(self, encoded: bytes) -> object:
        return self.factory(*self._tuples.decode(encoded))

    def is_deterministic(self) -> bool:
        return True

    def to_type_hint(self) -> type:
        return self.factory


class InputRefCoder(_NamedTupleCoder):
    """Coder of ``InputRef``."""

    factory = InputRef


class PartKeyCoder(_NamedTupleCoder):
    """Coder of ``PartKey``."""

    factory = PartKey


class MatchCountsCoder(_NamedTupleCoder):
    """Coder of ``MatchCounts``."""

    factory = MatchCounts


class PlacedRefCoder(_NamedTupleCoder):
    """Coder of ``PlacedRef``: a flat tuple of the reference's type, the order and its fields."""

    factory = PlacedRef

    def encode(self, value: tuple[object, ...]) -> bytes:
        """Return the bytes of a ``PlacedRef``."""
        order, ref = cast("PlacedRef", value)
        return super().encode((_REFERENCES.index(type(ref)), order, *ref))

    def decode(self, encoded: bytes) -> PlacedRef:
        """Return the ``PlacedRef`` of some bytes."""
        number, order, *fields = self._tuples.decode(encoded)
        return PlacedRef(order, _REFERENCES[number](*fields))


for _coder in (InputRefCoder, PartKeyCoder, MatchCountsCoder, PlacedRefCoder):
    coders.registry.register_coder(_coder.factory, _coder)
