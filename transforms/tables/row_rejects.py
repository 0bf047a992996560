"""RejectCollector: collect the rows of a range that do not fit the schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from shardmill.transforms.sources.csv.arrow_parser import MAX_LISTED
from shardmill.transforms.sources.csv.cells import Cells, RowReject

FEW_ROWS = 10  # or one of a thousand: more rows are never rejected by an inferred rule

Mask = npt.NDArray[np.bool_]


class RejectCollector:
    """Collects rows that are rejected; a row keeps the first reason it got.

    The first ``MAX_LISTED`` rows are reported individually, the others are counted.

    Attributes:
        bad: bool[rows], which rows are rejected.
    """

    def __init__(self, rows: int) -> None:
        self.bad = np.zeros(rows, bool)
        # For each check that rows failed: the column, the reason, and the message for a row.
        self._checks: list[tuple[str, str, Callable[[int], str]]] = []
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
        self.bad[new] = True
        of_rows = np.broadcast_to(reasons, bad.shape)[new]
        for reason in np.unique(of_rows).tolist():
            self._check_ids[new[of_rows == reason]] = len(self._checks)
            self._checks.append((column, reason, describe))

    def rejects(self, cells: Cells) -> list[RowReject]:
        """Return the rejects of a range by offset, including those of ``cells``."""
        rows = np.flatnonzero(self.bad)
        listed, counted = rows[:MAX_LISTED], rows[MAX_LISTED:]
        rejects = [*cells.rejects, *self._list(cells, listed)]
        checks = self._check_ids[counted]
        rejects += [self._count(cells, counted[checks == check]) for check in np.unique(checks)]
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
            column, reason, describe = self._checks[self._check_ids[row]]
            offset, line = int(cells.offsets[row]), int(cells.lines[row])
            yield RowReject(offset, line, reason, describe(row), column=column)


def describe_lost_files(count: int, limit: int, key: str, message: str) -> str:
    """Return the error for files that are lost in whole or in part, of which one is named."""
    some = "1 file is" if count == 1 else f"{count:,} files are"
    return (
        f"{some} not used completely, more than --max_rejected_files={limit} allows: "
        f"{key}, {message}; fix or exclude such files, or raise the limit"
    )
