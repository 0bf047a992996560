"""Encode the values of a column as entries of tf.train.Features, many at a time.

An entry is one item of the map in tf.train.Features: a name and its Feature. Its bytes equal those
of ``schemas.example.serialize.encode_example``.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.example.serialize import varint
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.transforms.tables.byte_arrays import (
    ByteStrings,
    offsets_from_sizes,
    prepend_headers,
)
from shardmill.transforms.tables.typed_column import has_lists

_FIRST, _SECOND = b"\x0a", b"\x12"  # tags of the length-delimited fields 1 and 2
_LIST_TAGS: dict[Kind, bytes] = {"bytes": b"\x0a", "float32": b"\x12", "int64": b"\x1a"}
_TYPES: dict[Kind, tuple[pa.DataType, ...]] = {
    "int64": (pa.int64(),),
    "float32": (pa.float32(),),
    "bytes": (pa.binary(), pa.large_binary()),
}


def encode_entries(name: str, kind: Kind, values: pa.Array) -> ByteStrings:
    """Return the entry of each value; zero bytes for a null or an empty list.

    Args:
        name: Feature name.
        kind: Feature kind.
        values: int64, float32 or binary according to ``kind``, or lists of it.

    Raises:
        ValueError: A list contains a null, or the values do not have this kind.
    """
    flat, offsets = flatten(values)
    if flat.null_count:
        raise ValueError(f"a list in the column {name!r} contains a null")
    if flat.type not in _TYPES[kind]:
        raise ValueError(f"the column {name!r} holds {flat.type}, not {kind}")
    if kind == "bytes":
        items = ByteStrings.of_arrow(flat)
        if offsets is None:
            return prepend_headers(items, partial(_single_value_header, name))
        items = prepend_headers(items, _item_header)
    else:
        items = varints(flat.to_numpy()) if kind == "int64" else _floats(flat.to_numpy())
    contents = items if offsets is None else ByteStrings(items.data, items.offsets[offsets])
    return prepend_headers(contents, partial(_header, name, kind))


def flatten(values: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """Return the values of all rows, and their offsets per row: int64[rows + 1].

    Args:
        values: The value or the list of values of each row; null for none.

    Returns:
        The values without nulls; None instead of offsets if each row has exactly one value.
    """
    if has_lists(values):
        counts = pc.fill_null(pc.list_value_length(values), 0)
        return values.flatten(), offsets_from_sizes(counts.to_numpy())
    if not values.null_count:
        return values, None
    return values.drop_null(), offsets_from_sizes(values.is_valid().to_numpy(zero_copy_only=False))


def _floats(values: np.ndarray) -> ByteStrings:
    data = values.astype("<f4", copy=False).view(np.uint8)
    return ByteStrings(data, np.arange(values.size + 1, dtype=np.int64) * 4)


def varints(values: np.ndarray) -> ByteStrings:
    """Return int64 values as protobuf varints: 1 to 9 bytes, 10 for a negative value."""
    unsigned = np.ascontiguousarray(values, np.int64).view(np.uint64)
    width = len(varint(int(unsigned.max(initial=0))))
    digits = np.empty((unsigned.size, width), np.uint8)
    used = np.empty(digits.shape, np.bool_)
    for place in range(width):
        rest = unsigned >> np.uint64(7 * place)
        digits[:, place] = rest.astype(np.uint8) | 0x80
        used[:, place] = rest > 0
    used[:, 0] = True  # zero has a digit too
    sizes = used.sum(axis=1)
    digits[np.arange(unsigned.size), sizes - 1] &= 0x7F
    return ByteStrings(digits[used], offsets_from_sizes(sizes))


def _open_field(tag: bytes, start: bytes, size: int) -> bytes:
    """Return a field's tag, its length and its first bytes; ``size`` more bytes follow."""
    return b"".join((tag, varint(len(start) + size), start))


def _item_header(size: int) -> bytes:
    return _open_field(_FIRST, b"", size)


def _header(name: str, kind: Kind, size: int) -> bytes:
    """Return the bytes in front of the packed numbers, or the items, of an entry."""
    if not size:
        return b""
    start = b"" if kind == "bytes" else _item_header(size)
    start = _open_field(_LIST_TAGS[kind], start, size)
    start = _open_field(_SECOND, start, size)
    key = name.encode()
    return _open_field(_FIRST, _open_field(_FIRST, b"", len(key)) + key + start, size)


def _single_value_header(name: str, size: int) -> bytes:
    """Return the bytes in front of the value of an entry with one byte string."""
    header = _item_header(size)
    return _header(name, "bytes", len(header) + size) + header
