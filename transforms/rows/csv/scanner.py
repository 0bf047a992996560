"""Finds the rows of CSV text that comes in blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shardmill.transforms.rows.csv import row_bounds
from shardmill.transforms.rows.csv.quotes import CR, LF, Ending
from shardmill.transforms.rows.csv.row_bounds import Rows, Syntax, find_rows


class RowScanner:
    """Finds the rows of text that comes in blocks; how it is cut into them changes nothing.

    It holds what is not decided yet: the beginning of a row mostly, and never more than a row
    of the largest size and a block. A longer one is passed without being held.

    Attributes:
        offset: Of what is not decided yet in the text.
        line: Number of the line it begins in.
    """

    def __init__(self, syntax: Syntax, offset: int = 0, line: int = 1) -> None:
        self.offset = offset
        self.line = line
        self._syntax = syntax
        self._held: list[bytes] = []
        self._known = 0  # bytes held that were looked at
        self._new = 0
        self._skips = False  # to the end of a line

    def feed(self, block: bytes) -> Iterator[Rows]:
        """Yields rows that are decided now."""
        self._held.append(block)
        self._new += len(block)
        # A row is looked at again when twice of it is there, or all that decides about it.
        decides = row_bounds.MAX_ROW_BYTES + len(self._syntax.delimiter) + 2
        if self._new >= min(self._known, decides - self._known):
            yield from self._scan("more")

    def skim(self, block: bytes, limit: int) -> bool:
        """Passes over rows that are sure to begin before an offset, when none has quotes.

        Returns:
            Whether it did; else the block is still to be fed.
        """
        end = self.offset + sum(map(len, self._held)) + len(block)
        if self._skips or end > limit or end - self.offset > row_bounds.MAX_ROW_BYTES:
            return False
        if b"\n" not in block:
            return False
        data = b"".join((*self._held, block))
        if self._syntax.quote and self._syntax.quote in data:
            return False
        taken = data.rfind(b"\n") + 1
        self.line += _count_breaks(data, taken)
        self.offset += taken
        self._held, self._known, self._new = [data[taken:]], len(data) - taken, 0
        return True

    def flush(self) -> Iterator[Rows]:
        """Yields rows that are decided though the text may go on."""
        yield from self._scan("more")

    def finish(self) -> Iterator[Rows]:
        """Yields the rows that are left: the text is complete."""
        yield from self._scan("end")

    def _scan(self, ending: Ending) -> Iterator[Rows]:
        data = b"".join(self._held)
        while data:
            if self._skips:
                data, self._skips = self._skip(data, ending)
            if self._skips or not data:
                break
            rows, then = find_rows(data, self._syntax, ending, self.offset, self.line)
            taken = len(rows.data)
            self.offset, self.line = self.offset + taken, rows.next_line
            data = data[taken:]
            self._skips = then == "skip"
            if len(rows.starts) or rows.bad:
                yield rows
            if then == "wait":
                break
        self._held, self._known, self._new = [data], len(data), 0

    def _skip(self, data: bytes, ending: Ending) -> tuple[bytes, bool]:
        """Returns what of the data follows the line that it begins in, or whether to go on."""
        places = (data.find(b"\n"), data.find(b"\r"))
        at = min((place for place in places if place >= 0), default=len(data))
        cut = data[at:] == b"\r" and ending == "more"  # a line feed may follow
        goes_on = at == len(data) or cut
        if not goes_on:
            at += 2 if data[at : at + 2] == b"\r\n" else 1
            self.line += 1
        self.offset += at
        return data[at:], goes_on


def _count_breaks(data: bytes, size: int) -> int:
    """Returns the number of line breaks in the first bytes, which end with a line feed."""
    view = np.frombuffer(data, np.uint8, size)
    feeds = view == LF
    count = np.count_nonzero(feeds)
    if b"\r" in data:
        returns = view == CR
        count += np.count_nonzero(returns) - np.count_nonzero(returns[:-1] & feeds[1:])
    return int(count)
