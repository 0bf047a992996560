"""Encode typed columns as framed TFRecords of canonical tf.train.Examples.

No step loops over values. The distinct values of each column are encoded once into one array of
byte strings, which also holds the frame headers and an empty footer. A row is a list of indices
into that array: header, its columns in name order, footer. One Arrow ``take`` over the indices of
many rows yields their frames; the payload CRCs are filled in afterwards.

An entry is one item of the map in tf.train.Features: a name and its Feature. Its bytes equal those
of ``schemas.example.serialize.encode_example``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.example.serialize import varint
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES, mask, masked_crc
from shardmill.transforms.tables.byte_arrays import (
    ByteStrings,
    headers_of,
    offsets_from_sizes,
    prepend_headers,
)
from shardmill.transforms.tables.table_source import ARROW_TYPES, TypedColumn, is_list

_FIRST, _SECOND = b"\x0a", b"\x12"  # tags of the length-delimited fields 1 and 2
_LIST_TAGS: dict[Kind, bytes] = {"bytes": b"\x0a", "float32": b"\x12", "int64": b"\x1a"}


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
    if flat.type != ARROW_TYPES[kind] and (kind, flat.type) != ("bytes", pa.large_binary()):
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
    if is_list(values.type):
        counts = pc.fill_null(pc.list_value_length(values), 0)
        return values.flatten(), offsets_from_sizes(counts.to_numpy())
    if not values.null_count:
        return values, None
    return values.drop_null(), offsets_from_sizes(values.is_valid().to_numpy(zero_copy_only=False))


def _floats(values: np.ndarray) -> ByteStrings:
    return ByteStrings.fixed(values.astype("<f4", copy=False).view(np.uint8), values.size)


def varints(values: np.ndarray) -> ByteStrings:
    """Return int64 values as protobuf varints: 1 to 9 bytes, 10 for a negative value."""
    rest = np.ascontiguousarray(values, np.int64).view(np.uint64)
    width = len(varint(int(rest.max(initial=0))))
    digits = np.empty((rest.size, width), np.uint8)
    used = np.ones(digits.shape, np.bool_)  # zero has a digit too
    sizes = np.ones(rest.size, np.int64)
    for place in range(width):
        more = rest > 0x7F
        digits[:, place] = rest.astype(np.uint8) & 0x7F | more.view(np.uint8) << 7
        used[:, place + 1 : place + 2] = more[:, np.newaxis]  # nothing after the last place
        sizes += more
        rest = rest >> np.uint64(7)
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


_FEATURES = b"\x0a"
_FOOTER = pa.array([bytes(FOOTER_BYTES)], pa.large_binary())
# Rows copied at a time to compute their CRCs; the copy stays in the CPU cache.
_CRC_ROWS = 256


@dataclass(frozen=True)
class PreparedRows:
    """Rows in final order, ready to be encoded in slices; threads may share it.

    Attributes:
        pieces: large_binary, the byte strings that frames consist of.
        codes: int32[n, rows], indices into ``pieces`` of each frame.
        lengths: int64[rows], bytes of each frame.
    """

    pieces: pa.LargeBinaryArray
    codes: np.ndarray
    lengths: np.ndarray


def prepare(columns: Sequence[TypedColumn], order: np.ndarray) -> PreparedRows:
    """Encode the distinct values of all columns.

    Args:
        columns: At least one column; names are distinct and lengths equal.
        order: int[n], the rows to encode, in output order.

    Raises:
        ValueError: Values do not have the column's kind.
    """
    by_name = sorted(columns, key=lambda column: column.name.encode())
    payloads = np.zeros(len(order), np.int64)
    # A frame is its header, the entry of each column and the footer: a column of codes. Piece 0 is
    # the footer.
    codes = np.empty((len(by_name) + 2, len(order)), np.int32)
    codes[-1] = 0
    pieces, used = [_FOOTER], len(_FOOTER)
    for number, column in enumerate(by_name, 1):
        entries, indices = _encode_column(column, order)
        np.add(indices, used, out=codes[number], casting="same_kind")
        payloads += np.take(entries.sizes, indices)
        pieces.append(entries.arrow())
        used += entries.number
    headers, rows = headers_of(payloads, _frame_header)
    np.add(rows, used, out=codes[0], casting="same_kind")
    lengths = payloads + ByteStrings.of_arrow(headers).sizes[rows] + FOOTER_BYTES
    return PreparedRows(pa.concat_arrays([*pieces, headers]), codes, lengths)


def _encode_column(column: TypedColumn, order: np.ndarray) -> tuple[ByteStrings, np.ndarray]:
    """Return the encoded entries of a column, and the index of each row's entry, int[rows]."""
    name, kind, values = column
    if isinstance(values, pa.DictionaryArray) and 2 * len(values.dictionary) <= len(order):
        indices = values.indices.to_numpy()
        return encode_entries(name, kind, values.dictionary), np.take(indices, order)
    # Nearly one value per row: values in row order keep memory access sequential.
    return encode_entries(name, kind, column.take(order)), np.arange(len(order))


def _frame_header(size: int) -> bytes:
    """Return the bytes in front of ``size`` bytes of entries: frame header and Features tag."""
    features = _FEATURES + varint(size) if size else b""
    length = struct.pack("<Q", len(features) + size)
    return b"".join((length, struct.pack("<I", masked_crc(length)), features))


def encode_rows(prepared: PreparedRows, start: int, stop: int) -> pa.Buffer:
    """Return the frames of rows ``start`` to ``stop`` (exclusive) of the order, back to back.

    The bytes of a row depend only on that row. Peak memory is twice the size of the frames, which
    ``prepared.lengths`` gives.
    """
    lengths = prepared.lengths[start:stop]
    if not lengths.size:
        return pa.py_buffer(b"")
    codes = pa.array(prepared.codes[:, start:stop].T.reshape(-1))
    data = prepared.pieces.take(codes).buffers()[2]
    ends = np.cumsum(lengths)
    footers = ends - FOOTER_BYTES
    crcs = mask(_crcs(data, ends - lengths + HEADER_BYTES, footers))
    # An unaligned uint32 view at every byte; no other array shares the buffer.
    view = np.ndarray((data.size - FOOTER_BYTES + 1,), "<u4", data, strides=(1,))
    view[footers] = crcs
    return data


def _crcs(data: pa.Buffer, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the CRC-32C of each byte range of the data, uint32[n]."""
    crcs = np.empty(begins.size, np.uint32)
    for first in range(0, begins.size, _CRC_ROWS):
        batch = slice(first, first + _CRC_ROWS)
        start, stop = int(begins[first]), int(ends[batch][-1])
        copied = data.slice(start, stop - start).to_pybytes()
        spans = zip((begins[batch] - start).tolist(), (ends[batch] - start).tolist(), strict=True)
        crcs[batch] = [google_crc32c.value(copied[begin:end]) for begin, end in spans]
    return crcs
