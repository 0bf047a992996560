"""Parser of tf.train.Example that does not need TensorFlow.

Nearly all writers use one canonical form: each feature is a name and one packed list. That form is
parsed here byte by byte, in half of the time that protobuf's Python messages take. Anything else
is parsed by protobuf, which alone decides whether bytes are an example: unknown fields, unpacked
or split lists, several kinds in one feature, and invalid bytes. The messages are defined in
tensorflow/core/example/example.proto and feature.proto.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from shardmill.schemas.errors import FormatError

Kind = Literal["bytes", "int64", "float", "empty"]
Values = list[bytes] | list[int] | list[float]

# Tags of the fields 1, 2 and 3 with wire type 2 (length-delimited).
_FIRST, _SECOND, _THIRD = 0x0A, 0x12, 0x1A
_BYTES, _FLOATS, _INTS = _FIRST, _SECOND, _THIRD
_FLOAT = struct.Struct("<f")


def _scalars() -> dict[bytes, tuple[Kind, int]]:
    """Return the kind and length of short single-value features by their first four bytes."""
    heads: dict[bytes, tuple[Kind, int]] = {}
    for size in range(126):
        heads[bytes((_BYTES, size + 2, _FIRST, size))] = ("bytes", size + 4)
    for size in range(1, 11):
        heads[bytes((_INTS, size + 2, _FIRST, size))] = ("int64", size + 4)
    heads[bytes((_FLOATS, 6, _FIRST, 4))] = ("float", 8)
    return heads


_SCALARS = _scalars()
_NOT_SCALAR: tuple[Kind, int] = ("empty", -1)


class ExampleError(FormatError):
    """Bytes that are not a tf.train.Example."""


class FeatureValues(NamedTuple):
    """The values of one feature of an example.

    Attributes:
        kind: ``empty`` if no list is set, which TensorFlow reads as missing; a list without
            values has its kind.
        values: The values; float32 values are converted to Python's float.
    """

    kind: Kind
    values: Values


class NotCanonicalError(Exception):
    """The bytes are not in the canonical form; protobuf must parse them."""


def parse_example(payload: bytes) -> dict[str, FeatureValues]:
    """Return the features of a serialized tf.train.Example, as TensorFlow reads them.

    Raises:
        ExampleError: The bytes are not an example. Protobuf is lenient and may accept bytes of
            another message type, which ``looks_like_example`` recognizes.
    """
    try:
        return _parse_canonical(payload)
    except (NotCanonicalError, IndexError, UnicodeDecodeError):
        return {
            name: _convert(feature)
            for name, feature in _parse_with_protobuf(payload).features.feature.items()
        }


def looks_like_example(payload: bytes) -> bool:
    """Return whether bytes that may be of any message type are most likely an example.

    They must have a feature, names of printable characters and no unknown fields. A message of
    another type, such as a SequenceExample or an ExampleListWithContext, rarely does.
    """
    try:
        names = _parse_canonical(payload).keys()
    except (NotCanonicalError, IndexError, UnicodeDecodeError):
        try:
            message = _parse_with_protobuf(payload)
        except ExampleError:
            return False
        size = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != size:
            return False
        names = message.features.feature.keys()
    return bool(names) and all(name and name.isprintable() for name in names)


def _parse_canonical(payload: bytes) -> dict[str, FeatureValues]:  # noqa: C901, PLR0912 - calls cost too much
    """Return the features of an example in canonical form.

    Raises:
        NotCanonicalError: It is not in that form. IndexError and UnicodeDecodeError mean the same.
    """
    features: dict[str, FeatureValues] = {}
    if not payload:
        return features
    stop, pos = _block(payload, 0, _FIRST)
    if stop != len(payload):
        raise NotCanonicalError
    # The constructor of the named tuple would take a fifth of the time.
    new, scalars = tuple.__new__, _SCALARS
    while pos < stop:
        # Lengths below 128 take one byte; a function call for each would dominate the run time.
        size = payload[pos + 1]
        if size < 0x80 and payload[pos] == _FIRST:
            pos += 2
            end = pos + size
        else:
            end, pos = _block(payload, pos, _FIRST)
        size = payload[pos + 1]
        if size < 0x80 and payload[pos] == _FIRST:
            start = pos + 2
            pos = start + size
        else:
            pos, start = _block(payload, pos, _FIRST)
        name = payload[start:pos].decode()
        last, pos = _block(payload, pos, _SECOND)
        if last != end:
            raise NotCanonicalError
        kind, size = scalars.get(payload[pos : pos + 4], _NOT_SCALAR)
        if pos + size != end:
            features[name] = _parse_feature(payload, pos, end)
        elif kind == "bytes":
            features[name] = new(FeatureValues, (kind, [payload[pos + 4 : end]]))
        elif kind == "float":
            features[name] = new(FeatureValues, (kind, list(_FLOAT.unpack_from(payload, pos + 4))))
        else:
            features[name] = new(FeatureValues, (kind, parse_varints(payload, pos + 4, end)))
        pos = end
    if pos != stop:
        raise NotCanonicalError
    return features


def _block(payload: bytes, pos: int, tag: int) -> tuple[int, int]:
    """Return (end, start) of the length-delimited field with the given tag at pos."""
    if payload[pos] != tag:
        raise NotCanonicalError
    size = payload[pos + 1]
    pos += 2
    if size < 0x80:
        return pos + size, pos
    size &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = payload[pos]
        pos += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return pos + size, pos
    raise NotCanonicalError


def _parse_feature(payload: bytes, pos: int, end: int) -> FeatureValues:
    """Return a feature in canonical form: empty, or one packed list."""
    if pos == end:
        return FeatureValues("empty", [])
    kind = payload[pos]
    stop, pos = _block(payload, pos, kind)
    if stop != end:
        raise NotCanonicalError
    if kind == _BYTES:
        return FeatureValues("bytes", _parse_bytes_list(payload, pos, end))
    if kind not in (_INTS, _FLOATS):
        raise NotCanonicalError
    if pos < end:
        stop, pos = _block(payload, pos, _FIRST)
        if stop != end:
            raise NotCanonicalError
    if kind == _INTS:
        return FeatureValues("int64", parse_varints(payload, pos, end))
    if (end - pos) % 4:
        raise NotCanonicalError
    return FeatureValues("float", list(struct.unpack_from(f"<{(end - pos) // 4}f", payload, pos)))


def _parse_bytes_list(payload: bytes, pos: int, end: int) -> list[bytes]:
    values = []
    while pos < end:
        stop, pos = _block(payload, pos, _FIRST)
        values.append(payload[pos:stop])
        pos = stop
    if pos != end:
        raise NotCanonicalError
    return values


def parse_varints(payload: bytes, pos: int, end: int) -> list[int]:
    """Return the int64 values of packed varints.

    Raises:
        NotCanonicalError: A varint is longer than 64 bits, or leads past the end.
        IndexError: The last varint is incomplete.
    """
    values = []
    while pos < end:
        value = payload[pos]
        pos += 1
        if value > 0x7F:
            value &= 0x7F
            shift = 7
            while True:
                byte = payload[pos]
                pos += 1
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
            if shift > 56:  # ten bytes: a negative number
                if shift > 63 or value >> 64:
                    raise NotCanonicalError
                if value >> 63:
                    value -= 1 << 64
        values.append(value)
    if pos != end:
        raise NotCanonicalError
    return values


def _convert(feature: Any) -> FeatureValues:
    form = feature.WhichOneof("kind")  # such as bytes_list
    if form is None:
        return FeatureValues("empty", [])
    return FeatureValues(form.removesuffix("_list"), list(getattr(feature, form).value))


def _parse_with_protobuf(payload: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return _message_class().FromString(payload)
    except DecodeError as error:
        raise ExampleError(
            f"{len(payload):,} bytes are not a tf.train.Example ({error})"
        ) from error


@lru_cache(maxsize=1)
def _message_class() -> Any:
    """Return a message class with the wire format of tf.train.Example.

    Its separate package and descriptor pool prevent conflicts with the types that TensorFlow
    registers.
    """
    # Most examples are canonical, and protobuf takes 30 ms to load.
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    text = Path(__file__).with_name("example.textproto").read_text(encoding="utf-8")
    pool.Add(text_format.Parse(text, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shardmill.example.Example"))
