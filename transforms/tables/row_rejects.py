"""RejectCollector: collect the rows of a range that do not fit the schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import Reject

MAX_LISTED = 10_000  # bad rows of one range and step that are reported individually
FEW_ROWS = 10  # or one of a thousand: more rows are never rejected by an inferred rule

Mask = npt.NDArray[np.bool_]


class RowReject(NamedTuple):
    """A row that cannot become cells or a record.

    Attributes:
        offset: Identity of the row, such as the offset of its first byte in the file's text.
        line: Number of its first line, from 1.
        error: A reason, one of ``rejects.REASONS``.
        message: What is wrong, without line and column.
        rows: Number of rows that this reject counts.
        column: Name of the column whose cell is wrong; empty if it is the row as a whole.
    """

    offset: int
    line: int
    error: str
    message: str
    rows: int = 1
    column: str = ""


class RejectCollector:
    """Collects rows that are rejected; a row keeps the first reason it got.

    The first rows are reported individually, the others are counted.

    Attributes:
        most: Number of rows that are reported individually.
        ids: int64[rows], identity of each row in its input.
        bad: bool[rows], which rows are rejected.
        lines: int64[rows], number of each row's first line.
        left_out: bool[rows], which rows are not in the sample of ``--limit``, and so no rejects.
        without_cells: Rows that were rejected before and are not counted in ``ids``.

    Args:
        ids: See above.
        lines: See above.
        rejects: Rows that were rejected before and are not counted in ``ids``.
    """

    def __init__(
        self, ids: npt.NDArray[np.int64], lines: npt.NDArray[np.int64],
        rejects: Sequence[RowReject] = (),
    ) -> None:  # fmt: skip
        rows, self.most = len(ids), MAX_LISTED
        self.ids = ids
        self.lines = lines
        self.without_cells = rejects
        self.bad, self.left_out = np.zeros((2, rows), bool)
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

    def leave_out(self, rows: Mask, without_cells: Mask) -> int:
        """Leave out rows, and rejects of rows without cells; return the number of rows."""
        rejects, self.left_out = self.without_cells, rows
        self.without_cells = [rejects[n] for n in np.flatnonzero(~without_cells).tolist()]
        lost = sum(each.rows for each in rejects) - sum(each.rows for each in self.without_cells)
        return lost + int(np.count_nonzero(rows))

    def rejects(self) -> list[RowReject]:
        """Return all rejects, ordered by row."""
        rows = np.flatnonzero(self.bad & ~self.left_out)
        listed, counted = rows[: self.most], rows[self.most :]
        rejects = [*self.without_cells, *self._list(listed)]
        checks = self._check_ids[counted]
        rejects += [self._count(counted[checks == check]) for check in np.unique(checks)]
        return sorted(rejects)

    def _count(self, rows: npt.NDArray[np.int64]) -> RowReject:
        """Return one reject that describes the first row and counts all."""
        (first,) = self._list(rows[:1])
        if len(rows) == 1:
            return first
        last = self.lines[rows[-1]]
        more = f"; {len(rows) - 1:,} more rows up to line {last} are rejected for the same reason"
        return first._replace(message=first.message + more, rows=len(rows))

    def _list(self, rows: npt.NDArray[np.int64]) -> Iterator[RowReject]:
        for row in rows.tolist():
            column, reason, describe = self._checks[self._check_ids[row]]
            offset, line = int(self.ids[row]), int(self.lines[row])
            yield RowReject(offset, line, reason, describe(row), column=column)


def describe_lost_files(count: int, limit: int, key: str, message: str) -> str:
    """Return the error for files that are lost in whole or in part, of which one is named."""
    some = "1 file is" if count == 1 else f"{count:,} files are"
    return (
        f"{some} not used completely, more than --max_rejected_files={limit} allows: "
        f"{key}, {message}; fix or exclude such files, or raise the limit"
    )


def to_reject(ref: InputRef, reject: RowReject) -> Reject:
    """Return the reject of a row of a file."""
    # The rest of a compressed file is lost, not one row.
    return Reject(
        f"{ref.key}:{reject.line}",
        ref.uri,
        "read" if reject.error == "compressed" else "decode",
        reject.error,
        reject.message,
        reject.rows,
        reject.line,
        reject.column or None,
    )
