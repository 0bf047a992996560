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
from shardmill.transforms.columnar.byte_arrays import (
    ByteStrings,
    offsets_from_sizes,
    prepend_headers,
)
from shardmill.transforms.columnar.typed_column import has_lists

_FIRST, _SECOND = b"\x0a", b"\x12"  # tags of the length-delimited fields 1 and 2
_LIST_TAGS: dict[Kind, bytes] = {"bytes": b"\x0a", "float32": b"\x12", "int64": b"\x1a"}
_TYPES: dict[Kind, tuple[pa.DataType, ...]] = {
    "int64": (pa.int64(),),
    "float32": (pa.float32(),),
    "bytes": (pa.binary(), pa.large_binary()),
}
# (high mask, low mask, shift): spread 56 bits to halves of 28, quarters of 14, bytes of 7 bits.
_SPREADS = (
    (0x00FFFFFFF0000000, 0x000000000FFFFFFF, 4),
    (0x0FFFC0000FFFC000, 0x00003FFF00003FFF, 2),
    (0x3F803F803F803F80, 0x007F007F007F007F, 1),
)
# Continuation bits in the first eight bytes of a varint, indexed by its size.
_CONTINUATION_BITS = np.array(
    [sum(0x80 << 8 * byte for byte in range(min(size - 1, 8))) for size in range(11)], np.uint64
)


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
    sizes = np.ones(values.size, np.int64)
    for size in range(1, width):
        sizes += unsigned >= np.uint64(1 << 7 * size)
    low = _spread_to_bytes(unsigned) | np.take(_CONTINUATION_BITS, sizes)
    low = low.astype("<u8", copy=False)
    digits = low.view(np.uint8).reshape(-1, 8)
    if width > 8:
        ninth = (unsigned >> np.uint64(56)).astype(np.uint8) | np.uint8(0x80)
        tenth = (unsigned >> np.uint64(63)).astype(np.uint8)
        ninth &= np.where(sizes > 9, np.uint8(0xFF), np.uint8(0x7F))
        digits = np.column_stack((digits, ninth, tenth))
    return ByteStrings(
        digits[np.arange(digits.shape[1]) < sizes[:, None]], offsets_from_sizes(sizes)
    )


def _spread_to_bytes(numbers: np.ndarray) -> np.ndarray:
    """Return the lowest 56 bits of uint64 numbers, seven in each byte."""
    for high, low, shift in _SPREADS:
        numbers = (numbers & np.uint64(high)) << np.uint64(shift) | numbers & np.uint64(low)
    return numbers


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
