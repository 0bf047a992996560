"""Split CSV files into ranges that are read in parallel; read ranges and file heads."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from shardmill.schemas.errors import format_value
from shardmill.schemas.refs import RejectedError
from shardmill.schemas.text_file import UTF_8
from shardmill.transforms.sources.csv.cells import Cells, make_cells, split_row
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.row_bounds import BadRow, Rows, RowScanner
from shardmill.transforms.sources.csv.text import MAGIC_BYTES, CsvText, open_text

RANGE_BYTES = 8 << 20
TO_END = -1
_LINE_BREAK = re.compile(rb"\r\n|\r|\n")
_FILE_ERRORS = frozenset({"compressed", "too_large"})
_EXCEL = re.compile(r'"?sep=(.)"?[;,|\t]*', re.IGNORECASE)


class RowRange(NamedTuple):
    """A range of a file that is read independently.

    Attributes:
        start: Offset of a row in the file's text.
        end: End of its last row; -1 (``TO_END``) if the rest must be read as one stream.
        line: Number of the line at ``start``, from 1.
    """

    start: int
    end: int
    line: int


class Head(NamedTuple):
    """The header and first rows of a file.

    Attributes:
        columns: Name of each column; none for a file without rows. The last one is empty if rows
            end with a delimiter, and the header does not.
        cells: The first rows.
        seekable: Whether the file can be split into ranges.
        ranges: The ranges of the first rows; the last one has all other rows too, and is split by
            ``split_ranges``. None if there are no rows.
        header: Cells of the header that name the columns, also empty and repeated ones.
    """

    columns: tuple[str, ...]
    cells: Cells
    seekable: bool
    ranges: tuple[RowRange, ...]
    header: tuple[str, ...] = ()


def parse_head(
    uri: str, dialect: Dialect, sample_bytes: int, range_bytes: int = RANGE_BYTES
) -> Head:
    """Read the column names and the first rows of a file; see ``head.read_head``."""
    with open_text(uri, dialect) as text:
        text.check()
        header, columns, body = _find_body(text)
        first, ranges = read_first(text, body, sample_bytes, range_bytes)
        cells = make_cells(first, columns, text)
        return Head(columns, cells, text.seekable, ranges, header)


def read_first(
    text: CsvText, body: RowRange, sample_bytes: int, range_bytes: int = RANGE_BYTES
) -> tuple[list[Rows], tuple[RowRange, ...]]:
    """Read the first rows of a text; return them, and their ranges as in ``Head``.

    Args:
        text: The text.
        body: All its rows.
        sample_bytes: See ``head.read_head``.
        range_bytes: See ``split_ranges``.
    """
    # Rows are searched in blocks. The last one reaches beyond the sample: its rows are not
    # sampled, but one may start a range, which need not be searched again then.
    batches: list[Rows] = []
    end = body.start + sample_bytes
    for rows in scan_rows(text, body):
        batches.append(rows)
        if rows.row_starts()[0][-1] >= end:
            break
    if not batches:
        return [], ()
    ranges: Iterable[RowRange] = [body]
    if text.seekable:
        ranges = cut_ranges(batches, body._replace(end=text.size), range_bytes)
    if batches[0].row_starts()[0][0] < end:  # else long comments are before the first row
        batches = [rows.before(end) for rows in batches]
    return batches, tuple(ranges)


def split_ranges(
    uri: str, dialect: Dialect, ranges: Sequence[RowRange], range_bytes: int = RANGE_BYTES
) -> Iterator[RowRange]:
    """Yield the ranges of a file; a file without rows has none.

    A range ends at the first row that starts ``range_bytes`` or more after the start of the range,
    with rows as they are found when the file is read from its start. A file that cannot be read
    from the middle (compressed, or encoding not ASCII-compatible) is one range.

    Args:
        uri: The file.
        dialect: Dialect of the file.
        ranges: Ranges of its ``Head``. Of the file only the last one is read, if it is too long.
        range_bytes: See above.

    Raises:
        FileNotFoundError: The file does not exist.
        RejectedError: The compressed data is damaged.
        StorageError: The storage failed.
    """
    yield from ranges[:-1]
    for rest in ranges[-1:]:
        # No row that starts before its end can start another range.
        if 0 <= rest.end <= rest.start + range_bytes:
            yield rest
            continue
        with open_range(uri, dialect, rest) as text:
            # A text without an end is one that cannot be read from the middle.
            if rest.end == TO_END:
                # Damage is found at the end, when rows before it were written: look first.
                text.check_compression()
                yield rest
            else:
                yield from cut_ranges(scan_rows(text, rest), rest, range_bytes)


def read_range(
    uri: str, dialect: Dialect, row_range: RowRange, range_bytes: int = RANGE_BYTES
) -> Iterator[tuple[list[Rows], CsvText]]:
    """Yield the rows of a range, and their text.

    Args:
        uri: The file.
        dialect: Dialect of the file.
        row_range: The range.
        range_bytes: A range up to the end of the file is yielded in pieces of this size, or one
            that is up to a block larger.

    Raises:
        ChangedError: The file became shorter or was replaced.
        FileNotFoundError: The file does not exist.
        RejectedError: The text cannot be parsed with this delimiter.
        StorageError: The storage failed.
    """
    with open_range(uri, dialect, row_range) as text:
        batches = scan_rows(text, row_range)
        if row_range.end >= 0:
            yield [*batches], text
            return
        for rows in group_rows(batches, range_bytes):
            yield rows, text


def hash_range(uri: str, dialect: Dialect, row_range: RowRange) -> str:
    """Return the BLAKE3 of the text of a range, which the last of its cells have too.

    Raises:
        As ``read_range``.
    """
    with open_range(uri, dialect, row_range) as text:
        for _ in text.blocks(row_range.start, row_range.end):
            pass
        return text.hash.hexdigest()


def open_range(
    uri: str, dialect: Dialect, row_range: RowRange
) -> contextlib.AbstractContextManager[CsvText]:
    """Open the text of a range."""
    # A range of UTF-8 needs no detection; other encodings may be overridden by a byte order mark.
    is_utf_8 = row_range.end >= 0 and dialect.codec == UTF_8
    head_bytes = 0 if is_utf_8 else MAGIC_BYTES
    return open_text(uri, dialect, head_bytes)


def scan_rows(text: CsvText, row_range: RowRange) -> Iterator[Rows]:
    """Yield the rows of a range; if decompression fails, the last one is a bad row."""
    scanner = RowScanner(text.syntax, row_range.start, row_range.line)
    for block in text.blocks(row_range.start, row_range.end):
        yield from scanner.feed(block)
    if text.fault is None:
        yield from scanner.finish()
        return
    # The text ends at an arbitrary byte: its last row may be cut, and is not used.
    yield from scanner.finish("more")
    bad = BadRow(0, 0, scanner.line, "compressed", str(text.fault))
    none = np.zeros(0, np.int64)
    yield Rows(memoryview(b""), scanner.offset, none, none, none, [bad], scanner.line)


def group_rows(batches: Iterable[Rows], size: int) -> Iterator[list[Rows]]:
    """Yield rows in pieces of at least ``size`` bytes, except the last one."""
    piece: list[Rows] = []
    for rows in batches:
        piece.append(rows)
        if sum(len(batch.data) for batch in piece) >= size:
            yield piece
            piece = []
    if piece:
        yield piece


def cut_ranges(batches: Iterable[Rows], whole: RowRange, range_bytes: int) -> Iterator[RowRange]:
    """Yield the ranges of a range whose first rows, or all, are given; the last has the rest."""
    # Rows are found by reading from the start of the file, where quotes are known to be closed. A
    # guess of a row start in the middle would fail inside a cell with line breaks.
    start, _, line = whole
    for rows in batches:
        starts, lines = rows.row_starts()
        # Several ranges may begin in one block of rows.
        while (cut := int(np.searchsorted(starts, start + range_bytes))) < len(starts):
            yield RowRange(start, int(starts[cut]), line)
            start, line = int(starts[cut]), int(lines[cut])
    yield RowRange(start, whole.end, line)


def _find_body(text: CsvText) -> tuple[tuple[str, ...], tuple[str, ...], RowRange]:
    """Return the cells of the header, the column names, and the range of all rows after it."""
    dialect = text.dialect
    offset = _skip_lines(text, dialect.skip_lines)
    whole = RowRange(offset, TO_END, dialect.skip_lines + 1)
    first, bad = _first_row(text, whole)
    if first is None:
        if bad is not None:
            raise RejectedError("read", bad.error, f"line {bad.line}: {bad.message}")
        columns = dialect.columns if dialect.header_mode == "none" else ()
        return (), columns, whole
    start, end = int(first.starts[0]), int(first.ends[0])
    row = bytes(first.data[start:end])
    excel = _EXCEL.fullmatch(row.decode(text.codec, "replace"))
    if excel and not dialect.skip_lines:
        delimiter = {"\t": "tab"}.get(excel[1], f"'{excel[1]}'")
        raise RejectedError(
            "read",
            "header",
            f"its first line is {format_value(row)}, by which Excel knows the delimiter: set "
            f"--skip_lines=1 --delimiter={delimiter}, or delete the line",
        )
    header = split_row(row, text)
    header[0] = header[0].removeprefix("\ufeff")
    extra = _has_extra_delimiter(first, len(dialect.columns) or len(header), text)
    if dialect.header_mode == "none":
        return (), _name_columns(header[: len(header) - extra], dialect) + ("",) * extra, whole
    columns = _name_columns(header, dialect) + ("",) * extra
    following = bytes(first.data[end : end + 2])
    break_bytes = 2 if following == b"\r\n" else min(1, len(following))
    end += break_bytes
    line = int(first.lines[0]) + 1 + len(_LINE_BREAK.findall(row))
    names = () if dialect.columns else tuple(header)
    return names, columns, RowRange(first.offset + end, TO_END, line)


def _has_extra_delimiter(first: Rows, columns: int, text: CsvText) -> bool:
    """Return whether the first row of data ends with a delimiter after the cells of all columns."""
    number = int(text.dialect.header_mode == "first")
    if number >= len(first.starts):
        return False
    row = bytes(first.data[first.starts[number] : first.ends[number]])
    with contextlib.suppress(RejectedError):  # which only this row is then
        if row.endswith(text.syntax.delimiter):
            cells = split_row(row, text)
            return len(cells) == columns + 1 and not cells[-1]
    return False


def _first_row(text: CsvText, whole: RowRange) -> tuple[Rows | None, BadRow | None]:
    """Return rows that start with the header (or first valid row), else the bad row found."""
    # A header that cannot be read loses the names of all columns: the file is rejected. Without a
    # header, the first valid row gives the number of columns, and bad ones before it are rejects.
    first_bad: BadRow | None = None
    for rows in scan_rows(text, whole):
        bad = next(iter(rows.bad), None)
        if bad and text.dialect.header_mode == "first" and rows.row_starts()[1][0] == bad.line:
            if bad.error not in _FILE_ERRORS:
                bad = bad._replace(error="header")
            return None, bad
        if len(rows.starts):
            return rows, None
        first_bad = first_bad or bad
    if text.dialect.columns:
        return None, None
    return None, first_bad


def _name_columns(first: list[str], dialect: Dialect) -> tuple[str, ...]:
    """Return the column names, given the cells of the first row."""
    if dialect.columns:
        if len(first) != len(dialect.columns):
            raise RejectedError(
                "read",
                "header",
                f"its first row has {len(first)} cells and --columns {len(dialect.columns)} names: "
                "give one name per cell, or check --delimiter",
            )
        return dialect.columns
    names = first if dialect.header_mode == "first" else [""] * len(first)
    return make_unique(names)


def make_unique(names: Sequence[str]) -> tuple[str, ...]:
    """Replace empty and repeated names.

    The first column of a name keeps it, and the next ones are ``name_2``, ``name_3`` and so on; the
    column in place N without a name is ``column_N``. No made name is one of the given ones.
    """
    given, used = {*names}, dict[str, None]()
    numbers: dict[str, Iterator[int]] = defaultdict(lambda: itertools.count(2))
    for place, name in enumerate(names, 1):
        base = name or f"column_{place}"
        numbered = (f"{base}_{number}" for number in numbers[base])
        made = numbered if name else itertools.chain([base], numbered)
        free = (candidate for candidate in made if candidate not in given and candidate not in used)
        unique = name if name and name not in used else next(free)
        used[unique] = None
    return tuple(used)


def _skip_lines(text: CsvText, count: int) -> int:
    """Return the offset after ``count`` lines."""
    at = text.begin
    if not count:
        return at
    # Lines to skip are not CSV, such as a title: a quote in them has no meaning.
    held = b""  # a carriage return that a line feed may follow
    for block in text.blocks(at):
        data = held + block
        held = data[-1:] if data.endswith(b"\r") else b""
        data = data[: len(data) - len(held)]
        for line_break in _LINE_BREAK.finditer(data):
            count -= 1
            if not count:
                return at + line_break.end()
        at += len(data)
    return at + len(held)
