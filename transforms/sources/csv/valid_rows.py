"""ValidRows: rows of CSV text stored back to back, and what is changed in them before parsing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.quotes import CR, LF, Ints, read_quotes
from shardmill.transforms.sources.csv.row_bounds import Syntax, hide_escaped, prepare_text

_SPACE = ord(" ")


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
    rows: ValidRows, found: Mapping[int, int], columns: int, dialect: Dialect
) -> ValidRows:
    """Return the rows with empty cells at the end of those that are too short.

    Args:
        rows: The rows.
        found: Number of cells of each row that has not ``columns``.
        columns: Number of columns.
        dialect: Dialect of the rows.
    """
    separator, padded = dialect.separator.encode(), {}
    for number, cells in found.items():
        row = rows.row(number)
        body = row.rstrip(b"\r\n")
        if cells < columns and not (dialect.escape and body.endswith(dialect.escape.encode())):
            padded[number] = body + separator * (columns - cells) + row[len(body) :]
    return rows.replaced(padded)
