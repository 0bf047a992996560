"""Read the heads of CSV files; reject those that another dialect reads better, naming its flags."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.errors import format_names, format_value
from shardmill.schemas.refs import RejectedError
from shardmill.transforms.sources.csv.dialect import WHITESPACE, Dialect
from shardmill.transforms.sources.csv.row_ranges import RANGE_BYTES, Head, parse_head

_DELIMITERS = (",", ";", "\t", "|", WHITESPACE)
_FITTING = 0.9  # share of the first rows that must have the cells of the header
_FEW_BYTES = 64 << 10  # of rows that are read to try another dialect
_FEW_COLUMNS = 1_000  # with cells that are looked at
_MOST_NOTES = 20  # lines above a header
_QUOTED = r'^\s+"[^"]*"\s*$'
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
            _check_notes(head, dialect, read)
            _check_single_quotes(head, dialect)
    _check_quotes(head, dialect, read)
    return head


def _explain_header(error: RejectedError, dialect: Dialect, read: _Read) -> None:
    """Raise what names the delimiter of a header in quotes that another one reads.

    Raises:
        RejectedError: One does.
    """
    others = (d for d in _DELIMITERS if d not in (dialect.delimiter_text, dialect.quote))
    for other, head in _try((replace(dialect, delimiter=d) for d in others), read):
        if _fits(head):
            raise RejectedError(
                "read",
                "header",
                f"{error.message}, but with --delimiter={other.delimiter!r} it has "
                f"{len(head.columns)} columns: set that",
            ) from error


def _check_single_quotes(head: Head, dialect: Dialect) -> None:
    """Reject a file whose names are in single quotes, which then are a part of all cells."""
    names = [name.strip() for name in head.header]
    is_quoted = all(re.fullmatch("'.+'", name) for name in names)
    if dialect.quote == '"' and names and is_quoted:
        raise RejectedError(
            "read",
            "header",
            f'its names are in single quotes, such as {format_value(names[0])}: set --quote="\'"',
        )


def _fits(head: Head, least: int = 1) -> bool:
    """Return whether nearly all rows have the columns of the header, which are several."""
    rows = len(head.cells.offsets)
    return len(head.columns) > 1 and rows >= max(least, _FITTING * head.cells.rows)


def _try(dialects: Iterator[Dialect], read: _Read) -> Iterator[tuple[Dialect, Head]]:
    """Yield the heads that can be read, with their dialects."""
    for dialect in dialects:
        try:
            yield dialect, read(dialect)
        except RejectedError:
            continue


def _check_delimiter(head: Head, dialect: Dialect, read: _Read) -> None:
    least = 1 if dialect.header_mode == "first" else 2
    others = (d for d in _DELIMITERS if d not in (dialect.delimiter_text, dialect.quote))
    for other, other_head in _try((replace(dialect, delimiter=d) for d in others), read):
        if _fits(other_head, least):
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
    unnamed = head.header.count("")
    # A title at the left, in a row that a spreadsheet filled up; an index has no name there.
    is_padded = head.header[0] != "" and 1 < unnamed >= len(head.header) / 2
    is_padded = is_padded and _names_columns(_row(head, 0))
    if is_ragged or is_padded:
        delimiters = [dialect.delimiter_text]
    else:
        delimiters = _delimiters_below(head, dialect)
    for delimiter in delimiters:
        lines = range(dialect.skip_lines + 1, dialect.skip_lines + _MOST_NOTES + 1)
        dialects = (replace(dialect, delimiter=delimiter, skip_lines=count) for count in lines)
        for other, other_head in _try(dialects, read):
            is_header = _fits(other_head) and _names_columns(other_head.header)
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
    rows = [head.columns[0], *(_row(head, number)[0] for number in range(_rows(head)))]
    delimiters = []
    for delimiter in (candidate for candidate in _DELIMITERS if candidate != WHITESPACE):
        first = next((number for number, row in enumerate(rows) if delimiter in row), 0)
        names, *below = (row.split(delimiter) for row in rows[first:])
        alike = all(len(row) == len(names) for row in below)
        has_numbers = any(map(_is_number, itertools.chain.from_iterable(below)))
        if first and delimiter != dialect.delimiter_text and alike and has_numbers:
            delimiters.append(delimiter)
    return delimiters


def _rows(head: Head) -> int:
    return min(len(head.cells.offsets), _MOST_NOTES)


def _row(head: Head, number: int) -> list[str]:
    """Return the cells of a row; none if there is no such row."""
    columns = [*head.cells.columns.values()]
    if number >= len(head.cells.offsets):
        return []
    return [column[number].as_py().decode("utf-8", "replace") for column in columns]


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
    delimiter = dialect.delimiter_text
    if dialect.quote != '"' or delimiter == WHITESPACE or delimiter.endswith(" "):
        return
    cell = _spaced_cell(head)
    if not cell:
        return
    flags = _flags_for_spaces(head, dialect, read)
    if flags or any(_spaced_cell(raw) for _, raw in _try(iter([replace(dialect, quote="")]), read)):
        remedy = f"set {flags}, or " if flags else ""
        raise RejectedError(
            "read",
            "header",
            f"spaces before quotes make them a part of cells such as {cell!r}: {remedy}write the "
            "file without these spaces; with --quote= the quotes stay a part of the text",
        )


def _spaced_cell(head: Head) -> str:
    """Return a name or cell with quotes after a space, if nearly all cells of a column are such.

    They may also be a part of the text, doubled in the quotes of the cell.
    """
    name = next((name for name in head.header if re.match(_QUOTED, name)), "")
    columns = itertools.islice(head.cells.columns.values(), _FEW_COLUMNS)
    return name or next(filter(None, map(_quoted_cell, columns)), "")


def _flags_for_spaces(head: Head, dialect: Dialect, read: _Read) -> str:
    """Return flags that read a file with a space after each delimiter; empty if it is none."""
    spaced = replace(dialect, delimiter=f"{dialect.delimiter_text} ")
    flags = f"--delimiter={spaced.delimiter!r}"
    # The header may have no spaces where the rows have them.
    lines = dialect.skip_lines + 1
    below = replace(spaced, columns=tuple(head.header), header="none", skip_lines=lines)
    flags_below = f"{flags} --columns={shlex.quote(','.join(head.header))} --skip_lines={lines}"
    for other, other_flags in ((spaced, flags), (below, flags_below)):
        if any(_fits(other_head) for _, other_head in _try(iter([other]), read)):
            return other_flags
    return ""


def _quoted_cell(cells: pa.DictionaryArray) -> str:
    """Return a cell with quotes after a space, if nearly all cells with a value are such."""
    if not len(cells):
        return ""
    first = cells[0].as_py().decode("utf-8", "replace")
    if not re.match(_QUOTED, first):
        return ""
    matches = pc.match_substring_regex(cells.dictionary, _QUOTED).take(cells.indices)
    fitting = pc.mean(matches.cast(pa.int8())).as_py()
    return first if fitting >= _FITTING else ""
