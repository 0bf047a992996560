"""Find the quotes of CSV text that open and close cells; other quotes are ordinary characters.

Quotes usually alternate between opening and closing. That case is checked first, for all quotes at
once. Only a quote that breaks the alternation is examined individually, and the next relevant quote
is looked up in precomputed tables, so that the time is linear in the length of the text.
"""

from __future__ import annotations

from functools import cache, cached_property
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
        return self.breaks.item(number) if number < len(self.breaks) else -1


class Quotes(NamedTuple):
    """Quotes that open and close cells, and those that open a bad cell.

    Attributes:
        toggles: Offsets of quotes that alternately open and close; includes doubled quotes.
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
    classifier = _QuoteClassifier(text)
    return classifier.alternating() or classifier.ignoring_inner() or classifier.walk()


class _QuoteClassifier:
    """The quotes of a text and the bytes on both sides of each."""

    def __init__(self, text: TextBlock) -> None:
        view, quote = text.view, text.quote[0]
        self._text = text
        self.offsets: Ints = np.flatnonzero(view == quote)
        before = view[self.offsets - 1]
        if self.offsets[0] == 0:
            before[0] = LF
        after = np.append(view, np.uint8(LF))[self.offsets + 1]
        self._opens: Bools = self._is_edge(before)
        self._closes: Bools = self._is_edge(after)
        self._closes |= after == quote
        self._closes[np.searchsorted(self.offsets, text.sure - 1) :] = True
        self._doubled: Bools = before == quote

    def _is_edge(self, view: Bytes) -> Bools:
        edge: Bools = view == self._text.separator
        edge |= view == LF
        edge |= view == CR
        return edge

    @cached_property
    def _reopens(self) -> Bools:
        return self._opens | self._doubled

    def alternating(self) -> Quotes | None:
        """Return the quotes if all of them alternately open and close, else None."""
        valid = self._alternate(self._opens, self._closes, self._reopens)
        return Quotes(self.offsets, []) if valid else None

    def ignoring_inner(self) -> Quotes | None:
        """Return the quotes without those between ordinary characters, such as inch marks.

        None if the others do not alternate, or if one of the ignored quotes is inside quotes.
        """
        kept = self._reopens | self._closes
        valid = self._alternate(self._opens[kept], self._closes[kept], self._reopens[kept])
        quotes = Quotes(self.offsets[kept], [])
        return quotes if valid and not quotes.inside(self.offsets[~kept]).any() else None

    def _alternate(self, opens: Bools, closes: Bools, reopens: Bools) -> bool:
        if not len(opens):
            return True
        even = len(opens) % 2 == 0 or self._text.ending == "more"
        return bool(even and opens[0] and closes[1::2].all() and reopens[0::2].all())

    def walk(self) -> Quotes:
        """Return the quotes, resolving each one that breaks the alternation."""
        count, next_open = len(self.offsets), _next_set(self._opens)
        # Tables for the two cases that even or odd quotes open cells, on demand to save memory.
        next_breaking, cell_starts = cache(self._next_breaking), cache(self._cell_starts)
        kept = np.ones(count, np.bool_)
        bad: list[tuple[int, str]] = []
        at = 0  # index of a quote; the text before it is outside quotes
        while at < count:
            opener = next_open.item(at)
            kept[at:opener] = False  # ordinary characters
            if opener == count:
                break
            breaking = next_breaking(opener & 1).item(opener + 1)
            if breaking < count and not (breaking - opener) & 1:
                at = breaking  # an ordinary character: the cell before it was closed
                continue
            if breaking == count and (self._text.ending == "more" or not (count - opener) & 1):
                break
            at = self._recover(cell_starts(opener & 1).item(breaking - 1), breaking, kept, bad)
        return Quotes(self.offsets[kept], bad)

    def _recover(self, first: int, breaking: int, kept: Bools, bad: list[tuple[int, str]]) -> int:
        """Record a bad cell and return the first quote after the line that the cell starts in.

        Args:
            first: Index of the quote that opens the cell.
            breaking: Index of the quote that breaks the alternation.
            kept: bool[quotes], which quotes open and close cells; updated.
            bad: The bad cells before; updated.
        """
        offset = self.offsets.item(first)
        line_end = self._text.next_break(offset)
        if line_end < 0:
            kept[first:] = False
            if self._text.ending == "end":
                bad.append((offset, self._error(breaking, len(self._text.view))))
            return len(kept)
        bad.append((offset, self._error(breaking, line_end)))
        at = int(self.offsets.searchsorted(line_end))
        kept[first:at] = False
        return at

    def _error(self, breaking: int, line_end: int) -> str:
        # Depends on this line only: the text after it may be missing when the line is read again.
        closed = breaking < len(self.offsets) and self.offsets.item(breaking) < line_end
        return TEXT_AFTER_QUOTE if closed else NOT_CLOSED

    def _next_breaking(self, parity: int) -> Int32s:
        """Return, for each quote, the first quote from there on that breaks the alternation."""
        breaking = np.empty(len(self.offsets), np.bool_)
        breaking[parity::2] = ~self._reopens[parity::2]
        breaking[1 - parity :: 2] = ~self._closes[1 - parity :: 2]
        return _next_set(breaking)

    def _cell_starts(self, parity: int) -> Int32s:
        """Return, for each quote, the last quote up to it that opens a cell."""
        starts = np.zeros(len(self.offsets), np.int32)
        opens = ~self._doubled
        opens[1 - parity :: 2] = False
        np.copyto(starts, np.arange(len(starts), dtype=np.int32), where=opens)
        return np.maximum.accumulate(starts, out=starts)


def _next_set(flags: Bools) -> Int32s:
    """Return, for i = 0 … n, the first j >= i whose flag is set, or n; int32[n + 1]."""
    count = len(flags)
    indices = np.full(count + 1, count, np.int32)
    np.copyto(indices[:count], np.arange(count, dtype=np.int32), where=flags)
    return np.minimum.accumulate(indices[::-1], out=indices[::-1])[::-1]
