"""Read CSV files with Shardmill and with Python's csv module."""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from shardmill.transforms.sources.csv.cells import Cells, make_cells
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.head import read_head
from shardmill.transforms.sources.csv.row_ranges import (
    RANGE_BYTES,
    RowRange,
    read_range,
    split_ranges,
)
from shardmill.transforms.tables.table_source import RowReject


class Reading(NamedTuple):
    """Everything that was read from a file."""

    columns: tuple[str, ...]
    rows: list[list[str]]
    offsets: list[int]
    lines: list[int]
    rejects: list[RowReject]

    def reasons(self) -> dict[str, int]:
        return dict(Counter(reject.error for reject in self.rejects))


def ranges_of(
    path: Path | str, dialect: Dialect, range_bytes: int = 1 << 20, sampled: int = 1
) -> list[RowRange]:
    """Return the ranges of a file of which so many bytes were sampled."""
    ranges = read_head(str(path), dialect, sampled, range_bytes).ranges
    return [*split_ranges(str(path), dialect, ranges, range_bytes)]


def read_cells(
    path: Path | str,
    dialect: Dialect,
    columns: Sequence[str],
    ranges: Sequence[RowRange],
    range_bytes: int = RANGE_BYTES,
) -> Iterator[Cells]:
    """Yield the cells of some ranges of a file."""
    for part in ranges:
        for rows, text in read_range(str(path), dialect, part, range_bytes):
            yield make_cells(rows, columns, text)


def read_csv(path: Path, dialect: Dialect | None = None, range_bytes: int = 1 << 20) -> Reading:
    """Read a file in ranges."""
    dialect = dialect or Dialect()
    columns = read_head(str(path), dialect, 1).columns
    reading = Reading(columns, [], [], [], [])
    ranges = ranges_of(path, dialect, range_bytes)
    for cells in read_cells(path, dialect, columns, ranges, range_bytes):
        assert tuple(cells.columns) == tuple(filter(None, columns))
        assert all(not column.null_count for column in cells.columns.values())
        texts = [
            [value.decode() for value in column.to_pylist()] for column in cells.columns.values()
        ]
        rows = [list(row) for row in zip(*texts, strict=True)]
        assert len(rows) == len(cells.offsets) == len(cells.lines)
        reading.rows.extend(rows)
        reading.offsets.extend(cells.offsets.tolist())
        reading.lines.extend(cells.lines.tolist())
        reading.rejects.extend(cells.rejects)
    return reading


def read_bytes(folder: Path, data: bytes, range_bytes: int = 1 << 20, **dialect) -> Reading:
    """Write a file and read it."""
    path = folder / "some.csv"
    path.write_bytes(data)
    return read_csv(path, Dialect(**dialect), range_bytes)


def python_rows(data: bytes | str, encoding: str = "utf-8-sig", **options) -> list[list[str]]:
    """Return the rows of Python's csv module, without empty ones."""
    csv.field_size_limit(1 << 30)
    text = data if isinstance(data, str) else data.decode(encoding)
    return [row for row in csv.reader(io.StringIO(text, newline=""), **options) if row]
