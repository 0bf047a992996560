"""RowScanner: find the rows of CSV text that is read in blocks."""

from __future__ import annotations

from collections.abc import Iterator

from shardmill.transforms.sources.csv import row_bounds
from shardmill.transforms.sources.csv.quotes import Ending
from shardmill.transforms.sources.csv.row_bounds import Rows, Syntax, find_rows


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
        # Rescan only when the held text doubled (linear total time) or decides about a long row.
        deciding = row_bounds.MAX_ROW_BYTES + len(self._syntax.delimiter) + 2
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
        breaks = (data.find(b"\n"), data.find(b"\r"))
        at = min((offset for offset in breaks if offset >= 0), default=len(data))
        cut = data[at:] == b"\r" and ending == "more"  # a line feed may follow
        continues = at == len(data) or cut
        if not continues:
            at += 2 if data[at : at + 2] == b"\r\n" else 1
            self.line += 1
        self.offset += at
        return data[at:], continues
