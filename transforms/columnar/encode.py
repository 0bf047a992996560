"""Typed columns become framed TFRecords of canonical tf.train.Examples.

No step here is done value by value. The distinct values of each column are encoded once, and all
of them stand in one array, with the frames' headers and an empty footer beside them. A row is then
a line of numbers into that array: header, its columns in the order of their names, footer. Taking
all numbers of many rows in one go gives the frames themselves; only the CRCs of the payloads are
filled in afterwards.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from shardmill.schemas.example.serialize import varint
from shardmill.schemas.tfrecord.batch_crc import masked
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES, masked_crc
from shardmill.transforms.columnar.byte_arrays import Blobs, joined, offsets_of, ranked, taken
from shardmill.transforms.columnar.entries import encode_entries
from shardmill.transforms.columnar.typed_column import TypedColumn

_FEATURES = b"\x0a"
_EMPTY = Blobs.of([b""])
_FOOTER = Blobs.of([bytes(FOOTER_BYTES)])
# Neighbours of so few values are encoded as one column of pairs: fewer pieces a row, but not so
# many that they leave the processor's cache.
_MOST_COMBINED = 1024
_ROWS_A_COMBINATION = 8
# Rows whose bytes are copied at a time for their CRCs: so few that the copy stays in the cache.
_CRC_ROWS = 256


class Framed(NamedTuple):
    """Whole TFRecord frames.

    Attributes:
        data: The frames, one behind the other.
        lengths: int64[rows], bytes of each frame.
    """

    data: pa.Buffer
    lengths: np.ndarray


class _Lot(NamedTuple):
    """One column, or some neighbours: its entries, and which of them each row has."""

    entries: Blobs
    numbers: np.ndarray  # int32[rows]


@dataclass(frozen=True)
class Prepared:
    """Rows in their order, ready to be encoded slice by slice, by several threads at once.

    Attributes:
        pieces: large_binary, all bytes that frames are made of.
        codes: int32[rows, n], the pieces of each frame.
        lengths: int64[rows], bytes of each frame.
    """

    pieces: pa.LargeBinaryArray
    codes: np.ndarray
    lengths: np.ndarray


def prepare(columns: Sequence[TypedColumn], order: np.ndarray) -> Prepared:
    """Encodes the distinct values of all columns.

    Args:
        columns: At least one column, all of one length and with a name of its own each.
        order: int[n], numbers of the rows to be encoded, in the order that is wanted.

    Raises:
        ValueError: Columns have the same name or different lengths, an index points outside of
            the values, or the values are not of the column's kind.
    """
    ordered = sorted(columns, key=lambda column: column.name.encode())
    names = {column.name for column in ordered}
    rows = {_rows_of(column) for column in ordered}
    if len(names) != len(ordered) or len(rows) != 1:
        raise ValueError(f"{len(ordered)} columns have {len(names)} names and lengths {rows}")
    lots = _combined([_lot(column, order) for column in ordered], len(order))
    payloads = np.zeros(len(order), np.int64)
    codes = np.empty((len(order), len(lots) + 2), np.int32)
    codes[:, -1] = 0
    used = _FOOTER.number
    for number, (entries, numbers) in enumerate(lots, 1):
        np.add(numbers, used, out=codes[:, number])
        payloads += np.take(entries.sizes, numbers)
        used += entries.number
    distinct, ranks = ranked(payloads)
    heads = Blobs.of(map(_frame_head, distinct.tolist()))
    np.add(ranks, used, out=codes[:, 0], casting="same_kind")
    lengths = payloads + heads.sizes[ranks] + FOOTER_BYTES
    pieces = joined([_FOOTER, *(lot.entries for lot in lots), heads])
    return Prepared(pieces.arrow(), codes, lengths)


def _rows_of(column: TypedColumn) -> int:
    return len(column.values) if column.indices is None else len(column.indices)


def _lot(column: TypedColumn, order: np.ndarray) -> _Lot:
    """Returns the entries of a column, the first one empty for rows that have none."""
    name, kind, values, indices = column
    if indices is not None:
        low, high = indices.min(initial=0), indices.max(initial=-1)
        if low < -1 or high >= len(values):
            raise ValueError(
                f"the column {name!r} has indices from {low} to {high} into {len(values)} values"
            )
        indices = np.take(indices, order)
    if indices is None or 2 * len(values) > len(order):
        # Pieces that lie in the order in which they are taken are near in memory.
        places = order if indices is None else pa.array(indices, mask=indices < 0)
        values = values.take(places)
        indices = np.arange(len(order), dtype=np.int32)
    return _Lot(joined([_EMPTY, encode_entries(name, kind, values)]), indices + np.int32(1))


def _combined(lots: Sequence[_Lot], rows: int) -> list[_Lot]:
    """Returns the lots with neighbours of few entries made one."""
    most = min(_MOST_COMBINED, rows // _ROWS_A_COMBINATION)
    groups: list[list[_Lot]] = []
    product = 1
    for lot in lots:
        product *= lot.entries.number
        if groups and product <= most:
            groups[-1].append(lot)
        else:
            groups.append([lot])
            product = lot.entries.number
    return [group[0] if len(group) == 1 else _product(group) for group in groups]


def _product(lots: Sequence[_Lot]) -> _Lot:
    """Returns all combinations of the lots' entries, and which of them each row has."""
    counts = [lot.entries.number for lot in lots]
    choices = np.stack(np.unravel_index(np.arange(math.prod(counts)), counts), axis=1)
    choices += offsets_of(np.array(counts))[:-1]
    woven = taken(joined([lot.entries for lot in lots]), choices)
    numbers = lots[0].numbers
    for lot in lots[1:]:
        numbers = numbers * np.int32(lot.entries.number) + lot.numbers
    return _Lot(woven, numbers)


def _frame_head(size: int) -> bytes:
    """Returns what stands before the entries of a record: the frame's header and one tag."""
    features = _FEATURES + varint(size) if size else b""
    length = struct.pack("<Q", len(features) + size)
    return b"".join((length, struct.pack("<I", masked_crc(length)), features))


def encode_rows(prepared: Prepared, start: int, stop: int) -> Framed:
    """Returns the frames of the rows from start to before stop of the order.

    The bytes of a row depend on the row alone. All frames stand in memory at once, and twice for a
    moment: ``prepared.lengths`` tells how large they will be.
    """
    lengths = prepared.lengths[start:stop]
    if not lengths.size:
        return Framed(pa.py_buffer(b""), lengths)
    codes = pa.array(prepared.codes[start:stop].reshape(-1))
    data = prepared.pieces.take(codes).buffers()[2]
    ends = np.cumsum(lengths)
    footers = ends - FOOTER_BYTES
    crcs = masked(_crcs(data, ends - lengths + HEADER_BYTES, footers))
    # A view of a number at every byte; the buffer is fresh and nobody else's.
    view = np.ndarray((data.size - FOOTER_BYTES + 1,), "<u4", data, strides=(1,))
    view[footers] = crcs
    return Framed(data, lengths)


def _crcs(data: pa.Buffer, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the CRC-32C of each stretch of data, uint32."""
    crcs = np.empty(begins.size, np.uint32)
    for first in range(0, begins.size, _CRC_ROWS):
        some = slice(first, first + _CRC_ROWS)
        start, stop = int(begins[first]), int(ends[some][-1])
        near = data.slice(start, stop - start).to_pybytes()
        spans = map(slice, (begins[some] - start).tolist(), (ends[some] - start).tolist())
        values = map(google_crc32c.value, map(near.__getitem__, spans))
        crcs[some] = np.fromiter(values, np.uint32, ends[some].size)
    return crcs
