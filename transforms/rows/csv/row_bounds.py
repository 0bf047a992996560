r"""Which bytes are which row of CSV text, found in whole arrays.

The rules are those of RFC 4180 as Python's ``csv`` and Arrow read it: a quote opens only at the
start of a cell, two of them inside are one, quotes in a cell that began without one are ordinary
letters. A row ends at ``\n``, ``\r`` or ``\r\n`` outside of quotes; empty rows are none. A row is
bad where text stands between a closing quote and the next delimiter, where a quote is never
closed, and where it is longer than ``MAX_ROW_BYTES``. Of a row with a bad quote, the lines up to
that of the quote are one reject, and reading goes on behind them: what follows a quote that
somebody forgot to close is not lost.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.rows.csv.quotes import (
    CR,
    LF,
    NOT_CLOSED,
    Ending,
    Ints,
    Octets,
    Quotes,
    Text,
    read_quotes,
)

MAX_ROW_BYTES = 16 << 20
# What may stand in for a delimiter that is not one ASCII character.
_CONTROLS = tuple(bytes((byte,)) for byte in (31, 30, 29, 28, *range(1, 9), *range(14, 28), 127))
# What to do behind the rows that were found: wait for more, look again, or skip to the end of the
# line in which a row too long ends.
Next = Literal["wait", "again", "skip"]


class Syntax(NamedTuple):
    """What gives the text its structure, as the text's bytes hold it.

    Attributes:
        delimiter: One or more bytes.
        quote: One ASCII byte, or none.
    """

    delimiter: bytes
    quote: bytes


class BadRow(NamedTuple):
    """Lines that are no row.

    Attributes:
        start: Where they begin.
        end: Where the next row may begin.
        line: Number of the first line.
        error: Why, in one word: ``quote`` or ``too_large``.
        message: Why, as a sentence goes on that begins with the line.
    """

    start: int
    end: int
    line: int
    error: str
    message: str


class Rows(NamedTuple):
    """Rows that were found.

    Attributes:
        data: The bytes they stand in, with bad rows and empty ones between them.
        offset: Of the first of these bytes in the text.
        starts: Where each good row begins in ``data``.
        ends: The byte behind each, which is that of its line break.
        lines: The line each begins in.
        bad: The bad rows; their places count in ``data`` too.
        next_line: The line that begins behind ``data``.
    """

    data: memoryview
    offset: int
    starts: Ints
    ends: Ints
    lines: Ints
    bad: list[BadRow]
    next_line: int

    def row_starts(self) -> tuple[Ints, Ints]:
        """Returns where rows begin in the text, good and bad, and in which lines; in order."""
        if not self.bad:
            return self.starts + self.offset, self.lines
        starts = np.concatenate((self.starts, [row.start for row in self.bad]))
        lines = np.concatenate((self.lines, [row.line for row in self.bad]))
        order = np.argsort(starts)
        return starts[order] + self.offset, lines[order]

    def split(self, at: int, line: int) -> tuple[Rows, Rows]:
        """Returns the rows before an offset of the text, where a row begins, and the rest."""
        cut = at - self.offset
        row = int(np.searchsorted(self.starts, cut))
        bad = [entry for entry in self.bad if entry.start < cut]
        rest = [
            entry._replace(start=entry.start - cut, end=entry.end - cut)
            for entry in self.bad[len(bad) :]
        ]
        before = (self.starts[:row], self.ends[:row], self.lines[:row])
        behind = (self.starts[row:] - cut, self.ends[row:] - cut, self.lines[row:])
        head = Rows(self.data[:cut], self.offset, *before, bad, line)
        return head, Rows(self.data[cut:], at, *behind, rest, self.next_line)


def stand_in(data: bytes, delimiter: bytes) -> bytes:
    """Returns the ASCII byte that a delimiter is, or one that can stand for it in data.

    Raises:
        RejectedError: The data holds all that could.
    """
    if len(delimiter) == 1 and 0 < delimiter[0] < 128:
        return delimiter
    free = next((byte for byte in _CONTROLS if byte not in data), b"")
    if not free:
        raise RejectedError(
            "read",
            "not_csv",
            "it holds all control characters, so that none can stand for the delimiter "
            f"{delimiter.decode(errors='replace')!r}: write it with a delimiter of one ASCII "
            "character",
        )
    return free


def find_rows(
    data: bytes, syntax: Syntax, ending: Ending, offset: int = 0, line: int = 1
) -> tuple[Rows, Next]:
    """Finds the rows in text that begins where a row may begin.

    Args:
        data: The text.
        syntax: Its delimiter and quote.
        ending: Whether more follows. Where it does, the last row is left out until it is decided.
        offset: Of the data in the whole text.
        line: Number of its first line.

    Returns:
        The rows, and how to go on behind them: they end early at a row that is too long.

    Raises:
        RejectedError: The text cannot be read with this delimiter.
    """
    text = _prepare(data, syntax, ending)
    quotes = read_quotes(text)
    starts, ends, stop = _spans(text, quotes)
    then: Next = "wait"
    tail: list[BadRow] = []
    long = _first_long(text, starts, ends, stop, len(syntax.delimiter))
    if long >= 0:
        begin = int(np.append(starts, stop)[long])
        starts, ends = starts[:long], ends[:long]
        bad_row, then = _long_row(text, quotes, begin)
        tail, stop = [bad_row], bad_row.end
    bad = _bad_rows(text, quotes, starts, tail[0].start if tail else stop)
    good = ends > starts
    good[np.searchsorted(starts, [row.start for row in bad])] = False
    if not good.all():
        starts, ends = starts[good], ends[good]
    lines = line + np.searchsorted(text.breaks, starts)
    bad = [row._replace(line=line + row.line) for row in bad + tail]
    next_line = line + int(np.searchsorted(text.breaks, stop))
    found = Rows(memoryview(data)[:stop], offset, starts, ends, lines, bad, next_line)
    return found, then


def _prepare(data: bytes, syntax: Syntax, ending: Ending) -> Text:
    separator, width = stand_in(data, syntax.delimiter), len(syntax.delimiter)
    if separator != syntax.delimiter:
        data = data.replace(syntax.delimiter, separator * width)
    view = np.frombuffer(data, np.uint8)
    sure = len(data) - width + 1 if ending == "more" else len(data) + 1
    breaks = _line_breaks(data, view, ending)
    breaks = breaks[: np.searchsorted(breaks, sure)]
    return Text(data, view, separator[0], syntax.quote, sure, breaks, ending)


def _line_breaks(data: bytes, view: Octets, ending: Ending) -> Ints:
    """Returns where line breaks begin; one that may be cut at the end is left out."""
    if b"\r" not in data:
        return np.flatnonzero(view == LF)
    places = np.flatnonzero((view == LF) | (view == CR))
    kept = np.ones(len(places), np.bool_)
    kept[1:] = (np.diff(places) != 1) | (view[places[1:]] != LF) | (view[places[:-1]] != CR)
    if ending == "more" and view[-1] == CR:
        kept[-1] = False
    return places[kept]


def _behind(text: Text, breaks: Ints) -> Ints:
    """Returns the places behind line breaks."""
    behind = breaks + 1
    if b"\r" in text.data and len(breaks):
        after = text.view[np.minimum(behind, len(text.view) - 1)]
        behind += (text.view[breaks] == CR) & (after == LF)
    return behind


def _spans(text: Text, quotes: Quotes) -> tuple[Ints, Ints, int]:
    """Returns where rows begin and end, empty and bad ones too, and where the next one begins."""
    ends = text.breaks
    if len(quotes.toggles):
        ends = ends[~quotes.inside(ends)]
    starts = np.concatenate((np.zeros(1, np.int64), _behind(text, ends)))
    stop = int(starts[-1])
    if text.ending == "end" and stop < len(text.data):
        return starts, np.append(ends, len(text.data)), len(text.data)
    return starts[:-1], ends, stop


def _first_long(text: Text, starts: Ints, ends: Ints, stop: int, width: int) -> int:
    """Returns which row is the first that is too long, -1 where none is.

    One that has no end yet is so when all is known that decides what becomes of it.
    """
    over = np.flatnonzero(ends - starts > MAX_ROW_BYTES)
    if len(over):
        return int(over[0])
    return len(starts) if len(text.data) - stop > MAX_ROW_BYTES + width + 1 else -1


def _long_row(text: Text, quotes: Quotes, start: int) -> tuple[BadRow, Next]:
    """Returns what of a row that is too long is rejected, and how to go on.

    Where the limit is inside of quotes, these were probably never meant to go on so long.
    """
    limit = start + MAX_ROW_BYTES
    line = int(np.searchsorted(text.breaks, start))
    opened = quotes.toggles[np.searchsorted(quotes.toggles, start) :]
    opened = opened[: np.searchsorted(opened, limit)]
    if len(opened) % 2 == 0 and len(opened):
        # A pair of quotes that the limit parts closes nothing.
        parted = opened[-1] == limit - 1 and text.view[limit] == text.quote[0]
        opened = opened[: len(opened) - int(parted)]
    if len(opened) % 2:
        openers = opened[::2]
        doubled = (openers > start) & (text.view[openers - 1] == text.quote[0])
        line_end = text.break_behind(int(openers[~doubled][-1]))
        if 0 <= line_end <= limit:
            end = int(_behind(text, np.array([line_end]))[0])
            return BadRow(start, end, line, "quote", NOT_CLOSED), "again"
    message = f"begins a row of more than {MAX_ROW_BYTES:,} bytes"
    return BadRow(start, limit, line, "too_large", message), "skip"


def _bad_rows(text: Text, quotes: Quotes, starts: Ints, stop: int) -> list[BadRow]:
    """Returns the rows before a place that begin a bad cell."""
    bounds = np.append(starts, stop)
    places = np.array([place for place, _ in quotes.bad if place < stop], np.int64)
    rows = np.searchsorted(bounds, places, "right") - 1
    begins, ends = bounds[rows], bounds[rows + 1]
    lines = np.searchsorted(text.breaks, begins)
    return [
        BadRow(begin, end, line, "quote", message)
        for begin, end, line, (_, message) in zip(
            begins.tolist(), ends.tolist(), lines.tolist(), quotes.bad, strict=False
        )
    ]
