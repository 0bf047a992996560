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
        number = int(np.searchsorted(self.breaks, place))
        return int(self.breaks[number]) if number < len(self.breaks) else -1


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
    if turns.all_right():
        return Quotes(turns.places, [])
    return turns.walk()


class _Turns:
    """The quotes of a text, and what stands on both sides of each."""

    def __init__(self, text: Text) -> None:
        view, quote = text.view, text.quote[0]
        self._text = text
        self.places: Ints = np.flatnonzero(view == quote)
        before = view[self.places - 1]
        after = view[np.minimum(self.places + 1, len(view) - 1)]
        if self.places[0] == 0:
            before[0] = LF
        if self.places[-1] == len(view) - 1:
            after[-1] = LF
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

    def all_right(self) -> bool:
        """Tells whether all quotes open and close by turns, from the first to the last."""
        even = len(self.places) % 2 == 0 or self._text.ending == "more"
        return bool(
            even
            and self._opens[0]
            and self._closes[1::2].all()
            and (self._opens[0::2] | self._doubled[0::2]).all()
        )

    def walk(self) -> Quotes:
        """Returns what the quotes do, stopping at each that breaks the turn."""
        count, wrong = len(self.places), (self._next_wrong(0), self._next_wrong(1))
        next_open = _next(self._opens)
        kept = np.ones(count, np.bool_)
        bad: list[tuple[int, str]] = []
        at = 0  # outside of quotes
        while at < count:
            opener = next_open.item(at)
            kept[at:opener] = False  # letters
            if opener == count:
                break
            event = wrong[opener & 1].item(opener + 1)
            if event < count and not (event - opener) & 1:
                at = event  # a letter too: the cell before it was closed
                continue
            if event == count and (self._text.ending == "more" or not (count - opener) & 1):
                break
            at = self._recover(opener, event, kept, bad)
        return Quotes(self.places[kept], bad)

    def _recover(self, opener: int, event: int, kept: Bits, bad: list[tuple[int, str]]) -> int:
        """Notes a bad cell and returns the first quote behind the line that it begins in."""
        first = self._cell_starts[opener & 1].item(event - 1)
        place = self.places.item(first)
        line_end = self._text.break_behind(place)
        if line_end < 0:
            kept[first:] = False
            if self._text.ending == "end":
                bad.append((place, self._why(event, len(self._text.view))))
            return len(kept)
        bad.append((place, self._why(event, line_end)))
        at = int(np.searchsorted(self.places, line_end))
        kept[first:at] = False
        return at

    def _why(self, event: int, line_end: int) -> str:
        # Told from the line alone: text behind it may not be at hand when the line is read again.
        closed = event < len(self.places) and self.places.item(event) < line_end
        return TEXT_BEHIND if closed else NOT_CLOSED

    def _next_wrong(self, turn: int) -> Ints:
        """Returns for each quote the first from there that breaks the turn; ``turn`` ones open."""
        wrong = np.empty(len(self.places), np.bool_)
        wrong[turn::2] = ~self._reopens[turn::2]
        wrong[1 - turn :: 2] = ~self._closes[1 - turn :: 2]
        return _next(wrong)

    @cached_property
    def _cell_starts(self) -> tuple[Ints, Ints]:
        """For each quote the last up to there that opens a cell, when even or odd ones open."""
        numbers = np.arange(len(self.places))
        begins = np.where(self._doubled, 0, numbers)
        even = np.maximum.accumulate(np.where(numbers & 1, 0, begins))
        odd = np.maximum.accumulate(np.where(numbers & 1, begins, 0))
        return even, odd


def _next(flags: Bits) -> Ints:
    """Returns for each place and the one behind the last where the next flag is, from there on."""
    count = len(flags)
    places = np.full(count + 1, count)
    np.copyto(places[:count], np.arange(count), where=flags)
    result: Ints = np.minimum.accumulate(places[::-1])[::-1]
    return result
