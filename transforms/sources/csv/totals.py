"""Find a last row of totals, which a spreadsheet adds to a table, and which would be a record."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from shardmill.transforms.sources.csv import text_parser
from shardmill.transforms.sources.csv.cells import Cells
from shardmill.transforms.sources.csv.infer import ColumnProfile
from shardmill.transforms.sources.csv.text_parser import CellRules

_LEAST_ROWS = 4  # with fewer a sum may be chance
_WORDS = frozenset({"total", "totals", "grand total", "sum", "summe", "gesamt", "итого", "合計"})
_TOLERANCE = 1e-6  # of sums that a program rounded


def find_totals(cells: Cells, profiles: Mapping[str, ColumnProfile], rules: CellRules) -> int:
    """Return the line of a last row of totals, or 0.

    It alone lacks the value of a column, such as a name, or is called a total, and its numbers are
    the sums of those above.

    Args:
        cells: All cells of a file.
        profiles: Profile of each column.
        rules: How cells are read.
    """
    if len(cells.offsets) < _LEAST_ROWS:
        return 0
    last = {name: column[-1].as_py() for name, column in cells.columns.items()}
    is_unnamed = any(not last[name] and profiles[name].counts["empty"] == 1 for name in last)
    words = {text.decode("utf-8", "replace").strip().casefold() for text in last.values()}
    if not is_unnamed and _WORDS.isdisjoint(words):
        return 0
    numeric = [
        column
        for name, column in cells.columns.items()
        if not profiles[name].is_text and not profiles[name].counts["booleans"]
    ]
    endings = [_ends_with_sum(column, rules) for column in numeric]
    totals = [is_sum for is_sum in endings if is_sum is not None]
    if totals and all(totals):
        return int(cells.lines[-1])
    return 0


def _ends_with_sum(column: pa.DictionaryArray, rules: CellRules) -> bool | None:
    """Return whether the last number is the sum of those above; None without a last number."""
    parsed = text_parser.parse_float64(rules.plain(column.dictionary))
    rows = column.indices.to_numpy()
    is_number = (parsed.faults == text_parser.CellFault.NONE)[rows]
    if not is_number[-1]:
        return None
    values = np.where(is_number, parsed.values[rows], 0.0)
    total = values[:-1].sum()
    is_sum = abs(values[-1] - total) <= _TOLERANCE * abs(total)
    return bool(is_sum and np.count_nonzero(values[:-1]) > 1)
