"""Findings about sampled columns: what keeps a column from being numeric, and which flag helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from shardmill.schemas.errors import format_names, shown
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.sources.csv import text_parser
from shardmill.transforms.sources.csv.cell_rules import CellRules
from shardmill.transforms.sources.csv.cells import Cells
from shardmill.transforms.sources.csv.infer import ColumnProfile
from shardmill.transforms.sources.csv.quotes import Ints

_NEARLY = 0.9  # share of the cells with a value that are numbers in a nearly numeric column
_FORMS = {  # the first one counts where a cell is a number in several
    "--thousands=,": CellRules(thousands=","),
    "--decimal=,": CellRules(decimal=","),
    "--decimal=, --thousands=.": CellRules(decimal=",", thousands="."),
}


def find_problem(name: str, profile: ColumnProfile, cells: Cells, key: str) -> str:
    """Return why a column that is nearly numeric is text, and what to do; or an empty text.

    Args:
        name: Name of the column.
        profile: Profile of its cells.
        cells: Cells of a file.
        key: The file.
    """
    counts, example = profile.counts, profile.example
    numbers, values = counts["integers"] + counts["decimals"], counts["cells"] - counts["nulls"]
    nearly = numbers >= _NEARLY * values
    if not counts["texts"] or counts["coded"] or counts["wide"] or not (nearly or "," in example):
        return ""
    texts, rows = cells.columns[name].dictionary, cells.columns[name].indices.to_numpy()
    first = next(number for number, text in enumerate(texts) if shown(text.as_py()) == example)
    fitting = {flag: _count_numbers(rules, texts, rows, first) for flag, rules in _FORMS.items()}
    flag = max(fitting, key=lambda each: fitting[each])
    remedy = f"{flag} reads them as numbers"
    if fitting[flag] < _NEARLY * values:
        if not nearly:
            return ""
        text = texts[first].as_py().decode("utf-8", "replace")
        remedy = (
            f"--null_values=,{text} makes {example} missing, and --types={name}:float rejects rows "
            "with such cells"
        )
    return (
        f"the column {name!r} is text because {counts['texts']:,} of {values:,} cells are not "
        f"numbers, first {example} in {key}, line {cells.lines[rows == first][0]}: {remedy}"
    )


def _count_numbers(rules: CellRules, texts: pa.Array, rows: Ints, first: int) -> int:
    """Return how many cells are numbers in a form, or 0 if the first that is none is not."""
    if text_parser.parse_float64(rules.plain(texts.slice(first, 1))).faults[0]:
        return 0
    fits = text_parser.parse_float64(rules.plain(texts)).faults == text_parser.CellFault.NONE
    return int(np.count_nonzero(fits[rows]))


def list_findings(
    columns: Sequence[Column], profiles: Mapping[str, ColumnProfile]
) -> Iterator[str]:
    """Yield sentences about the columns of an inferred schema that need a look."""
    texts = [column.name for column in columns if column.kind == "bytes"]
    counts = {name: profiles[name].counts for name in texts}
    yield from (profiles[name].problem for name in texts if profiles[name].problem)
    empty = [name for name in texts if counts[name]["empty"] == counts[name]["cells"]]
    if empty:
        yield f"no cell of {format_names(empty)} has a value: --drop leaves such columns out"
    others = (name for name in texts if name not in empty and not profiles[name].problem)
    marked = [name for name in others if counts[name]["nulls"] > counts[name]["empty"]]
    if marked:
        cells = sum(counts[name]["nulls"] - counts[name]["empty"] for name in marked)
        yield (
            f"{cells:,} cells of {format_names(marked)} are texts such as ? and NA, which are "
            "missing in columns of numbers only: --null_values=,?,NA makes them missing everywhere"
        )
