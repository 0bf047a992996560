"""Compact, deterministic coders for what crosses shuffles."""

from __future__ import annotations

from apache_beam import coders

from shardmill.schemas.refs import Ref
from shardmill.transforms.build.placement import PartKey


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

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


class RefCoder(_NamedTupleCoder):
    """Coder of ``Ref``."""

    factory = Ref


class PartKeyCoder(_NamedTupleCoder):
    """Coder of ``PartKey``."""

    factory = PartKey


coders.registry.register_coder(Ref, RefCoder)
coders.registry.register_coder(PartKey, PartKeyCoder)
