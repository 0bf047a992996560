"""Parse the rows of a range into cells, and collect the rows that are rejected."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from shardmill.schemas.errors import format_value
from shardmill.schemas.refs import RejectedError
from shardmill.schemas.text_file import UTF_8
from shardmill.transforms.sources.csv import text_parser
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.quotes import CR, LF, Ints, read_quotes
from shardmill.transforms.sources.csv.row_bounds import (
    Rows,
    Syntax,
    choose_separator,
    hide_escaped,
    prepare_text,
)
from shardmill.transforms.sources.csv.text import (
    CsvText,
    undecodable_byte,
)
from shardmill.transforms.tables import table_source
from shardmill.transforms.tables.table_source import RejectCollector, RowReject

MAX_COLUMNS = 100_000
_BOM = b"\xef\xbb\xbf"
_SPACE = ord(" ")
_CELL = pa.dictionary(pa.int32(), pa.binary())


class ValidRows(NamedTuple):
    """Rows with valid quotes, stored back to back.

    Attributes:
        data: Bytes of the rows, and of empty lines between them.
        starts: int64[rows], offset of each row in ``data``.
        offsets: int64[rows], as in ``Cells``.
        lines: int64[rows], as in ``Cells``.
    """

    data: bytes
    starts: Ints
    offsets: Ints
    lines: Ints

    def row(self, number: int) -> bytes:
        """Return the bytes of a row, including its line break."""
        end = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.data)
        return self.data[self.starts[number] : end]

    def replaced(self, rows: Mapping[int, bytes]) -> ValidRows:
        """Return the rows with other bytes for some of them, in order; none leave out a row."""
        sizes = np.diff(self.starts, append=len(self.data))
        pieces, at = [], 0
        for number, row in rows.items():
            start = int(self.starts[number])
            pieces += [self.data[at:start], row]
            at, sizes[number] = start + int(sizes[number]), len(row)
        starts = self.starts[:1].sum() + np.cumsum(sizes) - sizes
        kept = sizes > 0
        data = b"".join([*pieces, self.data[at:]])
        return ValidRows(data, starts[kept], self.offsets[kept], self.lines[kept])


@dataclass(frozen=True)
class Cells:
    """The cells of some rows of one file.

    Attributes:
        columns: Cells of each column as dictionary<int32, binary>, in UTF-8, without nulls; an
            empty cell is ``b""``.
        offsets: int64[rows], offset of each row's first byte in the file's text: the file's bytes,
            decompressed, and converted to UTF-8 if the encoding is not ASCII-compatible.
        lines: int64[rows], number of each row's first line, from 1.
        rejects: Rejected rows, in order.
        content: BLAKE3 of the text from the start of the range to these rows.
    """

    columns: dict[str, pa.DictionaryArray]
    offsets: Ints
    lines: Ints
    rejects: list[RowReject]
    content: str = ""

    @property
    def rows(self) -> int:
        """Number of rows that were read, rejected ones included."""
        return len(self.offsets) + sum(reject.rows for reject in self.rejects)


NO_CELLS = Cells({}, np.zeros(0, np.int64), np.zeros(0, np.int64), [])


def make_cells(batches: Sequence[Rows], columns: Sequence[str], text: CsvText) -> Cells:
    """Parse rows into cells.

    Args:
        batches: Consecutive rows.
        columns: Name of each column; an empty last one if rows end with a delimiter.
        text: The text that contains the rows.

    Returns:
        The cells. Rows with broken quotes, undecodable bytes or a wrong number of cells are
        rejects.

    Raises:
        RejectedError: The text cannot be parsed with this delimiter.
    """
    dialect = text.dialect
    valid, undecodable = decode_rows(join_rows(batches), text)
    # Arrow sees the columns as numbers: names may be arbitrary.
    table, cell_counts, details = parse_rows(valid.data, len(columns), dialect)
    if cell_counts and dialect.pad_rows:
        padded = pad_rows(valid, cell_counts, len(columns), dialect)
        table, cell_counts, details = parse_rows(padded.data, len(columns), dialect)
    ragged = np.array([*cell_counts], np.int64)
    kept = np.ones(len(valid.starts), np.bool_)
    kept[ragged] = False
    offsets, lines = valid.offsets[ragged], valid.lines[ragged]
    rejects = _reject_rows(offsets, lines, "ragged", lambda row: _describe_ragged(details[row]))
    if table.num_rows != np.count_nonzero(kept):
        raise RuntimeError(f"Arrow read {table.num_rows} of {np.count_nonzero(kept)} rows")
    if "" in columns[-1:]:
        filled = pc.not_equal(pc.binary_length(table.column(len(columns) - 1).cast(pa.binary())), 0)
        rows = np.flatnonzero(kept)[text_parser.to_mask(filled.combine_chunks())]
        message = f"the row has {len(columns)} cells, not {len(columns) - 1}"
        offsets, lines = valid.offsets[rows], valid.lines[rows]
        rejects += _reject_rows(offsets, lines, "ragged", lambda _: message)
        table, kept[rows] = table.filter(pc.invert(filled)), False
    named = enumerate(filter(None, columns))
    return Cells(
        {name: to_array(table.column(number)) for number, name in named},
        valid.offsets[kept],
        valid.lines[kept],
        sorted([*list_bad_rows(batches), *undecodable, *rejects]),
        text.hash.hexdigest(),
    )


def _reject_rows(
    offsets: Ints, lines: Ints, reasons: str | np.ndarray, describe: Callable[[int], str]
) -> list[RowReject]:
    """Return rows as rejects; see ``RejectCollector``."""
    rejects = RejectCollector(offsets, lines)
    rejects.add(np.ones(len(offsets), np.bool_), reasons, "", describe)
    return rejects.rejects()


def list_bad_rows(batches: Sequence[Rows]) -> list[RowReject]:
    """Return the rejects of rows with broken quotes and of rows that are too long."""
    bad = [(rows.offset + row.start, row) for rows in batches for row in rows.bad]
    offsets = np.array([at for at, _ in bad], np.int64)
    lines = np.array([row.line for _, row in bad], np.int64)
    reasons = np.array([row.error for _, row in bad], np.str_)
    return _reject_rows(offsets, lines, reasons, lambda number: bad[number][1].message)


def split_row(row: bytes, text: CsvText) -> list[str]:
    """Return the cells of one row.

    Raises:
        RejectedError: The row does not decode, or has more than ``MAX_COLUMNS`` cells.
    """
    if text.syntax.white_space:
        start = np.zeros(1, np.int64)
        row = collapse_white_space(ValidRows(row, start, start, start), text.syntax).data
    max_cells = row.count(text.syntax.delimiter) + 1
    if max_cells > MAX_COLUMNS:
        message = f"its first row has more than {MAX_COLUMNS:,} cells"
        raise RejectedError("read", "header", message)
    byte = undecodable_byte(row, text.codec, text.encoding)
    if byte >= 0:
        message = f"its first row has {_describe_byte(byte, text.encoding)}"
        raise RejectedError("read", "encoding", message)
    line, dialect = row.decode(text.codec), text.dialect
    special = dialect.strip or dialect.escape or (dialect.quote and dialect.quote in line)
    if not special:
        return line.split(dialect.separator)  # Arrow takes long for many columns
    data = line.encode() + b"\n"
    table, cell_counts, _ = parse_rows(data, max_cells, dialect)
    if cell_counts:  # a delimiter in quotes is none
        table, *_ = parse_rows(data, cell_counts[0], dialect)
    return [to_array(column)[0].as_py().decode() for column in table.itercolumns()]


def join_rows(batches: Sequence[Rows]) -> ValidRows:
    """Concatenate the rows; empty lines are in place of the bad ones."""
    none = np.zeros(0, np.int64)
    sizes = itertools.accumulate((len(rows.data) for rows in batches), initial=0)
    starts = (rows.starts + size for rows, size in zip(batches, sizes, strict=False))
    return ValidRows(
        b"".join(rows.data for rows in batches),
        np.concatenate([none, *starts]),
        np.concatenate([none, *(rows.starts + rows.offset for rows in batches)]),
        np.concatenate([none, *(rows.lines for rows in batches)]),
    )


def decode_rows(valid: ValidRows, text: CsvText) -> tuple[ValidRows, list[RowReject]]:
    """Decode rows to UTF-8; return the rows, and rejects of undecodable ones."""
    try:
        return _in_utf_8(valid, text), []
    except UnicodeDecodeError:
        pass  # find the rows with undecodable bytes below
    rows = range(len(valid.starts))
    bad_bytes = ((row, undecodable_byte(valid.row(row), text.codec, text.encoding)) for row in rows)
    bad = {row: byte for row, byte in bad_bytes if byte >= 0}
    wrong = [*bad.values()]

    def describe(number: int) -> str:
        return f"the row has {_describe_byte(wrong[number], text.encoding)}"

    rejects = _reject_rows(valid.offsets[[*bad]], valid.lines[[*bad]], "encoding", describe)
    return _in_utf_8(valid.replaced(dict.fromkeys(bad, b"")), text), rejects


def _in_utf_8(valid: ValidRows, text: CsvText) -> ValidRows:
    characters = valid.data.decode(text.codec)
    if text.codec != UTF_8:
        valid = valid._replace(data=characters.encode())
    if text.syntax.white_space:
        return collapse_white_space(valid, text.syntax)
    return valid


def collapse_white_space(rows: ValidRows, syntax: Syntax) -> ValidRows:
    """Return rows with one space for each white space between cells, and none around them."""
    text = prepare_text(hide_escaped(rows.data, syntax), syntax, "end")
    at = np.flatnonzero(text.view == _SPACE)
    at = at[~read_quotes(text).inside(at)]
    if not len(at):
        return rows
    new = np.diff(at, prepend=-2) > 1
    firsts, ends = at[new], at[np.append(new[1:], True)] + 1
    breaks = np.isin(np.append(text.view, LF), (LF, CR))
    between = ~breaks[firsts - 1] & ~breaks[ends]
    kept = np.ones(len(text.view), np.bool_)
    kept[at] = False
    kept[firsts[between]] = True
    data = np.frombuffer(rows.data, np.uint8).copy()
    data[firsts] = _SPACE
    before: Ints = np.cumsum(kept) - kept
    empty = np.flatnonzero(np.add.reduceat(kept & ~breaks[:-1], rows.starts) == 0)
    collapsed = rows._replace(data=data[kept].tobytes(), starts=before[rows.starts])
    return collapsed.replaced(dict.fromkeys(empty.tolist(), b""))


def pad_rows(
    rows: ValidRows, cell_counts: Mapping[int, int], columns: int, dialect: Dialect
) -> ValidRows:
    """Append empty cells to rows that are too short.

    Args:
        rows: The rows.
        cell_counts: Number of cells of each row that has not ``columns``.
        columns: Number of columns.
        dialect: Dialect of the rows.
    """
    separator, padded = dialect.separator.encode(), {}
    for number, cells in cell_counts.items():
        row = rows.row(number)
        body = row.rstrip(b"\r\n")
        if cells < columns and not (dialect.escape and body.endswith(dialect.escape.encode())):
            padded[number] = body + separator * (columns - cells) + row[len(body) :]
    return rows.replaced(padded)


def _describe_byte(byte: int, encoding: str) -> str:
    return (
        f"the byte 0x{byte:02x}, which is not valid {encoding}: set --encoding to the encoding of "
        "the file, such as latin-1, cp1252 or utf-16"
    )


def _describe_ragged(row: csv.InvalidRow) -> str:
    noun = "cell" if row.actual_columns == 1 else "cells"
    text = format_value(row.text)
    return f"the row has {row.actual_columns} {noun}, not {row.expected_columns}: {text}"


def parse_rows(
    data: bytes, columns: int, dialect: Dialect
) -> tuple[pa.Table, dict[int, int], list[csv.InvalidRow]]:
    """Return the cells of rows with ``columns`` cells, and which rows have another number.

    Args:
        data: Rows in UTF-8 without quoting errors.
        columns: Expected number of cells per row.
        dialect: Dialect of the rows.

    Returns:
        The cells; the number of cells of each ragged row by its index; details of the first of
        them.
    """
    names = [str(number) for number in range(columns)]
    ragged: dict[int, int] = {}
    listed: list[csv.InvalidRow] = []
    if not data:
        empty = pa.table({name: pa.array([], _CELL) for name in names})
        return empty, ragged, listed
    delimiter = dialect.separator.encode()
    separator = choose_separator(data, delimiter)
    if separator != delimiter:
        data = data.replace(delimiter, separator)
    if data.startswith(_BOM):
        data = b"\n" + data  # else Arrow drops the character as a byte order mark

    def skip(row: csv.InvalidRow) -> str:
        ragged[row.number - 1] = row.actual_columns
        if len(listed) <= table_source.MAX_LISTED:  # the next one describes the others
            text = row.text.replace(separator.decode(), dialect.separator)
            listed.append(row._replace(text=text))
        return "skip"

    table = csv.read_csv(
        pa.BufferReader(data),
        csv.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
        csv.ParseOptions(
            delimiter=separator.decode(),
            quote_char=dialect.quote or False,
            escape_char=dialect.escape or False,
            newlines_in_values=True,
            invalid_row_handler=skip,
        ),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, _CELL), strings_can_be_null=False, check_utf8=False
        ),
    )
    if separator != delimiter or dialect.strip:
        table = _restore_delimiters(table, separator, dialect)
    return table, ragged, listed


def to_array(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return a chunked column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks()


def _restore_delimiters(table: pa.Table, separator: bytes, dialect: Dialect) -> pa.Table:
    """Return cells with the delimiter in place of the separator, stripped if the dialect says."""
    columns = []
    for column in table.itercolumns():
        cells = to_array(column)
        values = cells.dictionary
        if separator != dialect.separator.encode():
            values = pc.replace_substring(values, separator, dialect.separator.encode())
        if dialect.strip:
            values = pc.utf8_trim_whitespace(values.cast(pa.string())).cast(pa.binary())
        # Stripping may make cells equal.
        columns.append(values.take(cells.indices).dictionary_encode())
    return pa.table(columns, names=table.column_names)
