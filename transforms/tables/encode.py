"""Encode typed columns as framed TFRecords of canonical tf.train.Examples.

No step loops over values. The distinct values of each column are encoded once into one array of
byte strings, which also holds the frame headers and an empty footer. A row is a list of indices
into that array: header, its columns in name order, footer. One Arrow ``take`` over the indices of
many rows yields their frames; the payload CRCs are filled in afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from shardmill.schemas.example.serialize import varint
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES, mask, masked_crc
from shardmill.transforms.tables.byte_arrays import ByteStrings, concatenate
from shardmill.transforms.tables.entries import encode_entries
from shardmill.transforms.tables.typed_column import TypedColumn

_FEATURES = b"\x0a"
_EMPTY = ByteStrings.of([b""])
_FOOTER = ByteStrings.of([bytes(FOOTER_BYTES)])
# Rows copied at a time to compute their CRCs; the copy stays in the CPU cache.
_CRC_ROWS = 256


class _EncodedColumn(NamedTuple):
    """The encoded entries of a column, and the index of each row's entry."""

    entries: ByteStrings
    indices: np.ndarray  # int32[rows]


@dataclass(frozen=True)
class PreparedRows:
    """Rows in final order, ready to be encoded in slices; threads may share it.

    Attributes:
        pieces: large_binary, the byte strings that frames consist of.
        codes: int32[rows, n], indices into ``pieces`` of each frame.
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
    encoded = [_encode_column(column, order) for column in by_name]
    payloads = np.zeros(len(order), np.int64)
    codes = np.empty((len(order), len(encoded) + 2), np.int32)
    codes[:, -1] = 0
    used = _FOOTER.number
    for number, (entries, indices) in enumerate(encoded, 1):
        np.add(indices, used, out=codes[:, number])
        payloads += np.take(entries.sizes, indices)
        used += entries.number
    distinct, ranks = np.unique(payloads, return_inverse=True)
    headers = ByteStrings.of(map(_frame_header, distinct.tolist()))
    np.add(ranks, used, out=codes[:, 0], casting="same_kind")
    lengths = payloads + headers.sizes[ranks] + FOOTER_BYTES
    pieces = concatenate([_FOOTER, *(column.entries for column in encoded), headers])
    return PreparedRows(pieces.arrow(), codes, lengths)


def _encode_column(column: TypedColumn, order: np.ndarray) -> _EncodedColumn:
    """Return the encoded entries of a column; entry 0 is empty, for rows without a value."""
    name, kind, values, indices = column
    if indices is None or 2 * len(values) > len(order):
        # Nearly one value per row: values in row order keep memory access sequential.
        values, indices = column.take(order), np.arange(len(order), dtype=np.int32)
    else:
        indices = np.take(indices, order)
    entries = concatenate([_EMPTY, encode_entries(name, kind, values)])
    return _EncodedColumn(entries, indices + np.int32(1))


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
    codes = pa.array(prepared.codes[start:stop].reshape(-1))
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
        spans = map(slice, (begins[batch] - start).tolist(), (ends[batch] - start).tolist())
        values = map(google_crc32c.value, map(copied.__getitem__, spans))
        crcs[batch] = np.fromiter(values, np.uint32, ends[batch].size)
    return crcs
