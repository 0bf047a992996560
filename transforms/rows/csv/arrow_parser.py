"""Parse rows into columns of cells with Arrow, and find rows with a wrong number of cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from shardmill.transforms.rows.csv.dialect import MAX_SHOWN, Dialect
from shardmill.transforms.rows.csv.quotes import Ints
from shardmill.transforms.rows.csv.row_bounds import choose_separator

MAX_LISTED = 10_000  # bad rows of one range and kind that are reported individually
_BOM = b"\xef\xbb\xbf"
_CELL = pa.dictionary(pa.int32(), pa.binary())


class _TooManyError(Exception):
    """More rows have a wrong number of cells than are collected."""


def parse_rows(
    data: bytes, starts: Ints, columns: int, dialect: Dialect
) -> tuple[pa.Table, Ints, list[csv.InvalidRow]]:
    """Return the cells of rows with ``columns`` cells, and which rows have another number.

    If very many rows are ragged and no quotes interfere, delimiters are counted instead of a
    callback from Arrow for each row.

    Args:
        data: Rows in UTF-8.
        starts: int64[rows], offset of each row in ``data``.
        columns: Expected number of cells per row.
        dialect: Dialect of the rows.

    Returns:
        The cells; int64[n], indices of the ragged rows; details of the first of them.
    """
    names = [str(number) for number in range(columns)]
    try:
        table, ragged = _parse(data, names, dialect, MAX_LISTED)
    except _TooManyError:
        return _parse_many_ragged(data, starts, names, dialect)
    return table, np.array([row.number - 1 for row in ragged], np.int64), ragged


def parse_first(row: bytes, max_cells: int, dialect: Dialect) -> pa.Table:
    """Return the cells of the row that decides the number of columns.

    Args:
        row: The row in UTF-8.
        max_cells: Upper bound of its number of cells.
        dialect: Dialect of the row.
    """
    names = [f"f{number}" for number in range(max_cells)]  # Arrow generates the same names
    return _parse(row, names, dialect, 0, csv.ReadOptions(autogenerate_column_names=True))[0]


def _parse_many_ragged(
    data: bytes, starts: Ints, names: list[str], dialect: Dialect
) -> tuple[pa.Table, Ints, list[csv.InvalidRow]]:
    delimiter = dialect.delimiter.encode()
    if len(delimiter) > 1 or (dialect.quote and dialect.quote.encode() in data):
        table, ragged = _parse(data, names, dialect, len(starts))
        return table, np.array([row.number - 1 for row in ragged], np.int64), ragged[:MAX_LISTED]
    delimiters = np.flatnonzero(np.frombuffer(data, np.uint8) == delimiter[0])
    ends = np.append(starts[1:], len(data))
    widths = np.searchsorted(delimiters, ends) - np.searchsorted(delimiters, starts) + 1
    valid = widths == len(names)
    invalid = np.flatnonzero(~valid)
    bounds = zip(starts[valid].tolist(), ends[valid].tolist(), strict=True)
    table, _ = _parse(b"".join(data[a:b] for a, b in bounds), names, dialect, 0)
    listed = [
        csv.InvalidRow(len(names), int(widths[row]), None, _excerpt(data, starts[row], ends[row]))
        for row in invalid[:MAX_LISTED].tolist()
    ]
    return table, invalid, listed


def _excerpt(data: bytes, start: int, end: int) -> str:
    """Return the text of a row, or as much of a long one as messages show."""
    text = data[start : min(end, start + 4 * MAX_SHOWN + 4)].decode(errors="replace")
    return text.rstrip("\r\n")


def _parse(
    data: bytes,
    names: list[str],
    dialect: Dialect,
    max_ragged: int,
    options: csv.ReadOptions | None = None,
) -> tuple[pa.Table, list[csv.InvalidRow]]:
    """Return the cells of rows of the right width, and the ragged rows.

    Args:
        data: Rows in UTF-8 without quoting errors.
        names: Names of the columns.
        dialect: Dialect of the rows.
        max_ragged: Number of ragged rows to collect.
        options: Read options, if the first row decides the number of columns.

    Raises:
        _TooManyError: There are more ragged rows.
    """
    ragged: list[csv.InvalidRow] = []
    if not data:
        return pa.table({name: pa.array([], _CELL) for name in names}), ragged
    delimiter = dialect.delimiter.encode()
    separator = choose_separator(data, delimiter)
    if separator != delimiter:
        data = data.replace(delimiter, separator)
    if data.startswith(_BOM):
        data = b"\n" + data  # else Arrow drops the character as a byte order mark

    def skip(row: csv.InvalidRow) -> str:
        if len(ragged) >= max_ragged:
            return "error"
        listed = len(ragged) < MAX_LISTED  # only the number of further rows is used
        text = row.text.replace(separator.decode(), dialect.delimiter) if listed else ""
        ragged.append(row._replace(text=text))
        return "skip"

    options = options or csv.ReadOptions(column_names=names)
    try:
        table = _read(data, names, separator, dialect, options, skip)
    except pa.ArrowInvalid as error:
        if 0 < max_ragged <= len(ragged):
            raise _TooManyError from error
        raise
    if separator != delimiter or dialect.strip:
        table = _restore_delimiters(table, separator, dialect)
    return table, ragged


def _read(
    data: bytes, names: Sequence[str], separator: bytes, dialect: Dialect,
    options: csv.ReadOptions, skip: Callable[[csv.InvalidRow], str],
) -> pa.Table:  # fmt: skip
    options.use_threads = False
    options.block_size = len(data) + 1
    return csv.read_csv(
        pa.BufferReader(data),
        options,
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


def to_array(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return a chunked column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _restore_delimiters(table: pa.Table, separator: bytes, dialect: Dialect) -> pa.Table:
    """Return cells with the delimiter in place of the separator, stripped if the dialect says."""
    columns = []
    for column in table.itercolumns():
        cells = to_array(column)
        values = cells.dictionary
        if separator != dialect.delimiter.encode():
            values = pc.replace_substring(values, separator, dialect.delimiter.encode())
        if dialect.strip:
            values = pc.utf8_trim_whitespace(values.cast(pa.string())).cast(pa.binary())
        merged = pc.dictionary_encode(values)  # stripping may make cells equal
        indices = merged.indices.take(cells.indices)
        columns.append(pa.DictionaryArray.from_arrays(indices, merged.dictionary))
    return pa.table(columns, names=table.column_names)
