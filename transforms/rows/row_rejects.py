"""RejectCollector: collect the rows of a range that do not fit the schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardmill.transforms.rows.csv.arrow_parser import MAX_LISTED
from shardmill.transforms.rows.csv.cells import Cells, RowReject

Mask = npt.NDArray[np.bool_]


class _Check(NamedTuple):
    """One check that rows failed: the column, and the message for a row."""

    column: str
    describe: Callable[[int], str]


class RejectCollector:
    """Collects rows that are rejected; a row keeps the first reason it got.

    The first ``MAX_LISTED`` rows are reported individually, the others are counted.

    Attributes:
        bad: bool[rows], which rows are rejected.
    """

    def __init__(self, rows: int) -> None:
        self.bad = np.zeros(rows, bool)
        self._reasons: list[str] = []
        self._reason_ids = np.zeros(rows, np.uint8)
        self._checks: list[_Check] = []
        self._check_ids = np.zeros(rows, np.int32)

    def add(
        self,
        bad: Mask,
        reasons: str | npt.NDArray[np.str_],
        column: str,
        describe: Callable[[int], str],
    ) -> None:
        """Add the rows that failed a check.

        Args:
            bad: bool[rows], which rows failed.
            reasons: One reason for all rows, or an array with a reason per row, shape [rows].
            column: Name of the column that was checked.
            describe: Returns what is wrong with a row, given its index.
        """
        new = np.flatnonzero(bad & ~self.bad)
        if not len(new):
            return
        self.bad[new] = True
        self._check_ids[new] = len(self._checks)
        self._checks.append(_Check(column, describe))
        if isinstance(reasons, str):
            self._reason_ids[new] = self._reason_id(reasons)
            return
        distinct, codes = np.unique(reasons[new], return_inverse=True)
        ids = np.array([self._reason_id(str(reason)) for reason in distinct], np.uint8)
        self._reason_ids[new] = ids[codes]

    def _reason_id(self, reason: str) -> int:
        if reason not in self._reasons:
            self._reasons.append(reason)
        return self._reasons.index(reason)

    def rejects(self, cells: Cells) -> list[RowReject]:
        """Return the rejects of a range by offset, including those of ``cells``."""
        rows = np.flatnonzero(self.bad)
        listed, counted = rows[:MAX_LISTED], rows[MAX_LISTED:]
        rejects = [*cells.rejects, *self._list(cells, listed)]
        groups = self._check_ids[counted].astype(np.int64) << 8 | self._reason_ids[counted]
        rejects += [self._count(cells, counted[groups == group]) for group in np.unique(groups)]
        return sorted(rejects)

    def _count(self, cells: Cells, rows: npt.NDArray[np.int64]) -> RowReject:
        """Return one reject that describes the first row and counts all."""
        (first,) = self._list(cells, rows[:1])
        if len(rows) == 1:
            return first
        last = cells.lines[rows[-1]]
        more = f"; {len(rows) - 1:,} more rows up to line {last} are rejected for the same reason"
        return first._replace(message=first.message + more, rows=len(rows))

    def _list(self, cells: Cells, rows: npt.NDArray[np.int64]) -> Iterator[RowReject]:
        for row in rows.tolist():
            column, describe = self._checks[self._check_ids[row]]
            yield RowReject(
                int(cells.offsets[row]),
                int(cells.lines[row]),
                self._reasons[self._reason_ids[row]],
                describe(row),
                column=column,
            )
