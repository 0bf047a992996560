"""Parse rows into columns of cells with Arrow, and find rows with a wrong number of cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.quotes import Ints
from shardmill.transforms.sources.csv.row_bounds import choose_separator
from shardmill.transforms.tables import row_rejects

_BOM = b"\xef\xbb\xbf"
_CELL = pa.dictionary(pa.int32(), pa.binary())


def parse_rows(
    data: bytes, columns: int, dialect: Dialect
) -> tuple[pa.Table, Ints, list[csv.InvalidRow]]:
    """Return the cells of rows with ``columns`` cells, and which rows have another number.

    Args:
        data: Rows in UTF-8 without quoting errors.
        columns: Expected number of cells per row.
        dialect: Dialect of the rows.

    Returns:
        The cells; int64[n], indices of the ragged rows; details of the first of them.
    """
    names = [str(number) for number in range(columns)]
    return _parse(data, names, dialect, csv.ReadOptions(column_names=names))


def parse_first(row: bytes, max_cells: int, dialect: Dialect) -> pa.Table:
    """Return the cells of the row that decides the number of columns.

    Args:
        row: The row in UTF-8.
        max_cells: Upper bound of its number of cells.
        dialect: Dialect of the row.
    """
    names = [f"f{number}" for number in range(max_cells)]  # Arrow generates the same names
    return _parse(row, names, dialect, csv.ReadOptions(autogenerate_column_names=True))[0]


def _parse(
    data: bytes, names: Sequence[str], dialect: Dialect, options: csv.ReadOptions
) -> tuple[pa.Table, Ints, list[csv.InvalidRow]]:
    """Return what ``parse_rows`` does, for columns of these names."""
    ragged: list[int] = []
    listed: list[csv.InvalidRow] = []
    if not data:
        empty = pa.table({name: pa.array([], _CELL) for name in names})
        return empty, np.zeros(0, np.int64), listed
    delimiter = dialect.delimiter.encode()
    separator = choose_separator(data, delimiter)
    if separator != delimiter:
        data = data.replace(delimiter, separator)
    if data.startswith(_BOM):
        data = b"\n" + data  # else Arrow drops the character as a byte order mark

    def skip(row: csv.InvalidRow) -> str:
        ragged.append(row.number - 1)
        if len(listed) < row_rejects.MAX_LISTED:
            text = row.text.replace(separator.decode(), dialect.delimiter)
            listed.append(row._replace(text=text))
        return "skip"

    options.use_threads = False
    options.block_size = len(data) + 1
    table = csv.read_csv(
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
    if separator != delimiter or dialect.strip:
        table = _restore_delimiters(table, separator, dialect)
    return table, np.array(ragged, np.int64), listed


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
