"""Ranges: the pieces of CSV files that are read side by side, and what begins a file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.rows.csv.cells import Cells, make_cells, split_row
from shardmill.transforms.rows.csv.dialect import UTF_8, Dialect, shown
from shardmill.transforms.rows.csv.row_bounds import BadRow, Rows
from shardmill.transforms.rows.csv.scanner import RowScanner
from shardmill.transforms.rows.csv.text import CsvText, open_text

RANGE_BYTES = 8 << 20
WHOLE = -1
_BREAK = re.compile(rb"\r\n|\r|\n")
_LETTER = re.compile(rb"[^\r\n]")
_OF_FILES = frozenset({"compressed", "too_large"})


class RowRange(NamedTuple):
    """A piece of a file that is read by itself.

    Attributes:
        start: Offset in the file's text where a row begins.
        end: Offset behind its last row; -1 where all that follows must be read as one stream.
        line: Number of the line at ``start``, from 1.
    """

    start: int
    end: int
    line: int


class Head(NamedTuple):
    """What begins a file.

    Attributes:
        columns: Name of each column; none for a file without rows.
        cells: The first rows.
        seekable: Whether the file can be cut into ranges.
        text_bytes: About how many bytes its text has, judged by what was read.
    """

    columns: tuple[str, ...]
    cells: Cells
    seekable: bool
    text_bytes: int


class _Body(NamedTuple):
    """Where the rows of a file begin, and what their columns are called."""

    columns: tuple[str, ...]
    offset: int
    line: int


def read_head(uri: str, dialect: Dialect, sample_bytes: int) -> Head:
    """Reads the names of the columns and the first rows of a file.

    Args:
        uri: The file.
        dialect: How it is written.
        sample_bytes: About how much text to read rows from.

    Raises:
        FileNotFoundError: It is not there.
        RejectedError: It is no CSV file, or its columns have no sound names.
        StorageError: The medium failed.
    """
    with open_text(uri, dialect) as text:
        text.check()
        body = _find_body(text, dialect)
        batches = _batches(text, RowRange(body.offset, WHOLE, body.line))
        rows = next(_pieces(batches, body.offset, sample_bytes), [])
        cells = make_cells(rows, body.columns, text, dialect)
        return Head(body.columns, cells, text.seekable, text.estimate())


def cut_ranges(uri: str, dialect: Dialect, range_bytes: int = RANGE_BYTES) -> Iterator[RowRange]:
    """Cuts a file into ranges; none for one without rows.

    A range ends where the first row begins that is ``range_bytes`` or more behind the range's own
    beginning, as it is found when the file is read from its start. What cannot be read from the
    middle (compressed files, and encodings without ASCII bytes) is one range.

    Raises:
        FileNotFoundError: It is not there.
        RejectedError: As from ``read_head``; or it is packed and damaged.
        StorageError: The medium failed.
    """
    with open_text(uri, dialect) as text:
        text.check()
        body = _find_body(text, dialect)
        begin = RowRange(body.offset, WHOLE, body.line)
        if text.seekable:
            yield from _cut(text, begin, range_bytes)
        elif any(True for _ in _batches(text, begin)):
            text.check_packing()
            yield begin


def read_range(
    uri: str,
    dialect: Dialect,
    columns: Sequence[str],
    part: RowRange,
    range_bytes: int = RANGE_BYTES,
) -> Iterator[Cells]:
    """Yields the cells of a range.

    Args:
        uri: The file.
        dialect: How it is written.
        columns: Name of each column, as from ``read_head``.
        part: The range.
        range_bytes: Where the range is all of a file that cannot be cut, it is cut here, by the
            same rule.

    Raises:
        ChangedError: The file became shorter, or was replaced.
        FileNotFoundError: It is not there.
        RejectedError: It cannot be read with this delimiter.
        StorageError: The medium failed.
    """
    # Only UTF-8 is cut without a look at the first bytes, which may say that it is UTF-8.
    head = b"" if part.end >= 0 and dialect.encoding == UTF_8 else None
    with open_text(uri, dialect, head) as text:
        batches = _batches(text, part)
        if part.end >= 0:
            yield make_cells(list(batches), columns, text, dialect)
            return
        for rows in _pieces(batches, part.start, range_bytes):
            yield make_cells(rows, columns, text, dialect)


def _batches(text: CsvText, part: RowRange) -> Iterator[Rows]:
    """Yields the rows of a range; where the text stops short, a bad row that says so is last."""
    scanner = RowScanner(text.syntax, part.start, part.line)
    for block in text.blocks(part.start, part.end):
        yield from scanner.feed(block)
    if text.fault is None:
        yield from scanner.finish()
        return
    yield from scanner.flush()
    end = BadRow(0, 0, scanner.line, text.fault.error, text.fault.message)
    none = np.zeros(0, np.int64)
    yield Rows(memoryview(b""), scanner.offset, none, none, none, [end], scanner.line)


def _pieces(batches: Iterator[Rows], start: int, size: int) -> Iterator[list[Rows]]:
    """Yields rows in pieces that are cut as ranges are."""
    piece: list[Rows] = []
    for batch in batches:
        rows = batch
        starts, lines = rows.row_starts()
        first = 0
        while (cut := first + int(np.searchsorted(starts[first:], start + size))) < len(starts):
            start = int(starts[cut])
            before, rows = rows.split(start, int(lines[cut]))
            if piece or cut > first:
                yield [*piece, before]
            piece, first = [], cut
        piece.append(rows)
    if piece:
        yield piece


def _cut(text: CsvText, begin: RowRange, range_bytes: int) -> Iterator[RowRange]:
    scanner = RowScanner(text.syntax, begin.start, begin.line)
    start, line, any_row = begin.start, begin.line, False
    for block in itertools.chain(text.blocks(start), [b""]):
        any_row = any_row or _LETTER.search(block) is not None
        if block and scanner.skim(block, start + range_bytes):
            continue
        for rows in scanner.feed(block) if block else scanner.finish():
            starts, lines = rows.row_starts()
            while (cut := int(np.searchsorted(starts, start + range_bytes))) < len(starts):
                yield RowRange(start, int(starts[cut]), line)
                start, line = int(starts[cut]), int(lines[cut])
    if any_row:
        yield RowRange(start, text.size, line)


def _find_body(text: CsvText, dialect: Dialect) -> _Body:
    offset = _behind_lines(text, dialect.skip_lines)
    begin = RowRange(offset, WHOLE, dialect.skip_lines + 1)
    first, bad = _first_row(text, begin, dialect)
    if first is None:
        if bad is not None:
            message = f"line {bad.line} {bad.message}"
            raise RejectedError("read", bad.error, message)
        columns = dialect.columns if dialect.header == "none" else ()
        return _Body(columns, begin.start, begin.line)
    start, end = int(first.starts[0]), int(first.ends[0])
    row = bytes(first.data[start:end])
    columns = _name_columns(split_row(row, text, dialect), dialect)
    if dialect.header == "none":
        return _Body(columns, begin.start, begin.line)
    behind = bytes(first.data[end : end + 2])
    end += 2 if behind == b"\r\n" else min(1, len(behind))
    line = int(first.lines[0]) + 1 + len(_BREAK.findall(row))
    return _Body(columns, first.offset + end, line)


def _first_row(
    text: CsvText, begin: RowRange, dialect: Dialect
) -> tuple[Rows | None, BadRow | None]:
    """Returns rows that begin with the header, or the first good row where there is none.

    The second is what stands in its place when there is no such row.
    """
    first_bad: BadRow | None = None
    for rows in _batches(text, begin):
        bad = next(iter(rows.bad), None)
        if bad and dialect.header == "first" and rows.row_starts()[1][0] == bad.line:
            return None, bad if bad.error in _OF_FILES else bad._replace(error="header")
        if len(rows.starts):
            return rows, None
        first_bad = first_bad or bad
    return None, None if dialect.columns else first_bad


def _name_columns(first: list[str], dialect: Dialect) -> tuple[str, ...]:
    """Returns the names of the columns, given the cells of the first row."""
    if dialect.columns:
        if len(first) != len(dialect.columns):
            raise RejectedError(
                "read",
                "header",
                f"its first row has {len(first)} cells and --columns {len(dialect.columns)} names: "
                "give one name for each, or check --delimiter",
            )
        return dialect.columns
    names = first if dialect.header == "first" else [""] * len(first)
    names[0] = names[0].removeprefix("\ufeff")
    names = [name or f"column_{number}" for number, name in enumerate(names, 1)]
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise RejectedError(
                "read",
                "header",
                f"its header has two columns called {shown(name)}: name all columns with "
                "--columns, or say --header=none if the first row is data",
            )
        seen.add(name)
    return tuple(names)


def _behind_lines(text: CsvText, count: int) -> int:
    """Returns the offset behind a number of lines."""
    at = text.begin
    if not count:
        return at
    held = b""  # a carriage return that a line feed may follow
    for block in text.blocks(at):
        data = held + block
        held = data[-1:] if data.endswith(b"\r") else b""
        data = data[: len(data) - len(held)]
        for found in _BREAK.finditer(data):
            count -= 1
            if not count:
                return at + found.end()
        at += len(data)
    return at + len(held)
