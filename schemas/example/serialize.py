"""A canonical encoder for tf.train.Example: the same features give the same bytes, always.

Protobuf's own maps are written in an order that differs from process to process; here features
are sorted by name, so records can be compared, hashed and cached. The wire format is that of
tensorflow/core/example/example.proto and feature.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

FeatureValue = bytes | int | float | Sequence[bytes] | Sequence[int] | Sequence[float]

_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = b"\x0a", b"\x12", b"\x1a"
_U64 = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Returns a protobuf varint; negative numbers take their 64-bit two's complement."""
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= _U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _block(tag: bytes, content: bytes) -> bytes:
    return b"".join((tag, varint(len(content)), content))


def encode_feature(value: FeatureValue) -> bytes:
    """Returns one tf.train.Feature: bytes, int64 or float32 by the type of the value.

    An empty sequence becomes a feature with no kind set, which TensorFlow reads as missing.

    Raises:
        TypeError: A value is neither bytes, int nor float.
    """
    values: Sequence[object] = [value] if isinstance(value, bytes | int | float) else value
    if not values:
        return b""
    first = values[0]
    if isinstance(first, bytes):
        return _block(_BYTES_LIST, b"".join(_block(b"\x0a", v) for v in values))  # type: ignore[arg-type]
    if isinstance(first, int | np.integer):
        return _block(_INT64_LIST, _block(b"\x0a", b"".join(varint(int(v)) for v in values)))  # type: ignore[call-overload]
    if isinstance(first, float | np.floating):
        return _block(_FLOAT_LIST, _block(b"\x0a", np.asarray(values, dtype="<f4").tobytes()))
    raise TypeError(f"a feature holds bytes, int or float, not {type(first).__name__}")


def encode_example(features: Mapping[str, FeatureValue]) -> bytes:
    """Returns a serialized tf.train.Example with its features sorted by name.

    Equal to protobuf's own ``SerializeToString(deterministic=True)``, except that protobuf's upb
    builds put ``image/class`` behind ``image/class/label``; its C++ and Java sort as this does.
    """
    if not features:
        return b""
    entries = []
    for name in sorted(features, key=lambda text: text.encode()):
        entry = _block(b"\x0a", name.encode()) + _block(b"\x12", encode_feature(features[name]))
        entries.append(_block(b"\x0a", entry))
    return _block(b"\x0a", b"".join(entries))
