"""Entries: the distinct values of a column as they stand inside a tf.train.Example.

An entry is a name and its feature, one item of the map in tf.train.Features. Its bytes are those
that ``schemas.example.encode_example`` gives, made for all values at once.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.example.serialize import varint
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.transforms.columnar.byte_arrays import Blobs, offsets_of, with_heads

_FIRST, _SECOND = b"\x0a", b"\x12"  # tags of fields 1 and 2 that hold bytes
_LIST_TAGS: dict[Kind, bytes] = {"bytes": b"\x0a", "float32": b"\x12", "int64": b"\x1a"}
_TYPES: dict[Kind, tuple[pa.DataType, ...]] = {
    "int64": (pa.int64(),),
    "float32": (pa.float32(),),
    "bytes": (pa.binary(), pa.large_binary()),
}
# Twice 28 bits 32 apart, four times 14 bits 16 apart, eight times 7 bits 8 apart.
_SPREADS = (
    (0x00FFFFFFF0000000, 0x000000000FFFFFFF, 4),
    (0x0FFFC0000FFFC000, 0x00003FFF00003FFF, 2),
    (0x3F803F803F803F80, 0x007F007F007F007F, 1),
)
# By the size of a varint: the bits in its first eight bytes that say that another follows.
_CONTINUED = np.array(
    [sum(0x80 << 8 * byte for byte in range(min(size - 1, 8))) for size in range(11)], np.uint64
)


def encode_entries(name: str, kind: Kind, values: pa.Array) -> Blobs:
    """Returns the entry of each value; no bytes for a null or an empty list: it is left out.

    Args:
        name: The feature's name.
        kind: Its kind.
        values: int64, float32 or binary as the kind says, or a list_ of it.

    Raises:
        ValueError: A list holds a null, or the values are not of the kind.
    """
    in_lists = pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
    flat, offsets = _flattened(values) if in_lists else _present(values)
    if flat.null_count:
        raise ValueError(f"a list in the column {name!r} holds a null")
    if flat.type not in _TYPES[kind]:
        raise ValueError(f"the column {name!r} holds {flat.type}, not {kind}")
    if kind == "bytes":
        items = Blobs.of_arrow(flat)
        if offsets is None:
            return with_heads(items, partial(_single_head, name))
        items = with_heads(items, _item_head)
    else:
        items = varints(flat.to_numpy()) if kind == "int64" else _floats(flat.to_numpy())
    contents = items if offsets is None else Blobs(items.data, items.offsets[offsets])
    return with_heads(contents, partial(_head, name, kind))


def _present(values: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """Returns values without nulls, and where those of each row begin unless it is one a row."""
    if not values.null_count:
        return values, None
    return values.drop_null(), offsets_of(values.is_valid().to_numpy(zero_copy_only=False))


def _flattened(values: pa.Array) -> tuple[pa.Array, np.ndarray]:
    counts = pc.fill_null(pc.list_value_length(values), 0)
    return values.flatten(), offsets_of(counts.to_numpy())


def _floats(values: np.ndarray) -> Blobs:
    data = values.astype("<f4", copy=False).view(np.uint8)
    return Blobs(data, np.arange(values.size + 1, dtype=np.int64) * 4)


def varints(values: np.ndarray) -> Blobs:
    """Returns int64 values as protobuf varints: 1 to 9 bytes, and 10 for a negative one."""
    unsigned = np.ascontiguousarray(values, np.int64).view(np.uint64)
    width = len(varint(int(unsigned.max(initial=0))))
    sizes = np.ones(values.size, np.int64)
    for size in range(1, width):
        sizes += unsigned >= np.uint64(1 << 7 * size)
    low = (_sevens(unsigned) | np.take(_CONTINUED, sizes)).astype("<u8", copy=False)
    digits = low.view(np.uint8).reshape(-1, 8)
    if width > 8:
        ninth = (unsigned >> np.uint64(56)).astype(np.uint8) | np.uint8(0x80)
        tenth = (unsigned >> np.uint64(63)).astype(np.uint8)
        ninth &= np.where(sizes > 9, np.uint8(0xFF), np.uint8(0x7F))
        digits = np.column_stack((digits, ninth, tenth))
    return Blobs(digits[np.arange(digits.shape[1]) < sizes[:, None]], offsets_of(sizes))


def _sevens(numbers: np.ndarray) -> np.ndarray:
    """Returns the lowest 56 bits of uint64 numbers, seven in each byte."""
    for high, low, shift in _SPREADS:
        numbers = (numbers & np.uint64(high)) << np.uint64(shift) | numbers & np.uint64(low)
    return numbers


def _opened(tag: bytes, begin: bytes, size: int) -> bytes:
    """Returns the tag and length of a field in front of the begin of it; size bytes follow."""
    return b"".join((tag, varint(len(begin) + size), begin))


def _item_head(size: int) -> bytes:
    return _opened(_FIRST, b"", size)


def _head(name: str, kind: Kind, size: int) -> bytes:
    """Returns what stands before the packed numbers, or the items, of an entry."""
    if not size:
        return b""
    begin = b"" if kind == "bytes" else _item_head(size)
    begin = _opened(_LIST_TAGS[kind], begin, size)
    begin = _opened(_SECOND, begin, size)
    key = name.encode()
    return _opened(_FIRST, _opened(_FIRST, b"", len(key)) + key + begin, size)


def _single_head(name: str, size: int) -> bytes:
    """Returns what stands before the bytes of an entry that holds one byte string."""
    head = _item_head(size)
    return _head(name, "bytes", len(head) + size) + head
