"""Deterministic encoder of tf.train.Example: equal features give equal bytes.

Protobuf writes maps in an order that differs from process to process. Here features are sorted by
name, so that records can be compared, hashed and cached. The messages are defined in
tensorflow/core/example/example.proto and feature.proto.
"""

from __future__ import annotations

import functools
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FeatureValue = bytes | int | float | Sequence[bytes] | Sequence[int] | Sequence[float]

_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = b"\x0a", b"\x12", b"\x1a"
_U64 = (1 << 64) - 1
_SMALL = [bytes((value,)) for value in range(0x80)]


def varint(value: int) -> bytes:
    """Return a protobuf varint; negative numbers are encoded as 64-bit two's complement."""
    if 0 <= value < 0x80:
        return _SMALL[value]
    value &= _U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _block(tag: bytes, content: bytes) -> bytes:
    return b"%b%b%b" % (tag, varint(len(content)), content)


def encode_feature(value: FeatureValue) -> bytes:
    """Return one tf.train.Feature: bytes, int64 or float32 by the type of the value.

    An empty sequence becomes a feature without a list, which TensorFlow reads as missing.

    Raises:
        TypeError: A value is not bytes, int or float.
    """
    if isinstance(value, bytes):  # the most frequent type: a list would take twice the time
        return _block(_BYTES_LIST, _block(b"\x0a", value))
    values: Sequence[Any] = [value] if isinstance(value, (int, float)) else value
    if not values:
        return b""
    first = values[0]
    if isinstance(first, bytes):
        return _block(_BYTES_LIST, b"".join([_block(b"\x0a", value) for value in values]))
    if isinstance(first, (int, np.integer)):
        packed = b"".join([varint(int(value)) for value in values])
        return _block(_INT64_LIST, _block(b"\x0a", packed))
    if isinstance(first, (float, np.floating)):
        floats = array("f", values)
        if sys.byteorder == "big":
            floats.byteswap()
        return _block(_FLOAT_LIST, _block(b"\x0a", floats.tobytes()))
    raise TypeError(f"a feature must be bytes, int or float, not {type(first).__name__}")


def encode_example(features: Mapping[str, FeatureValue]) -> bytes:
    """Return a serialized tf.train.Example with its features sorted by name.

    Equals protobuf's ``SerializeToString(deterministic=True)`` in C++ and Java.
    Its upb implementation, used in Python, sorts ``image/class`` after ``image/class/label``.
    """
    if not features:
        return b""
    names = sorted(features, key=str.encode)
    return _block(b"\x0a", b"".join([encode_entry(name, features[name]) for name in names]))


def encode_entry(name: str, value: FeatureValue) -> bytes:
    """Return one feature as ``encode_example`` writes it."""
    feature = encode_feature(value)
    return _block(b"\x0a", b"%b\x12%b%b" % (_name(name), varint(len(feature)), feature))


@functools.lru_cache
def _name(name: str) -> bytes:
    return _block(b"\x0a", name.encode())
