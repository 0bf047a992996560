"""Refusals: why rows do not fit, each told by itself up to a number, the others counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from shardmill.transforms.rows.csv.arrow import MAX_LISTED
from shardmill.transforms.rows.csv.cells import Cells, RowReject

Mask = npt.NDArray[np.bool_]


class Refusals:
    """Collects which rows of a range do not fit; the first reason of each row stands.

    Attributes:
        bad: Which rows do not fit; bool, shape [rows].
    """

    def __init__(self, rows: int) -> None:
        self.bad = np.zeros(rows, bool)
        self._reasons = np.zeros(rows, np.uint8)
        self._words: list[str] = []
        self._describers: list[Callable[[int], str]] = []
        self._describer = np.zeros(rows, np.int32)

    def add(
        self, bad: Mask, reasons: str | npt.NDArray[np.str_], describe: Callable[[int], str]
    ) -> None:
        """Adds rows that do not fit.

        Args:
            bad: Which; bool, shape [rows].
            reasons: Why: one reason for all, or one for each row; shape [rows].
            describe: Says what is wrong with a row, from its column's name on.
        """
        new = np.flatnonzero(bad & ~self.bad)
        if not len(new):
            return
        self.bad[new] = True
        self._describer[new] = len(self._describers)
        self._describers.append(describe)
        if isinstance(reasons, str):
            self._reasons[new] = self._word(reasons)
            return
        words, codes = np.unique(reasons[new], return_inverse=True)
        table = np.array([self._word(str(word)) for word in words], np.uint8)
        self._reasons[new] = table[codes]

    def _word(self, reason: str) -> int:
        if reason not in self._words:
            self._words.append(reason)
        return self._words.index(reason)

    def rejects(self, cells: Cells) -> list[RowReject]:
        """Returns the rejects of a range, those of its structure too, by place."""
        rows = np.flatnonzero(self.bad)
        listed, others = rows[:MAX_LISTED], rows[MAX_LISTED:]
        found = [*cells.rejects, *self._told(cells, listed)]
        groups = self._describer[others].astype(np.int64) << 8 | self._reasons[others]
        found += [self._sum(cells, others[groups == group]) for group in np.unique(groups)]
        return sorted(found)

    def _sum(self, cells: Cells, rows: npt.NDArray[np.int64]) -> RowReject:
        """Returns one reject that tells of the first row and counts all."""
        (first,) = self._told(cells, rows[:1])
        if len(rows) == 1:
            return first
        more = f"; so are {len(rows) - 1:,} more rows up to line {cells.lines[rows[-1]]}"
        return first._replace(message=first.message + more, rows=len(rows))

    def _told(self, cells: Cells, rows: npt.NDArray[np.int64]) -> Iterator[RowReject]:
        for row in rows.tolist():
            line = int(cells.lines[row])
            message = self._describers[self._describer[row]](row)
            reason = self._words[self._reasons[row]]
            yield RowReject(int(cells.offsets[row]), line, reason, f"line {line}, column {message}")
