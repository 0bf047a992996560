"""Compact, deterministic coders for what crosses shuffles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from apache_beam import coders

from shardmill.schemas.refs import ArrayRef, InputRef, KnownRecord, SegmentRef
from shardmill.transforms.build.placement import PartKey, PlacedRef
from shardmill.transforms.match.counts import MatchCounts

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


def _to_plain(ref: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the fields of a reference as plain values."""
    if isinstance(ref, InputRef) and ref.known is not None:
        return (*ref[:-1], tuple(ref.known))
    return tuple(ref)


def _to_ref(factory: type[Any], fields: Sequence[Any]) -> Any:
    """Return the reference of plain values."""
    if factory is InputRef and fields[-1] is not None:
        return InputRef(*fields[:-1])._replace(known=KnownRecord(*fields[-1]))
    return factory(*fields)


class InputRefCoder(_NamedTupleCoder):
    """Coder of ``InputRef``."""

    factory = InputRef

    def encode(self, value: tuple[object, ...]) -> bytes:
        """Return the bytes of an ``InputRef``."""
        return super().encode(_to_plain(value))

    def decode(self, encoded: bytes) -> object:
        """Return the ``InputRef`` of some bytes."""
        return _to_ref(InputRef, self._tuples.decode(encoded))


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
        return super().encode((_REFERENCES.index(type(ref)), order, *_to_plain(ref)))

    def decode(self, encoded: bytes) -> PlacedRef:
        """Return the ``PlacedRef`` of some bytes."""
        number, order, *fields = self._tuples.decode(encoded)
        return PlacedRef(order, _to_ref(_REFERENCES[number], fields))


for _coder in (InputRefCoder, PartKeyCoder, MatchCountsCoder, PlacedRefCoder):
    coders.registry.register_coder(_coder.factory, _coder)
