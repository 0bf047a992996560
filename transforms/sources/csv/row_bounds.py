r"""Find the bounds of rows in CSV text with array operations.

The rules are those of RFC 4180 as Python's ``csv`` and Arrow implement it: a quote opens only at
the start of a cell, a doubled quote inside quotes is one character, and quotes in a cell that
starts without one are ordinary characters. A row ends at ``\n``, ``\r`` or ``\r\n`` outside
quotes; empty lines are skipped. A row is bad if text follows a closing quote, if a quote is not
closed, or if it is longer than ``MAX_ROW_BYTES``. A row with a bad quote is one reject up to the
end of the quote's line, and reading resumes after it: a missing closing quote does not discard
the rest of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from shardmill.schemas.refs import RejectedError
from shardmill.transforms.sources.csv.quotes import (
    CR,
    LF,
    NOT_CLOSED,
    Bytes,
    Ending,
    Ints,
    Quotes,
    TextBlock,
    read_quotes,
)

MAX_ROW_BYTES = 16 << 20
# May replace a delimiter that is not one ASCII character.
_CONTROLS = tuple(bytes((byte,)) for byte in (31, 30, 29, 28, *range(1, 9), *range(14, 28), 127))
# How the scanner continues: wait for more text, scan the rest again, or skip to the end of the
# line that a too long row reached.
NextStep = Literal["wait", "again", "skip"]


class Syntax(NamedTuple):
    """The dialect as bytes of the text.

    Attributes:
        delimiter: One or more bytes.
        quote: One ASCII byte, or empty.
        comment: Byte that starts lines that are skipped, or empty.
        escape: Byte that makes the next one an ordinary character, or empty.
        white_space: Whether a tab is a delimiter like the space.
    """

    delimiter: bytes
    quote: bytes
    comment: bytes = b""
    escape: bytes = b""
    white_space: bool = False


class BadRow(NamedTuple):
    """Lines that cannot be read as a row.

    Attributes:
        start: Offset of the first byte.
        end: Offset where the next row may start.
        line: Number of the first line.
        error: ``quote`` or ``too_large``, reasons of ``refs.REASONS``.
        message: The problem.
    """

    start: int
    end: int
    line: int
    error: str
    message: str


class Rows(NamedTuple):
    """Consecutive rows of a text.

    Attributes:
        data: The bytes of the rows and of empty lines, which are in place of bad ones and comments.
        offset: Offset of ``data`` in the text.
        starts: int64[rows], start of each valid row in ``data``.
        ends: int64[rows], end of each valid row, where its line break starts.
        lines: int64[rows], number of each valid row's first line.
        bad: The bad rows, with offsets in ``data``.
        next_line: Number of the line after ``data``.
    """

    data: memoryview
    offset: int
    starts: Ints
    ends: Ints
    lines: Ints
    bad: list[BadRow]
    next_line: int

    def row_starts(self) -> tuple[Ints, Ints]:
        """Return the offset in the text and the first line of all rows, valid or bad, in order."""
        if not self.bad:
            return self.starts + self.offset, self.lines
        starts = np.concatenate((self.starts, [row.start for row in self.bad]))
        lines = np.concatenate((self.lines, [row.line for row in self.bad]))
        order = np.argsort(starts)
        return starts[order] + self.offset, lines[order]

    def before(self, end: int) -> Rows:
        """Return the rows that start before an offset in the text."""
        starts, lines = self.row_starts()
        number = int(np.searchsorted(starts, end))
        if number == len(starts):
            return self
        cut = int(starts[number]) - self.offset
        row = int(np.searchsorted(self.starts, cut))
        valid = (self.starts[:row], self.ends[:row], self.lines[:row])
        bad = [entry for entry in self.bad if entry.start < cut]
        return Rows(self.data[:cut], self.offset, *valid, bad, int(lines[number]))


def choose_separator(data: bytes, delimiter: bytes) -> bytes:
    """Return the delimiter if it is one ASCII byte, else a control character not in the data.

    Raises:
        RejectedError: The data contains all control characters.
    """
    if len(delimiter) == 1 and 0 < delimiter[0] < 128:
        return delimiter
    free = next((byte for byte in _CONTROLS if byte not in data), b"")
    if not free:
        raise RejectedError(
            "read",
            "not_csv",
            "it contains all control characters, so that none can replace the delimiter "
            f"{delimiter.decode(errors='replace')!r}: use a delimiter of one ASCII character",
        )
    return free


def find_rows(
    data: bytes, syntax: Syntax, ending: Ending, offset: int = 0, line: int = 1
) -> tuple[Rows, NextStep]:
    """Find the rows in text that starts at a possible row start.

    Args:
        data: The text.
        syntax: Delimiter and quote.
        ending: Whether more text follows; if so, a row without an end is not returned.
        offset: Offset of the data in the whole text.
        line: Number of its first line.

    Returns:
        The rows, and how to continue; the rows end early at a row that is too long.

    Raises:
        RejectedError: The text cannot be parsed with this delimiter.
    """
    # All line breaks and quotes are found at once; a line break ends a row if an even number of
    # quotes that open or close a cell is before it.
    text = prepare_text(_hide_comments(hide_escaped(data, syntax), syntax), syntax, ending)
    quotes, breaks = read_quotes(text), text.breaks
    if syntax.escape:  # an escaped line break ends a line, but not a row
        breaks = _line_breaks(data, np.frombuffer(data, np.uint8), ending)
    starts, ends, stop = _spans(text, quotes)
    step: NextStep = "wait"
    tail: list[BadRow] = []
    long = _first_long(text, starts, ends, stop, len(syntax.delimiter))
    if long >= 0:
        # What follows a row that is too long was read as the continuation of its last cell, which
        # may be wrong: keep the rows before it, and let the scanner start again behind it.
        begin = int(np.append(starts, stop)[long])
        starts, ends = starts[:long], ends[:long]
        bad_row, step = _reject_long_row(text, quotes, begin)
        tail, stop = [bad_row], bad_row.end
    before = tail[0].start if tail else stop
    bad = _bad_rows(quotes, starts, before)
    # Empty lines are rows without bytes. A bad row starts where a row of the spans does.
    valid = ends > starts
    emptied = [(row.start, row.end) for row in bad + tail]
    if syntax.comment:
        comments = valid & (text.view[np.minimum(starts, len(data) - 1)] == syntax.comment[0])
        valid &= ~comments
        emptied += np.stack([starts, ends], 1)[comments].tolist()
    # Rows without bytes are skipped when cells are parsed, too. After a carriage return a line feed
    # would be the second half of a line break.
    data = _fill(data, emptied, CR)
    valid[np.searchsorted(starts, [row.start for row in bad])] = False
    if not valid.all():
        starts, ends = starts[valid], ends[valid]
    lines = line + np.searchsorted(breaks, starts)
    bad = [row._replace(line=line + int(breaks.searchsorted(row.start))) for row in bad + tail]
    next_line = line + int(np.searchsorted(breaks, stop))
    return Rows(memoryview(data)[:stop], offset, starts, ends, lines, bad, next_line), step


def _hide_comments(data: bytes, syntax: Syntax) -> bytes:
    """Return the text without the meaning of quotes in comments, which have none in quotes."""
    if not (syntax.comment and syntax.quote):
        return data
    line = b"^" + re.escape(syntax.comment) + rb"[^\r\n]*" + re.escape(syntax.quote) + rb"[^\r\n]*"
    spans, row = [], 0  # a start of a row before the line
    for match in re.finditer(line, data.replace(b"\r", b"\n"), re.MULTILINE):
        before = prepare_text(data[row : match.start()], syntax, "more")
        if len(read_quotes(before).toggles) % 2 == 0:
            spans.append(match.span())
            row = match.end()
    return _fill(data, spans, syntax.comment[0])


def _fill(data: bytes, bounds: Sequence[Sequence[int]], byte: int) -> bytes:
    """Return the text with a byte in place of each one within some bounds."""
    if not bounds:
        return data
    filled = bytearray(data)
    for start, end in bounds:
        filled[start:end] = bytes([byte]) * (end - start)
    return bytes(filled)


def hide_escaped(data: bytes, syntax: Syntax) -> bytes:
    """Return the text with ordinary characters in place of escaped ones, and of what escapes."""
    if not syntax.escape:
        return data
    return re.sub(re.escape(syntax.escape) + b".", b"__", data, flags=re.DOTALL)


def prepare_text(data: bytes, syntax: Syntax, ending: Ending) -> TextBlock:
    """Return a text in the form in which its quotes are found, with the same offsets."""
    if syntax.white_space:
        data = data.replace(b"\t", b" ")
    # A delimiter of several bytes becomes as many separators, which keeps all offsets.
    separator, width = choose_separator(data, syntax.delimiter), len(syntax.delimiter)
    if separator != syntax.delimiter:
        data = data.replace(syntax.delimiter, separator * width)
    view = np.frombuffer(data, np.uint8)
    sure = len(data) - width + 1 if ending == "more" else len(data) + 1
    breaks = _line_breaks(data, view, ending)
    breaks = breaks[: np.searchsorted(breaks, sure)]
    return TextBlock(data, view, separator[0], syntax.quote, sure, breaks, ending)


def _line_breaks(data: bytes, view: Bytes, ending: Ending) -> Ints:
    """Return the offsets of line breaks, without one that may be cut at the end."""
    if b"\r" not in data:
        return np.flatnonzero(view == LF)
    breaks = np.flatnonzero((view == LF) | (view == CR))
    kept = np.ones(len(breaks), np.bool_)
    # Of \r\n only the \r is kept; the start of the next row is moved behind the \n.
    kept[1:] = (np.diff(breaks) != 1) | (view[breaks[1:]] != LF) | (view[breaks[:-1]] != CR)
    if ending == "more" and view[-1] == CR:
        kept[-1] = False
    return breaks[kept]


def _line_starts(text: TextBlock, breaks: Ints) -> Ints:
    """Return the offsets after line breaks."""
    starts = breaks + 1
    if b"\r" in text.data and len(breaks):
        following = text.view[np.minimum(starts, len(text.view) - 1)]
        starts += (text.view[breaks] == CR) & (following == LF)
    return starts


def _spans(text: TextBlock, quotes: Quotes) -> tuple[Ints, Ints, int]:
    """Return starts and ends of all rows, empty and bad ones too, and the next row's start."""
    # Where quotes alternate, searchsorted gives for each line break the number of quotes before
    # it, and its lowest bit says whether the line break is in a cell.
    ends = text.breaks
    if len(quotes.toggles):
        ends = ends[~quotes.inside(ends)]
    starts = np.concatenate((np.zeros(1, np.int64), _line_starts(text, ends)))
    stop = int(starts[-1])
    if text.ending == "end" and stop < len(text.data):
        return starts, np.append(ends, len(text.data)), len(text.data)
    return starts[:-1], ends, stop


def _first_long(text: TextBlock, starts: Ints, ends: Ints, stop: int, width: int) -> int:
    """Return the index of the first row that is too long, or -1.

    A row without an end counts once enough text is known to decide how it is rejected.
    """
    over = np.flatnonzero(ends - starts > MAX_ROW_BYTES)
    if len(over):
        return int(over[0])
    # The bytes after the limit may be the second half of a doubled quote or of a delimiter, which
    # decide about the last cell: with them the result is the same however the text is divided.
    if len(text.data) - stop > MAX_ROW_BYTES + width + 1:
        return len(starts)
    return -1


def _reject_long_row(text: TextBlock, quotes: Quotes, start: int) -> tuple[BadRow, NextStep]:
    """Return the reject for a row that is too long, and how to continue.

    If the size limit falls inside quotes, the closing quote is probably missing.
    """
    limit = start + MAX_ROW_BYTES
    opened = quotes.toggles[np.searchsorted(quotes.toggles, start) :]
    opened = opened[: np.searchsorted(opened, limit)]
    if len(opened) % 2 == 0 and len(opened):
        # The limit is between the two halves of a doubled quote: the cell is not closed.
        cut = opened[-1] == limit - 1 and text.view[limit] == text.quote[0]
        opened = opened[: len(opened) - int(cut)]
    if len(opened) % 2:
        # The last quote that opens a cell before the limit is taken for the one that is not closed;
        # the second half of a doubled quote is in the list too, but opens nothing.
        openers = opened[::2]
        doubled = (openers > start) & (text.view[openers - 1] == text.quote[0])
        line_end = text.next_break(int(openers[~doubled][-1]))
        if 0 <= line_end <= limit:
            end = int(_line_starts(text, np.array([line_end]))[0])
            return BadRow(start, end, 0, "quote", NOT_CLOSED), "again"
    message = f"the row has more than {MAX_ROW_BYTES:,} bytes"
    return BadRow(start, limit, 0, "too_large", message), "skip"


def _bad_rows(quotes: Quotes, starts: Ints, stop: int) -> list[BadRow]:
    """Return the rows before ``stop`` that contain a bad cell."""
    bounds = np.append(starts, stop)
    offsets = np.array([offset for offset, _ in quotes.bad if offset < stop], np.int64)
    rows = np.searchsorted(bounds, offsets, "right") - 1
    begins, ends = bounds[rows], bounds[rows + 1]
    return [
        BadRow(begin, end, 0, "quote", message)
        for begin, end, (_, message) in zip(
            begins.tolist(), ends.tolist(), quotes.bad, strict=False
        )
    ]


class RowScanner:
    """Finds the rows of text that is fed in blocks; block bounds do not affect the result.

    It buffers the undecided rest of the text, at most a row of maximal size and a block. A row
    that is too long is skipped without being buffered.

    Attributes:
        offset: Offset of the undecided rest in the text.
        line: Number of the line at ``offset``.
    """

    def __init__(self, syntax: Syntax, offset: int = 0, line: int = 1) -> None:
        self.offset = offset
        self.line = line
        self._syntax = syntax
        self._held: list[bytes] = []
        self._scanned = 0  # held bytes that were scanned before
        self._new = 0
        self._skips = False  # whether text is skipped up to the end of a line

    def feed(self, block: bytes) -> Iterator[Rows]:
        """Add a block and yield the rows that are complete."""
        self._held.append(block)
        self._new += len(block)
        # An unfinished row must be scanned from its start again: a quote at its end may change it.
        # Rescan only when the held text doubled (linear total time) or decides about a long row.
        deciding = MAX_ROW_BYTES + len(self._syntax.delimiter) + 2
        if self._new >= min(self._scanned, deciding - self._scanned):
            yield from self.finish("more")

    def finish(self, ending: Ending = "end") -> Iterator[Rows]:
        """Yield the remaining rows; only those that are complete if ``ending`` is ``more``."""
        data = b"".join(self._held)
        while data:
            if self._skips:
                data, self._skips = self._skip(data, ending)
            if self._skips or not data:
                break
            rows, step = find_rows(data, self._syntax, ending, self.offset, self.line)
            taken = len(rows.data)
            self.offset, self.line = self.offset + taken, rows.next_line
            data = data[taken:]
            self._skips = step == "skip"
            if len(rows.starts) or rows.bad:
                yield rows
            if step == "wait":
                break
        self._held, self._scanned, self._new = [data], len(data), 0

    def _skip(self, data: bytes, ending: Ending) -> tuple[bytes, bool]:
        """Return the data after its first line, and whether that line continues."""
        # Quotes have no meaning here: the row was rejected, and the next line is a new start.
        breaks = (data.find(b"\n"), data.find(b"\r"))
        at = min((offset for offset in breaks if offset >= 0), default=len(data))
        cut = data[at:] == b"\r" and ending == "more"  # a line feed may follow
        continues = at == len(data) or cut
        if not continues:
            break_bytes = 2 if data[at : at + 2] == b"\r\n" else 1
            at += break_bytes
            self.line += 1
        self.offset += at
        return data[at:], continues
