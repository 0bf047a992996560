"""A parser of tf.train.Example that needs no TensorFlow.

Two ways lead to the same result. Examples are nearly always written in one plain form (each
feature a name and one packed list), and that form is walked here byte by byte, which takes half of
the time that Python objects over protobuf's own messages take. Whatever is not plain goes to
protobuf, which alone decides what is an example: unknown fields, unpacked or split lists, several
kinds in one feature, and all bytes that are none. The wire format is that of
tensorflow/core/example/example.proto and feature.proto.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from shardmill.schemas.errors import FormatError

Kind = Literal["bytes", "int64", "float", "empty"]
Values = list[bytes] | list[int] | list[float]

_KINDS: dict[str | None, Kind] = {
    "bytes_list": "bytes",
    "float_list": "float",
    "int64_list": "int64",
    None: "empty",
}
# Tags of fields 1, 2 and 3, all of them length-delimited.
_FIRST, _SECOND, _THIRD = 0x0A, 0x12, 0x1A
_BYTES, _FLOATS, _INTS = _FIRST, _SECOND, _THIRD
_FLOAT = struct.Struct("<f")


def _scalars() -> dict[bytes, tuple[Kind, int]]:
    """The first four bytes of short features with one value: kind and length of the feature."""
    heads: dict[bytes, tuple[Kind, int]] = {}
    for size in range(126):
        heads[bytes((_BYTES, size + 2, _FIRST, size))] = ("bytes", size + 4)
    for size in range(1, 11):
        heads[bytes((_INTS, size + 2, _FIRST, size))] = ("int64", size + 4)
    heads[bytes((_FLOATS, 6, _FIRST, 4))] = ("float", 8)
    return heads


_SCALARS = _scalars()
_NO_SCALAR: tuple[Kind, int] = ("empty", -1)


class ExampleError(FormatError):
    """Bytes that are no tf.train.Example."""


class Feature(NamedTuple):
    """One feature of an example.

    Attributes:
        kind: ``empty`` when no kind is set, which TensorFlow reads as missing; a list that is set
            but has no values keeps its kind.
        values: The values; floats are float32 widened to Python's.
    """

    kind: Kind
    values: Values


class UnusualError(Exception):
    """The bytes are not in the plain form; protobuf must say what they are."""


def parse_example(payload: bytes) -> dict[str, Feature]:
    """Returns the features of a serialized tf.train.Example, as TensorFlow would read them.

    Raises:
        ExampleError: The bytes are no example. Protobuf is lenient: bytes of some other message
            can pass as one, see ``looks_like_example``.
    """
    try:
        return _plain(payload)
    except (UnusualError, IndexError, UnicodeDecodeError):
        return _features(_by_protobuf(payload))


def looks_like_example(payload: bytes) -> bool:
    """Tells whether bytes not only parse as an example but were most likely meant as one.

    They must have a feature, names of printable characters and no unknown fields. A message of
    another type, such as a SequenceExample or an ExampleListWithContext, seldom passes.
    """
    try:
        names = _plain(payload).keys()
    except (UnusualError, IndexError, UnicodeDecodeError):
        try:
            message = _by_protobuf(payload)
        except ExampleError:
            return False
        size = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != size:
            return False
        names = message.features.feature.keys()
    return bool(names) and all(name and name.isprintable() for name in names)


def _plain(payload: bytes) -> dict[str, Feature]:  # noqa: C901, PLR0912 - calls cost too much
    """Returns the features of an example in plain form.

    Raises:
        UnusualError: Or IndexError or UnicodeDecodeError: it is not in that form.
    """
    features: dict[str, Feature] = {}
    if not payload:
        return features
    stop, pos = block(payload, 0, _FIRST)
    if stop != len(payload):
        raise UnusualError
    # The named tuple's own constructor would take a fifth of the time.
    new, scalars = tuple.__new__, _SCALARS
    while pos < stop:
        # Lengths below 128 take one byte; a call for each of them would cost more than the rest.
        size = payload[pos + 1]
        if size < 0x80 and payload[pos] == _FIRST:
            pos += 2
            end = pos + size
        else:
            end, pos = block(payload, pos, _FIRST)
        size = payload[pos + 1]
        if size < 0x80 and payload[pos] == _FIRST:
            start = pos + 2
            pos = start + size
        else:
            pos, start = block(payload, pos, _FIRST)
        name = payload[start:pos].decode()
        last, pos = block(payload, pos, _SECOND)
        if last != end:
            raise UnusualError
        kind, size = scalars.get(payload[pos : pos + 4], _NO_SCALAR)
        if pos + size != end:
            features[name] = plain_feature(payload, pos, end)
        elif kind == "bytes":
            features[name] = new(Feature, (kind, [payload[pos + 4 : end]]))
        elif kind == "float":
            features[name] = new(Feature, (kind, list(_FLOAT.unpack_from(payload, pos + 4))))
        else:
            features[name] = new(Feature, (kind, integers(payload, pos + 4, end)))
        pos = end
    if pos != stop:
        raise UnusualError
    return features


def block(payload: bytes, pos: int, tag: int) -> tuple[int, int]:
    """Returns (end, start) of the block with a tag at pos."""
    if payload[pos] != tag:
        raise UnusualError
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
    raise UnusualError


def plain_feature(payload: bytes, pos: int, end: int) -> Feature:
    """Returns a feature in plain form: nothing, or one list in one piece."""
    if pos == end:
        return Feature("empty", [])
    kind = payload[pos]
    stop, pos = block(payload, pos, kind)
    if stop != end:
        raise UnusualError
    if kind == _BYTES:
        return Feature("bytes", _texts(payload, pos, end))
    if kind not in (_INTS, _FLOATS):
        raise UnusualError
    if pos < end:
        stop, pos = block(payload, pos, _FIRST)
        if stop != end:
            raise UnusualError
    if kind == _INTS:
        return Feature("int64", integers(payload, pos, end))
    if (end - pos) % 4:
        raise UnusualError
    return Feature("float", list(struct.unpack_from(f"<{(end - pos) // 4}f", payload, pos)))


def _texts(payload: bytes, pos: int, end: int) -> list[bytes]:
    values = []
    while pos < end:
        stop, pos = block(payload, pos, _FIRST)
        values.append(payload[pos:stop])
        pos = stop
    if pos != end:
        raise UnusualError
    return values


def integers(payload: bytes, pos: int, end: int) -> list[int]:
    """Returns the int64 values of packed varints.

    Raises:
        UnusualError: Protobuf must say what they are.
        IndexError: They are cut.
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
                    raise UnusualError
                if value >> 63:
                    value -= 1 << 64
        values.append(value)
    if pos != end:
        raise UnusualError
    return values


def _features(message: Any) -> dict[str, Feature]:
    features = {}
    for name, feature in message.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else []
        features[name] = Feature(_KINDS[kind], values)
    return features


def _by_protobuf(payload: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return _message_class().FromString(payload)
    except DecodeError as error:
        raise ExampleError(f"{len(payload):,} bytes are no tf.train.Example ({error})") from error


@lru_cache(maxsize=1)
def _message_class() -> Any:
    """Returns a message class of the same wire format as tf.train.Example.

    It has a package and a descriptor pool of its own, so that it never meets the types that
    TensorFlow registers, in whatever order the two are loaded.
    """
    # Most examples are plain, and protobuf takes 30 ms to load.
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    package = "shardmill.example"
    file = descriptor_pb2.FileDescriptorProto(
        name="shardmill/example.proto", package=package, syntax="proto3"
    )

    def message(parent: Any, name: str, *fields: tuple[str, int, int, str]) -> Any:
        made = parent.add(name=name)
        for number, (field_name, kind, label, type_name) in enumerate(fields, 1):
            made.field.add(name=field_name, number=number, type=kind, label=label)
            if type_name:
                made.field[-1].type_name = f".{package}.{type_name}"
        return made

    many, one, nested = field.LABEL_REPEATED, field.LABEL_OPTIONAL, field.TYPE_MESSAGE
    top = file.message_type
    message(top, "BytesList", ("value", field.TYPE_BYTES, many, ""))
    message(top, "FloatList", ("value", field.TYPE_FLOAT, many, ""))
    message(top, "Int64List", ("value", field.TYPE_INT64, many, ""))
    kinds = ("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")
    feature = message(top, "Feature", *((name, nested, one, kind) for name, kind in kinds))
    feature.oneof_decl.add(name="kind")
    for choice in feature.field:
        choice.oneof_index = 0
    features = message(top, "Features", ("feature", nested, many, "Features.FeatureEntry"))
    key, value = ("key", field.TYPE_STRING, one, ""), ("value", nested, one, "Feature")
    entry = message(features.nested_type, "FeatureEntry", key, value)
    entry.options.map_entry = True
    message(top, "Example", ("features", nested, one, "Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Example"))
