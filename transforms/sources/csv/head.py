"""Read the heads of CSV files; reject those that another dialect reads better, naming its flags."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.errors import UsageError, format_names, format_value
from shardmill.schemas.refs import RejectedError
from shardmill.transforms.sources.csv.dialect import WHITESPACE, Dialect
from shardmill.transforms.sources.csv.row_ranges import RANGE_BYTES, Head, parse_head

_DELIMITERS = (",", ";", "\t", "|", "\x01", "\x1f", "^", WHITESPACE)
_FITTING = 0.9  # share of the first rows that must have the cells of the header
_FEW_BYTES = 64 << 10  # of rows that are read to try another dialect
_FEW_COLUMNS = 1_000  # with cells that are looked at
_MOST_NOTES = 20  # lines above a header
_QUOTED = r'^\s*"[^"]*"\s*$'
# What cells have that another dialect does not read right: quotes at an end, and between spaces
# those of another delimiter.
_BROKEN = r'^\s*"|"\s*$'
_BROKEN_BETWEEN_SPACES = rf"{_BROKEN}|^[,;|]|[,;|]$"
_RAW = "\x1f"  # a delimiter that no text has
_Read = Callable[[Dialect], Head]


def read_head(
    uri: str, dialect: Dialect, sample_bytes: int, range_bytes: int = RANGE_BYTES
) -> Head:
    """Read the column names and the first rows of a file.

    Args:
        uri: The file.
        dialect: Dialect of the file.
        sample_bytes: Approximate number of bytes of rows to read.
        range_bytes: See ``row_ranges.split_ranges``.

    Raises:
        FileNotFoundError: The file does not exist.
        RejectedError: It is not a CSV file, its column names are not valid, or another dialect
            reads it better.
        StorageError: The storage failed.
    """

    def read(other: Dialect) -> Head:
        return parse_head(uri, other, _FEW_BYTES)

    try:
        head = parse_head(uri, dialect, sample_bytes, range_bytes)
    except RejectedError as error:
        if not dialect.columns and error.error == "header":
            _explain_header(error, dialect, read)
        raise
    if not head.columns:
        return head

    if not dialect.columns:
        if len(head.columns) == 1:
            _check_delimiter(head, dialect, read)
        if dialect.header_mode == "first":
            _check_single_quotes(head, dialect, read)
            _check_notes(head, dialect, read)
    _check_quotes(head, dialect, read)
    return head


def _explain_header(error: RejectedError, dialect: Dialect, read: _Read) -> None:
    """Raise what names the delimiter of a header in quotes that another one reads.

    Raises:
        RejectedError: One does.
    """
    for other, head in _propose(_other_dialects(dialect), read):
        raise RejectedError(
            "read",
            "header",
            f"{error.message}, but with --delimiter={other.delimiter!r} it has "
            f"{len(head.columns)} columns: set that",
        ) from error


def _check_single_quotes(head: Head, dialect: Dialect, read: _Read) -> None:
    """Reject a file with single quotes around its names, or around delimiters in its rows."""
    names = [name.strip() for name in head.header]
    is_quoted = all(re.fullmatch("'.+'", name) for name in names)
    reason = ""
    if names and is_quoted:
        reason = f"its names are in single quotes, such as {format_value(names[0])}"
    elif len(names) > 1 and not _divides(head):
        begins = re.compile(rf"(^|{re.escape(dialect.separator)})'")
        is_quoted = any(map(begins.search, _raw_lines(dialect, read)))
        quoting = iter([replace(dialect, quote="'")])
        if is_quoted and any(_divides(other_head) for _, other_head in _try(quoting, read)):
            reason = "cells in single quotes have delimiters"
    if reason and dialect.quote == '"':
        raise RejectedError("read", "header", f'{reason}: set --quote="\'"')


def _other_dialects(dialect: Dialect) -> Iterator[Dialect]:
    """Yield the same with other delimiters; also with a space after each, as before quotes."""
    for delimiter in _DELIMITERS:
        if delimiter not in (dialect.delimiter_text, dialect.quote):
            yield replace(dialect, delimiter=delimiter)
            if delimiter != WHITESPACE:
                yield replace(dialect, delimiter=f"{delimiter} ")


def _fits(head: Head, dialect: Dialect) -> bool:
    """Return whether a dialect divides a file and reads its quotes.

    No cell has a part of the quotes of another.
    """
    if not _divides(head):
        return False
    broken = _BROKEN_BETWEEN_SPACES if dialect.delimiter_text == WHITESPACE else _BROKEN
    if any(re.search(broken, name) for name in head.header):
        return False
    columns = itertools.islice(head.cells.columns.values(), _FEW_COLUMNS)
    return not any(_matches(cells, broken).any() for cells in columns)


def _propose(
    dialects: Iterator[Dialect], read: _Read, least: int = 1
) -> list[tuple[Dialect, Head]]:
    """Return the dialects that divide a file; first those that read its quotes, too."""
    dividing = [pair for pair in _try(dialects, read) if _divides(pair[1], least)]
    reading = [(dialect, head) for dialect, head in dividing if _fits(head, dialect)]
    # The others are right, too: a cell may end in a quote as 5" does. If quotes follow spaces, the
    # next message says so.
    plain = [pair for pair in dividing if pair[0].delimiter_text in _DELIMITERS[:-1]]
    return [*reading, *plain]


def _divides(head: Head, least: int = 1) -> bool:
    """Return whether nearly all rows have the columns of the header, which are several."""
    rows = len(head.cells.offsets)
    return len(head.columns) > 1 and rows >= max(least, _FITTING * head.cells.rows)


def _matches(cells: pa.DictionaryArray, pattern: str) -> npt.NDArray[np.bool_]:
    """Return which cells a pattern is found in."""
    matches = pc.match_substring_regex(cells.dictionary, pattern).take(cells.indices)
    flags: npt.NDArray[np.bool_] = matches.to_numpy(zero_copy_only=False)
    return flags


def _try(dialects: Iterator[Dialect], read: _Read) -> Iterator[tuple[Dialect, Head]]:
    """Yield the heads that can be read, with their dialects."""
    for dialect in dialects:
        try:
            yield dialect, read(dialect)
        except RejectedError:
            continue


def _check_delimiter(head: Head, dialect: Dialect, read: _Read) -> None:
    """Reject a file of one column that another delimiter divides."""
    least = 1 if dialect.header_mode == "first" else 2
    for other, other_head in _propose(_other_dialects(dialect), read, least):
        raise RejectedError(
            "read",
            "header",
            f"with --delimiter={dialect.delimiter_text!r} it has the one column "
            f"{format_value(head.columns[0])}, but with --delimiter={other.delimiter!r} it has "
            f"{len(other_head.columns)}: set that, or name the one column with --columns and "
            "--header=first",
        )


def _check_notes(head: Head, dialect: Dialect, read: _Read) -> None:
    """Reject a file whose header is a few lines below its first one."""
    ragged = sum(reject.rows for reject in head.cells.rejects if reject.error == "ragged")
    is_ragged = ragged > len(head.cells.offsets)
    if is_ragged or _is_padded(head):
        delimiters = [dialect.delimiter_text]
    else:
        delimiters = _delimiters_below(head, dialect)
    spaced = [f"{delimiter} " for delimiter in delimiters if delimiter != WHITESPACE]
    for delimiter in (*delimiters, *spaced):
        lines = range(dialect.skip_lines + 1, dialect.skip_lines + _MOST_NOTES + 1)
        dialects = (replace(dialect, delimiter=delimiter, skip_lines=count) for count in lines)
        for other, other_head in _propose(dialects, read):
            is_header = _names_columns(other_head.header)
            if is_header and not _is_comment(other_head.header[0], head.header[0]):
                flags = f"--skip_lines={other.skip_lines}"
                if delimiter != dialect.delimiter_text:
                    flags += f" --delimiter={delimiter!r}"
                raise RejectedError(
                    "read",
                    "header",
                    f"its first row is {format_names(head.header)}, but with {flags} the header is "
                    f"{format_names(other_head.header)}: set that, or name the columns with "
                    "--columns",
                )


def _is_padded(head: Head) -> bool:
    """Return whether a spreadsheet filled up the rows above the header: a title, notes, or none."""
    rows = [[*head.header], *_first_rows(head)]
    names = next((n for n, row in enumerate(rows) if n and _names_columns(row)), 0)
    above = rows[:names]
    if not above or any(row[-1] for row in above):
        return False
    first = above[0]
    counts = [len(row) - row.count("") for row in above]
    # Several rows with values in a few columns may be those of a table.
    are_notes = len(above) > 1 and (max(counts) == 1 or 0 in counts)
    # A single one may be a header: an index, which is its first column, has no name.
    is_title = first[0] != "" and 1 < first.count("") >= len(first) / 2
    return are_notes or is_title or not any(first)


def _is_comment(text: str, first: str) -> bool:
    """Return whether a text begins like the first line of the file, with a sign such as ``#``."""
    mark = first[:1]
    return bool(mark) and not mark.isalnum() and text.startswith(mark)


def _delimiters_below(head: Head, dialect: Dialect) -> list[str]:
    """Return delimiters that the rows of the one column have as often as a row with names.

    Such a row must be followed by one with numbers: texts may be lists with delimiters.
    """
    if len(head.columns) > 1:
        return []
    rows = [head.columns[0], *(row[0] for row in _first_rows(head))]
    delimiters = []
    for delimiter in (candidate for candidate in _DELIMITERS if candidate != WHITESPACE):
        first = next((number for number, row in enumerate(rows) if delimiter in row), 0)
        names, *below = (row.split(delimiter) for row in rows[first:])
        alike = all(len(row) == len(names) for row in below)
        has_numbers = any(map(_is_number, itertools.chain.from_iterable(below)))
        if first and delimiter != dialect.delimiter_text and alike and has_numbers:
            delimiters.append(delimiter)
    return delimiters


def _first_rows(head: Head, most: int = _MOST_NOTES) -> Iterator[list[str]]:
    """Yield the cells of the first rows."""
    columns = [*head.cells.columns.values()]
    for number in range(min(len(head.cells.offsets), most)):
        yield [column[number].as_py().decode("utf-8", "replace") for column in columns]


def _names_columns(cells: Sequence[str]) -> bool:
    """Return whether a row may be a header: its cells are different texts."""
    names = {cell.strip() for cell in cells}
    return len(names) == len(cells) > 1 and "" not in names and not any(map(_is_number, names))


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _check_quotes(head: Head, dialect: Dialect, read: _Read) -> None:
    """Reject a file that has spaces between delimiters and quotes, which then have no meaning."""
    if dialect.quote != '"' or dialect.delimiter_text == WHITESPACE:
        return
    cell = _quoted_name_or_cell(head)
    if not cell:
        return
    # Where the quotes are a part of the text, the file has doubled ones instead.
    spaced = rf"(^|{re.escape(dialect.delimiter_text)})\s+{re.escape(cell.strip())}"
    if not any(re.search(spaced, line) for line in _raw_lines(dialect, read)):
        return
    flags = _flags_for_spaces(head, dialect, read)
    remedy = f"set {flags}, or " if flags else ""
    raise RejectedError(
        "read",
        "header",
        f"spaces before quotes make them a part of cells such as {cell!r}: {remedy}write the "
        "file without these spaces; with --quote= the quotes stay a part of the text",
    )


def _quoted_name_or_cell(head: Head) -> str:
    """Return a name with quotes, or a cell of a column in which most with a value have them."""
    name = next((name for name in head.header if re.match(_QUOTED, name)), "")
    columns = itertools.islice(head.cells.columns.values(), _FEW_COLUMNS)
    return name or next(filter(None, map(_quoted_cell, columns)), "")


def _quoted_cell(cells: pa.DictionaryArray) -> str:
    if not pc.any(pc.match_substring(cells.dictionary, '"')).as_py():
        return ""
    quoted = _matches(cells, _QUOTED)
    with_value = np.count_nonzero(_matches(cells, r"\S"))
    if not quoted.any() or 2 * np.count_nonzero(quoted) < with_value:
        return ""
    cell: bytes = cells[int(quoted.argmax())].as_py()
    return cell.decode("utf-8", "replace")


def _raw_lines(dialect: Dialect, read: _Read) -> Iterator[str]:
    """Yield the first lines of a file, in which neither quotes nor delimiters have a meaning."""
    raw = replace(dialect, delimiter=_RAW, quote="", columns=("line",), header="none")
    for _, head in _try(iter([raw]), read):
        for row in _first_rows(head, len(head.cells.offsets)):
            yield from row


def _flags_for_spaces(head: Head, dialect: Dialect, read: _Read) -> str:
    """Return flags that read a file with a space after each delimiter; empty if it is none."""
    spaced = replace(dialect, delimiter=f"{dialect.delimiter_text} ")
    flags = f"--delimiter={spaced.delimiter!r}"
    if any(_fits(other_head, spaced) for _, other_head in _try(iter([spaced]), read)):
        return flags
    # The header may have no spaces where the rows have them.
    names, lines = ",".join(map(_unquoted, head.header)), dialect.skip_lines + 1
    try:
        below = replace(spaced, columns=names, header="none", skip_lines=lines)
    except UsageError:  # names that --columns cannot give
        return ""
    if any(_fits(other_head, below) for _, other_head in _try(iter([below]), read)):
        return f"{flags} --columns={shlex.quote(names)} --skip_lines={lines}"
    return ""


def _unquoted(name: str) -> str:
    if re.match(_QUOTED, name):
        return name.strip().strip('"')
    return name
