"""Rows to cells: pyarrow takes the good rows apart, whole columns at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.rows.dialect import UTF_8, Dialect, shown
from shardmill.transforms.rows.quotes import Ints
from shardmill.transforms.rows.structure import Rows, stand_in
from shardmill.transforms.rows.text import CsvText, wrong_byte

MAX_COLUMNS = 100_000
_BOM = b"\xef\xbb\xbf"
_CELL = pa.dictionary(pa.int32(), pa.binary())
_ASCII_END = 128


class RowReject(NamedTuple):
    """A row that could not become cells, or a record.

    Attributes:
        offset: Of its first byte in the file's text.
        line: The line it begins in, from 1.
        error: A reason, one of ``rejects.REASONS``.
        message: One sentence with the line, and the column and value where there are some.
    """

    offset: int
    line: int
    error: str
    message: str


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
    bad = [
        RowReject(rows.offset + row.start, row.line, row.error, f"line {row.line} {row.message}")
        for rows in batches
        for row in rows.bad
    ]
    good, undecodable = _decode(_join(batches), text)
    # The columns go by number: names may be anything.
    table, ragged = _parse(good.data, [str(number) for number in range(len(columns))], dialect)
    numbers = np.array([row.number - 1 for row in ragged], np.int64)
    kept = np.ones(len(good.starts), np.bool_)
    kept[numbers] = False
    if table.num_rows != np.count_nonzero(kept):
        raise RuntimeError(f"{np.count_nonzero(kept)} rows were found and {table.num_rows} read")
    places = zip(good.offsets[numbers].tolist(), good.lines[numbers].tolist(), strict=True)
    wrong = [_ragged(row, *place) for row, place in zip(ragged, places, strict=True)]
    return Cells(
        {name: _single(table.column(number)) for number, name in enumerate(columns)},
        good.offsets[kept],
        good.lines[kept],
        sorted([*bad, *undecodable, *wrong]),
    )


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
    table, _ = _parse(row.decode(text.codec).encode() + b"\n", most, dialect)
    return [_single(column)[0].as_py().decode() for column in table.itercolumns()]


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
    rejects, rows = [], []
    high = np.frombuffer(good.data, np.uint8) >= _ASCII_END
    for row in np.flatnonzero(np.logical_or.reduceat(high, good.starts)).tolist():
        wrong = wrong_byte(good.row(row), text.codec, text.encoding)
        if wrong >= 0:
            line = int(good.lines[row])
            message = f"line {line} begins a row with {_undecodable(wrong, text.encoding)}"
            rejects.append(RowReject(int(good.offsets[row]), line, "encoding", message))
            rows.append(row)
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


def _parse(
    data: bytes, columns: Sequence[str] | int, dialect: Dialect
) -> tuple[pa.Table, list[csv.InvalidRow]]:
    """Returns the cells of rows of the right width, and the other rows.

    Args:
        data: Rows in UTF-8, all of them good.
        columns: Names, or how many there are at most, when the first row tells.
        dialect: How they are written.
    """
    most = columns if isinstance(columns, int) else 0
    names = [f"f{number}" for number in range(most)]  # Arrow's own
    if not isinstance(columns, int):
        names = list(columns)
    ragged: list[csv.InvalidRow] = []
    if not data:
        return pa.table({name: pa.array([], _CELL) for name in names}), ragged
    delimiter = dialect.delimiter.encode()
    separator = stand_in(data, delimiter)
    if separator != delimiter:
        data = data.replace(delimiter, separator)
    if data.startswith(_BOM):
        data = b"\n" + data  # else Arrow would take the letter for a byte order mark

    def skip(row: csv.InvalidRow) -> str:
        text = row.text.replace(separator.decode(), dialect.delimiter)
        ragged.append(row._replace(text=text))
        return "skip"

    table = csv.read_csv(
        pa.BufferReader(data),
        csv.ReadOptions(
            use_threads=False,
            block_size=len(data) + 1,
            column_names=None if most else names,
            autogenerate_column_names=most > 0,
        ),
        csv.ParseOptions(
            delimiter=separator.decode(),
            quote_char=dialect.quote or False,
            newlines_in_values=True,
            invalid_row_handler=skip,
        ),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, _CELL), strings_can_be_null=False, check_utf8=False
        ),
    )
    if separator != delimiter or dialect.strip:
        table = _mended(table, separator, dialect)
    return table, ragged


def _ragged(row: csv.InvalidRow, offset: int, line: int) -> RowReject:
    cells = f"{row.actual_columns} cell{'' if row.actual_columns == 1 else 's'}"
    message = f"line {line} has {cells}, not {row.expected_columns}: {shown(row.text)}"
    return RowReject(offset, line, "ragged", message)


def _single(column: pa.ChunkedArray) -> pa.DictionaryArray:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _mended(table: pa.Table, separator: bytes, dialect: Dialect) -> pa.Table:
    """Returns cells with delimiters for what stood for them, stripped where that is wanted."""
    columns = []
    for column in table.itercolumns():
        cells = _single(column)
        values = cells.dictionary
        if separator != dialect.delimiter.encode():
            values = pc.replace_substring(values, separator, dialect.delimiter.encode())
        if dialect.strip:
            values = pc.utf8_trim_whitespace(values.cast(pa.string())).cast(pa.binary())
        merged = pc.dictionary_encode(values)  # cells may be equal now that were not
        indices = merged.indices.take(cells.indices)
        columns.append(pa.DictionaryArray.from_arrays(indices, merged.dictionary))
    return pa.table(columns, names=table.column_names)
