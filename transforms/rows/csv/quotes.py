"""Which quotes of CSV text open and close cells, and which are letters of them.

Quotes mostly open and close by turns. That is tried first, for all of them together; only one that
breaks the turn is looked at by itself, and what comes behind it is found in tables that are made
once, so that no text takes longer than its length.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

LF, CR = 10, 13
# Whether more of the text follows what is looked at.
Ending = Literal["more", "end"]
Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]
Bits = npt.NDArray[np.bool_]
Octets = npt.NDArray[np.uint8]

NOT_CLOSED = "opens a quote at the start of a cell that is not properly closed behind it"
TEXT_BEHIND = "has text between a closing quote and the next delimiter"


class Text(NamedTuple):
    r"""Text that begins where a row may begin.

    Attributes:
        data: Its bytes, with ``separator`` in the place of each byte of a delimiter.
        view: The same as an array.
        separator: The byte that separates cells.
        quote: One ASCII byte, or none.
        sure: From here on the next byte may be the first of a delimiter that is cut.
        breaks: Where line breaks begin, ``\r\n`` counting as one, before ``sure``.
        ending: Whether more follows.
    """

    data: bytes
    view: Octets
    separator: int
    quote: bytes
    sure: int
    breaks: Ints
    ending: Ending

    def break_behind(self, place: int) -> int:
        """Returns where the first line break behind a place begins, -1 where there is none."""
        number = int(self.breaks.searchsorted(place))
        return self.breaks.item(number) if number < len(self.breaks) else -1


class Quotes(NamedTuple):
    """Quotes that open and close, and those that open a cell which is bad.

    Attributes:
        toggles: Places of quotes that open or close, by turns; both of a doubled pair are of them.
        bad: Place of each quote that opens a bad cell, and what is the matter.
    """

    toggles: Ints
    bad: list[tuple[int, str]]

    def inside(self, places: Ints) -> Bits:
        """Tells of places whether they are inside of quotes."""
        result: Bits = (np.searchsorted(self.toggles, places) & 1).astype(np.bool_)
        return result


def read_quotes(text: Text) -> Quotes:
    """Returns what the quotes of a text do.

    A cell is bad when its quote is closed and text follows, or is not closed before the text's
    end. What follows the first line break behind such a quote is read as if a row began there.
    """
    if not text.quote or text.quote not in text.data:
        return Quotes(np.zeros(0, np.int64), [])
    turns = _Turns(text)
    return turns.by_turns() or turns.without_letters() or turns.walk()


class _Turns:
    """The quotes of a text, and what stands on both sides of each."""

    def __init__(self, text: Text) -> None:
        view, quote = text.view, text.quote[0]
        self._text = text
        self.places: Ints = np.flatnonzero(view == quote)
        before = view[self.places - 1]
        if self.places[0] == 0:
            before[0] = LF
        after = np.append(view, np.uint8(LF))[self.places + 1]
        self._opens: Bits = self._edge(before)
        self._closes: Bits = self._edge(after)
        self._closes |= after == quote
        self._closes[np.searchsorted(self.places, text.sure - 1) :] = True
        self._doubled: Bits = before == quote

    def _edge(self, letters: Octets) -> Bits:
        edge: Bits = letters == self._text.separator
        edge |= letters == LF
        edge |= letters == CR
        return edge

    @cached_property
    def _reopens(self) -> Bits:
        return self._opens | self._doubled

    def by_turns(self) -> Quotes | None:
        """Returns the quotes if all of them open and close, by turns; else None."""
        right = self._right(self._opens, self._closes, self._reopens)
        return Quotes(self.places, []) if right else None

    def without_letters(self) -> Quotes | None:
        """Returns the same for all quotes but those between letters, such as inch marks.

        They are letters too where they stand outside of quotes; else the answer is None.
        """
        kept = self._reopens | self._closes
        right = self._right(self._opens[kept], self._closes[kept], self._reopens[kept])
        quotes = Quotes(self.places[kept], [])
        return quotes if right and not quotes.inside(self.places[~kept]).any() else None

    def _right(self, opens: Bits, closes: Bits, reopens: Bits) -> bool:
        if not len(opens):
            return True
        even = len(opens) % 2 == 0 or self._text.ending == "more"
        return bool(even and opens[0] and closes[1::2].all() and reopens[0::2].all())

    def walk(self) -> Quotes:
        """Returns what the quotes do, stopping at each that breaks the turn."""
        count, next_open = len(self.places), _next(self._opens)
        kept = np.ones(count, np.bool_)
        bad: list[tuple[int, str]] = []
        at = 0  # outside of quotes
        while at < count:
            opener = next_open.item(at)
            kept[at:opener] = False  # letters
            if opener == count:
                break
            event = (self._odd_wrong if opener & 1 else self._even_wrong).item(opener + 1)
            if event < count and not (event - opener) & 1:
                at = event  # a letter too: the cell before it was closed
                continue
            if event == count and (self._text.ending == "more" or not (count - opener) & 1):
                break
            at = self._recover(opener, event, kept, bad)
        return Quotes(self.places[kept], bad)

    def _recover(self, opener: int, event: int, kept: Bits, bad: list[tuple[int, str]]) -> int:
        """Notes a bad cell and returns the first quote behind the line that it begins in."""
        first = (self._odd_starts if opener & 1 else self._even_starts).item(event - 1)
        place = self.places.item(first)
        line_end = self._text.break_behind(place)
        if line_end < 0:
            kept[first:] = False
            if self._text.ending == "end":
                bad.append((place, self._why(event, len(self._text.view))))
            return len(kept)
        bad.append((place, self._why(event, line_end)))
        at = int(self.places.searchsorted(line_end))
        kept[first:at] = False
        return at

    def _why(self, event: int, line_end: int) -> str:
        # Told from the line alone: text behind it may not be at hand when the line is read again.
        closed = event < len(self.places) and self.places.item(event) < line_end
        return TEXT_BEHIND if closed else NOT_CLOSED

    # Tables for each quote, for when even quotes open and when odd ones do; made when needed, in
    # numbers of half the size.

    @cached_property
    def _even_wrong(self) -> Numbers:
        return self._next_wrong(0)

    @cached_property
    def _odd_wrong(self) -> Numbers:
        return self._next_wrong(1)

    @cached_property
    def _even_starts(self) -> Numbers:
        return self._cell_starts(0)

    @cached_property
    def _odd_starts(self) -> Numbers:
        return self._cell_starts(1)

    def _next_wrong(self, turn: int) -> Numbers:
        """Returns the first quote from each on that breaks the turn."""
        wrong = np.empty(len(self.places), np.bool_)
        wrong[turn::2] = ~self._reopens[turn::2]
        wrong[1 - turn :: 2] = ~self._closes[1 - turn :: 2]
        return _next(wrong)

    def _cell_starts(self, turn: int) -> Numbers:
        """Returns the last quote up to each that opens a cell."""
        starts = np.zeros(len(self.places), np.int32)
        opens = ~self._doubled
        opens[1 - turn :: 2] = False
        np.copyto(starts, np.arange(len(starts), dtype=np.int32), where=opens)
        return np.maximum.accumulate(starts, out=starts)


def _next(flags: Bits) -> Numbers:
    """Returns for each place and the one behind the last where the next flag is, from there on."""
    count = len(flags)
    places = np.full(count + 1, count, np.int32)
    np.copyto(places[:count], np.arange(count, dtype=np.int32), where=flags)
    return np.minimum.accumulate(places[::-1], out=places[::-1])[::-1]
