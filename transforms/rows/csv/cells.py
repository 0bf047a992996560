"""Rows to cells: pyarrow takes the good rows apart, whole columns at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import csv

from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.rows.csv.arrow import MAX_LISTED, parse_first, parse_rows, single
from shardmill.transforms.rows.csv.dialect import UTF_8, Dialect, shown
from shardmill.transforms.rows.csv.quotes import Ints
from shardmill.transforms.rows.csv.row_bounds import Rows
from shardmill.transforms.rows.csv.text import CsvText, wrong_byte

MAX_COLUMNS = 100_000
_ASCII_END = 128


class RowReject(NamedTuple):
    """A row that could not become cells, or a record.

    Attributes:
        offset: Of its first byte in the file's text.
        line: The line it begins in, from 1.
        error: A reason, one of ``rejects.REASONS``.
        message: One sentence with the line, and the column and value where there are some.
        rows: How many rows it stands for.
    """

    offset: int
    line: int
    error: str
    message: str
    rows: int = 1


@dataclass(frozen=True)
class Cells:
    """The cells of some rows of one file.

    Attributes:
        columns: The cells of each column as dictionary<int32, binary>, in UTF-8; none is null, an
            empty cell is ``b""``.
        offsets: int64[rows], of each row's first byte in the file's text. The text is the file
            itself, decompressed, or its UTF-8 form where its encoding has no ASCII bytes.
        lines: int64[rows], the line each row begins in, from 1.
        rejects: Rows that are none, in order.
    """

    columns: dict[str, pa.DictionaryArray]
    offsets: Ints
    lines: Ints
    rejects: list[RowReject]

    @property
    def rows(self) -> int:
        """How many rows were read, bad ones included."""
        return len(self.offsets) + sum(reject.rows for reject in self.rejects)


class _Good(NamedTuple):
    """Good rows that follow each other without gaps.

    Attributes:
        data: Their bytes, empty rows between them.
        starts: int64[rows], where each begins.
        offsets: int64[rows], as in ``Cells``.
        lines: int64[rows], as in ``Cells``.
    """

    data: bytes
    starts: Ints
    offsets: Ints
    lines: Ints

    def row(self, number: int) -> bytes:
        """Returns the bytes of a row, with its line break."""
        end = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.data)
        return self.data[self.starts[number] : end]

    def without(self, rows: list[int]) -> _Good:
        """Returns the rest when some rows are taken out."""
        kept = np.ones(len(self.starts), np.bool_)
        kept[rows] = False
        sizes = np.diff(self.starts, append=len(self.data))
        begins = np.cumsum(np.where(kept, sizes, 0)) - sizes
        data = b"".join(map(self.row, np.flatnonzero(kept).tolist()))
        return _Good(data, begins[kept], self.offsets[kept], self.lines[kept])


def make_cells(
    batches: Sequence[Rows], columns: Sequence[str], text: CsvText, dialect: Dialect
) -> Cells:
    """Takes rows apart.

    Args:
        batches: Rows that follow each other.
        columns: Name of each column.
        text: What they come from.
        dialect: How it is written.

    Returns:
        The cells of good rows; rows that do not decode or have another number of cells are rejects
        as the bad ones are.

    Raises:
        RejectedError: The text cannot be read with this delimiter.
    """
    bad = _bad(batches)
    good, undecodable = _decode(_join(batches), text)
    # The columns go by number: names may be anything.
    table, numbers, texts = parse_rows(good.data, good.starts, len(columns), dialect)
    kept = np.ones(len(good.starts), np.bool_)
    kept[numbers] = False
    if table.num_rows != np.count_nonzero(kept):
        raise RuntimeError(f"{np.count_nonzero(kept)} rows were found and {table.num_rows} read")
    places = zip(good.offsets[numbers].tolist(), good.lines[numbers].tolist(), strict=True)
    wrong = [_ragged(row, *place) for row, place in zip(texts, places, strict=False)]
    others = numbers[len(texts) :]
    if len(others):
        wrong.append(more_rejects(good.offsets[others], good.lines[others], "ragged"))
    return Cells(
        {name: single(table.column(number)) for number, name in enumerate(columns)},
        good.offsets[kept],
        good.lines[kept],
        sorted([*bad, *undecodable, *wrong]),
    )


def more_rejects(offsets: Ints, lines: Ints, reason: str) -> RowReject:
    """Returns one reject that stands for several rows, which are not told one by one.

    Args:
        offsets: Where they begin, in order.
        lines: The line each begins in.
        reason: Why they are none.
    """
    first, last, count = int(lines[0]), int(lines[-1]), len(lines)
    message = f"line {first} and {count - 1:,} more rows up to line {last} are refused as {reason}"
    return RowReject(int(offsets[0]), first, reason, message, count)


def _bad(batches: Sequence[Rows]) -> list[RowReject]:
    """Returns rejects for what the structure refused."""
    found = ((rows.offset, row) for rows in batches for row in rows.bad)
    listed = [
        RowReject(offset + row.start, row.line, row.error, f"line {row.line} {row.message}")
        for offset, row in itertools.islice(found, MAX_LISTED)
    ]
    others: dict[str, tuple[list[int], list[int]]] = {}
    for offset, row in found:
        offsets, lines = others.setdefault(row.error, ([], []))
        offsets.append(offset + row.start)
        lines.append(row.line)
    more = [
        more_rejects(np.array(offsets), np.array(lines), error)
        for error, (offsets, lines) in others.items()
    ]
    return [*listed, *more]


def split_row(row: bytes, text: CsvText, dialect: Dialect) -> list[str]:
    """Returns the cells of one good row.

    Raises:
        RejectedError: It does not decode, or has more cells than a table should have columns.
    """
    most = row.count(text.syntax.delimiter) + 1
    if most > MAX_COLUMNS:
        message = f"its first row has more than {MAX_COLUMNS:,} cells"
        raise RejectedError("read", "header", message)
    wrong = wrong_byte(row, text.codec, text.encoding)
    if wrong >= 0:
        message = f"its first row has {_undecodable(wrong, text.encoding)}"
        raise RejectedError("read", "encoding", message)
    table = parse_first(row.decode(text.codec).encode() + b"\n", most, dialect)
    return [single(column)[0].as_py().decode() for column in table.itercolumns()]


def _join(batches: Sequence[Rows]) -> _Good:
    """Joins good rows, and leaves out the bad ones between them."""
    pieces: list[memoryview] = []
    none = np.zeros(0, np.int64)
    starts = [none]
    size = 0
    for rows in batches:
        begins = np.array([0, *(bad.end for bad in rows.bad)], np.int64)
        ends = np.array([*(bad.start for bad in rows.bad), len(rows.data)], np.int64)
        pieces += [rows.data[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
        behind = np.cumsum(ends - begins)
        shift = begins - behind + (ends - begins)  # bytes left out before each piece
        piece = np.searchsorted(begins, rows.starts, "right") - 1
        starts.append(rows.starts - shift[piece] + size)
        size += int(behind[-1])
    return _Good(
        b"".join(pieces),
        np.concatenate(starts),
        np.concatenate([none, *(rows.starts + rows.offset for rows in batches)]),
        np.concatenate([none, *(rows.lines for rows in batches)]),
    )


def _decode(good: _Good, text: CsvText) -> tuple[_Good, list[RowReject]]:
    """Returns rows in UTF-8, and rejects for those that do not decode."""
    try:
        return good._replace(data=_to_utf_8(good.data, text.codec)), []
    except UnicodeDecodeError:
        pass  # some rows hold such bytes; which ones is looked for now
    rejects: list[RowReject] = []
    rows: list[int] = []
    high = np.frombuffer(good.data, np.uint8) >= _ASCII_END
    for row in np.flatnonzero(np.logical_or.reduceat(high, good.starts)).tolist():
        wrong = wrong_byte(good.row(row), text.codec, text.encoding)
        if wrong < 0:
            continue
        rows.append(row)
        if len(rejects) < MAX_LISTED:
            line = int(good.lines[row])
            message = f"line {line} begins a row with {_undecodable(wrong, text.encoding)}"
            rejects.append(RowReject(int(good.offsets[row]), line, "encoding", message))
    if len(rows) > MAX_LISTED:
        others = rows[MAX_LISTED:]
        rejects.append(more_rejects(good.offsets[others], good.lines[others], "encoding"))
    good = good.without(rows)
    return good._replace(data=_to_utf_8(good.data, text.codec)), rejects


def _to_utf_8(data: bytes, codec: str) -> bytes:
    if codec != UTF_8:
        return data.decode(codec).encode()
    ends = pa.py_buffer(np.array([0, len(data)], np.int64))
    array = pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(data)])
    try:
        array.validate(full=True)  # ten times as fast as decoding
    except pa.ArrowInvalid:
        data.decode()
        raise
    return data


def _undecodable(byte: int, encoding: str) -> str:
    return (
        f"the byte 0x{byte:02x}, which does not decode as {encoding}: set --encoding to what the "
        "file is written in, such as latin-1, cp1252 or utf-16"
    )


def _ragged(row: csv.InvalidRow, offset: int, line: int) -> RowReject:
    cells = f"{row.actual_columns} cell{'' if row.actual_columns == 1 else 's'}"
    message = f"line {line} has {cells}, not {row.expected_columns}: {shown(row.text)}"
    return RowReject(offset, line, "ragged", message)
