"""Deterministic encoder of tf.train.Example: equal features give equal bytes.

Protobuf writes maps in an order that differs from process to process. Here features are sorted by
name, so that records can be compared, hashed and cached. The messages are those of
tensorflow/core/example/example.proto and feature.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

FeatureValue = bytes | int | float | Sequence[bytes] | Sequence[int] | Sequence[float]

_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = b"\x0a", b"\x12", b"\x1a"
_U64 = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Return a protobuf varint; negative numbers are encoded as 64-bit two's complement."""
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
    """Return one tf.train.Feature: bytes, int64 or float32 by the type of the value.

    An empty sequence becomes a feature without a list, which TensorFlow reads as missing.

    Raises:
        TypeError: A value is not bytes, int or float.
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
    raise TypeError(f"a feature must be bytes, int or float, not {type(first).__name__}")


def encode_example(features: Mapping[str, FeatureValue]) -> bytes:
    """Return a serialized tf.train.Example with its features sorted by name.

    The result equals that of protobuf's ``SerializeToString(deterministic=True)`` in C++ and Java.
    Its upb implementation, used in Python, sorts ``image/class`` after ``image/class/label``.
    """
    if not features:
        return b""
    names = sorted(features, key=lambda text: text.encode())
    return _block(b"\x0a", b"".join(encode_entry(name, features[name]) for name in names))


def encode_entry(name: str, value: FeatureValue) -> bytes:
    """Return one feature as ``encode_example`` writes it."""
    return _block(b"\x0a", _block(b"\x0a", name.encode()) + _block(b"\x12", encode_feature(value)))
