"""Taking rows apart with Arrow: good rows in, whole columns out, and the rows of another width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from shardmill.transforms.rows.csv.dialect import SHOWN, Dialect
from shardmill.transforms.rows.csv.quotes import Ints
from shardmill.transforms.rows.csv.row_bounds import stand_in

MAX_LISTED = 10_000  # bad rows of one range, of each kind, that are told one by one
_BOM = b"\xef\xbb\xbf"
_CELL = pa.dictionary(pa.int32(), pa.binary())


class _TooManyError(Exception):
    """More rows are of another width than are let pass."""


def parse_rows(
    data: bytes, starts: Ints, columns: int, dialect: Dialect
) -> tuple[pa.Table, Ints, list[csv.InvalidRow]]:
    """Returns the cells of rows of the right width, the numbers of the others, and some of these.

    Where very many rows are of another width, and no quotes are in the way, they are told apart by
    counting delimiters; Arrow would call back for each.

    Args:
        data: Rows in UTF-8.
        starts: int64[rows], where each begins.
        columns: How many cells a row should have.
        dialect: How they are written.
    """
    names = [str(number) for number in range(columns)]
    try:
        table, ragged = _parse(data, names, dialect, MAX_LISTED)
    except _TooManyError:
        return _parse_others(data, starts, names, dialect)
    return table, np.array([row.number - 1 for row in ragged], np.int64), ragged


def parse_first(row: bytes, most: int, dialect: Dialect) -> pa.Table:
    """Returns the cells of a row that tells how many columns there are.

    Args:
        row: The row in UTF-8.
        most: So many cells it has at most.
        dialect: How it is written.
    """
    names = [f"f{number}" for number in range(most)]  # Arrow's own
    return _parse(row, names, dialect, 0, csv.ReadOptions(autogenerate_column_names=True))[0]


def _parse_others(
    data: bytes, starts: Ints, names: list[str], dialect: Dialect
) -> tuple[pa.Table, Ints, list[csv.InvalidRow]]:
    delimiter = dialect.delimiter.encode()
    if len(delimiter) > 1 or (dialect.quote and dialect.quote.encode() in data):
        table, ragged = _parse(data, names, dialect, len(starts))
        return table, np.array([row.number - 1 for row in ragged], np.int64), ragged[:MAX_LISTED]
    places = np.flatnonzero(np.frombuffer(data, np.uint8) == delimiter[0])
    ends = np.append(starts[1:], len(data))
    widths = np.searchsorted(places, ends) - np.searchsorted(places, starts) + 1
    right = widths == len(names)
    wrong = np.flatnonzero(~right)
    bounds = zip(starts[right].tolist(), ends[right].tolist(), strict=True)
    table, _ = _parse(b"".join(data[a:b] for a, b in bounds), names, dialect, 0)
    told = [
        csv.InvalidRow(len(names), int(widths[row]), None, _shown(data, starts[row], ends[row]))
        for row in wrong[:MAX_LISTED].tolist()
    ]
    return table, wrong, told


def _shown(data: bytes, start: int, end: int) -> str:
    """Returns a row, or what messages show of a long one."""
    text = data[start : min(end, start + 4 * SHOWN + 4)].decode(errors="replace")
    return text.rstrip("\r\n")


def _parse(
    data: bytes,
    names: list[str],
    dialect: Dialect,
    most_ragged: int,
    options: csv.ReadOptions | None = None,
) -> tuple[pa.Table, list[csv.InvalidRow]]:
    """Returns the cells of rows of the right width, and the other rows.

    Args:
        data: Rows in UTF-8, all of them good.
        names: Names of the columns.
        dialect: How they are written.
        most_ragged: So many other rows are let pass.
        options: Where the first row tells how many columns there are.

    Raises:
        _TooManyError: There are more rows of another width.
    """
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
        if len(ragged) >= most_ragged:
            return "error"
        told = len(ragged) < MAX_LISTED  # of others only the number is wanted
        text = row.text.replace(separator.decode(), dialect.delimiter) if told else ""
        ragged.append(row._replace(text=text))
        return "skip"

    options = options or csv.ReadOptions(column_names=names)
    try:
        table = _read(data, names, separator, dialect, options, skip)
    except pa.ArrowInvalid as error:
        if 0 < most_ragged <= len(ragged):
            raise _TooManyError from error
        raise
    if separator != delimiter or dialect.strip:
        table = _mended(table, separator, dialect)
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


def single(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Returns a column in one piece."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _mended(table: pa.Table, separator: bytes, dialect: Dialect) -> pa.Table:
    """Returns cells with delimiters for what stood for them, stripped where that is wanted."""
    columns = []
    for column in table.itercolumns():
        cells = single(column)
        values = cells.dictionary
        if separator != dialect.delimiter.encode():
            values = pc.replace_substring(values, separator, dialect.delimiter.encode())
        if dialect.strip:
            values = pc.utf8_trim_whitespace(values.cast(pa.string())).cast(pa.binary())
        merged = pc.dictionary_encode(values)  # cells may be equal now that were not
        indices = merged.indices.take(cells.indices)
        columns.append(pa.DictionaryArray.from_arrays(indices, merged.dictionary))
    return pa.table(columns, names=table.column_names)
