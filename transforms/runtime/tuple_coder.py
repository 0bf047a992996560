"""A compact, deterministic coder of NamedTuples, for what crosses shuffles."""

from __future__ import annotations

from typing import Any

from apache_beam import coders

# The implementation, since the coder's own methods take as long again to find it.
PRIMITIVES = coders.FastPrimitivesCoder().get_impl()


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
