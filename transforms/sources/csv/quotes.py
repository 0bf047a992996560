"""Find the quotes of CSV text that open and close cells; other quotes are ordinary characters.

Quotes usually alternate between opening and closing. That case is checked first, for all quotes at
once. Otherwise quotes that open cells are examined one by one. Adjacent quotes are one run then: an
odd number closes the cell, others are doubled quotes. The next run of each kind is looked up in
precomputed tables, so that the time is linear in the length of the text.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

LF, CR = 10, 13
Ending = Literal["more", "end"]  # whether more text follows the examined text
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

NOT_CLOSED = "a cell starts with a quote that is not closed"
TEXT_AFTER_QUOTE = "a cell has text between its closing quote and the next delimiter"


class TextBlock(NamedTuple):
    r"""Text that starts at a possible row start.

    Attributes:
        data: The bytes, with ``separator`` in place of each byte of a delimiter.
        view: The same bytes as an array.
        separator: The byte that separates cells.
        quote: One ASCII byte, or empty.
        sure: Bytes from this offset on may be the start of a delimiter cut at the end.
        breaks: Offsets of line breaks before ``sure``; ``\r\n`` counts as one.
        ending: Whether more text follows.
    """

    data: bytes
    view: Bytes
    separator: int
    quote: bytes
    sure: int
    breaks: Ints
    ending: Ending

    def next_break(self, offset: int) -> int:
        """Return the offset of the first line break at or after an offset, or -1."""
        number = int(self.breaks.searchsorted(offset))
        if number < len(self.breaks):
            return self.breaks.item(number)
        return -1


class Quotes(NamedTuple):
    """Quotes that open and close cells, and those that open a bad cell.

    Attributes:
        toggles: Offsets of quotes that alternately open and close; may include doubled quotes.
        bad: Offset of each quote that opens a bad cell, and the error message.
    """

    toggles: Ints
    bad: list[tuple[int, str]]

    def inside(self, offsets: Ints) -> Bools:
        """Return whether each offset is inside quotes."""
        result: Bools = (np.searchsorted(self.toggles, offsets) & 1).astype(np.bool_)
        return result


def read_quotes(text: TextBlock) -> Quotes:
    """Classify the quotes of a text.

    A cell is bad if text follows its closing quote, or if its quote is not closed before the end.
    Parsing resumes after the first line break behind the opening quote of a bad cell, as if a row
    started there.
    """
    if not text.quote or text.quote not in text.data:
        return Quotes(np.zeros(0, np.int64), [])
    view, quote = text.view, text.quote[0]
    offsets = np.flatnonzero(view == quote)
    before, after = view[offsets - 1], np.append(view, np.uint8(LF))[offsets + 1]
    if offsets[0] == 0:
        before[0] = LF
    first, last = before != quote, after != quote  # of adjacent quotes
    opens, closes = (
        (near == text.separator) | (near == LF) | (near == CR) for near in (before, after)
    )
    closes[np.searchsorted(offsets, text.sure - 1) :] = True
    # A quote next to another one may be half of a doubled quote, which ends one part of a cell and
    # starts the next: so each half may stand for either.
    starts, ends = opens | ~first, closes | ~last
    # Usually the first of each two quotes starts a part of a cell, and the other ends it.
    even = len(starts) % 2 == 0 or text.ending == "more"
    if even and starts[0::2].all() and ends[1::2].all():
        return Quotes(offsets, [])
    return _walk(text, offsets[first], offsets[last], opens[first], closes[last])


def _walk(text: TextBlock, first: Ints, last: Ints, opens: Bools, closes: Bools) -> Quotes:
    """Return the quotes, examining each run of adjacent quotes that opens a cell.

    Args:
        text: The text.
        first: Offset of the first quote of each run.
        last: Offset of the last quote of each run.
        opens: Whether a cell may start with the run.
        closes: Whether a cell may end with the run.
    """
    # Each step jumps from a run that opens a cell to the run that closes it, or to the next line
    # behind a bad cell: no run is examined twice, and those inside of cells never are.
    count, odd = len(first), (last - first) % 2 == 0
    next_open = _next_set(opens)
    # The run that closes a cell that each run opens; none after the end.
    closing = np.where(odd, _next_set(odd)[1:], np.arange(count, dtype=np.int32))
    valid = np.append(closes, text.ending == "more")[closing]
    openers: list[int] = []
    bad: list[tuple[int, str]] = []
    at = 0  # index of a run; the text before it is outside quotes
    while (opener := next_open.item(min(at, count))) < count:
        end = closing.item(opener)
        if valid.item(opener):
            openers.append(opener)
            at = end + 1
            continue
        offset = first.item(opener)
        line_end = text.next_break(offset)
        if line_end >= 0 or text.ending == "end":
            # Depends on this line only: the rest may be missing when the line is read again.
            if line_end < 0:
                line_end = len(text.view)
            closed = end < count and last.item(end) < line_end
            problem = TEXT_AFTER_QUOTE if closed else NOT_CLOSED
            bad.append((offset, problem))
        at = int(first.searchsorted(line_end)) if line_end >= 0 else count
    closings = closing[openers]
    toggles = np.concatenate((first[openers], last[closings[closings < count]]))
    return Quotes(np.sort(toggles), bad)


def _next_set(flags: Bools) -> Int32s:
    """Return, for i = 0 … n, the first j >= i whose flag is set, or n; int32[n + 1]."""
    count = len(flags)
    indices = np.full(count + 1, count, np.int32)
    np.copyto(indices[:count], np.arange(count, dtype=np.int32), where=flags)
    return np.minimum.accumulate(indices[::-1])[::-1]
