"""Convert the cells of a column to typed values by its schema, or report why one does not fit.

Only the distinct texts of a column are converted; the typed values are a dictionary like the texts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.errors import format_value
from shardmill.schemas.schema_pbtxt.columns import (
    DEFAULT_TAG,
    ZERO_PADDED_TAG,
    Column,
    fold_boolean,
    invalid_column,
)
from shardmill.transforms.sources.csv import arrow_values, text_parser
from shardmill.transforms.sources.csv.arrow_values import number_rows
from shardmill.transforms.sources.csv.text_parser import CellRules
from shardmill.transforms.tables.byte_arrays import ByteStrings, offsets_from_sizes
from shardmill.transforms.tables.table_source import ARROW_TYPES, decode, is_list

REASONS = np.array(["", "cast", "cast", "range", "range", "domain", "missing"])  # by CellFault


class TypedCells(NamedTuple):
    """The typed values of a column's cells.

    Attributes:
        values: The value of each row as in ``TypedColumn``; arbitrary where a row does not fit.
        faults: ``CellFault`` of each row; None if all rows fit.
    """

    values: pa.Array
    faults: text_parser.FaultCodes | None

    def slice(self, start: int, rows: int) -> TypedCells:
        """Return some of the rows."""
        faults = None if self.faults is None else self.faults[start : start + rows]
        return TypedCells(self.values.slice(start, rows), faults)


def type_columns(
    columns: Sequence[Column], cells: Sequence[pa.DictionaryArray], rules: CellRules
) -> list[TypedCells]:
    """Convert the cells of columns as ``type_cells`` does, many columns of a type at a time.

    Args:
        columns: The columns.
        cells: The cells of each column; as many rows of each.
        rules: How cells are read.
    """
    alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, column in enumerate(columns):
        properties = *[*vars(column).values()][1:], cells[number].type  # the first is the name
        alike[properties].append(number)
    typed: dict[int, TypedCells] = {}
    rows = len(cells[0])
    step = text_parser.columns_at_once(rows)
    for numbers in alike.values():
        for start in range(0, len(numbers), step):
            batch = numbers[start : start + step]
            joint = cells[batch[0]]
            if len(batch) > 1:
                joint = number_rows(pa.concat_arrays([decode(cells[number]) for number in batch]))
            together = type_cells(columns[batch[0]], joint, rules)
            for place, number in enumerate(batch):
                typed[number] = together.slice(place * rows, rows)
    return [typed[number] for number in range(len(columns))]


def type_cells(column: Column, cells: pa.DictionaryArray, rules: CellRules) -> TypedCells:
    """Convert the cells of a column to typed values.

    Args:
        column: Type, domain and presence of the column.
        cells: dictionary<int32, binary>, or of values of another type; one entry per row.
        rules: How cells are read.
    """
    texts = cells.dictionary
    present = ~rules.missing(column.kind, texts)
    values, faults_of_present = _parse(column, texts.filter(pa.array(present)), rules)
    faults = text_parser.no_faults(texts)
    faults[present] = faults_of_present
    if not present.all():
        values = values.take(pa.array(np.cumsum(present) - 1, mask=~present))
        default = default_value(column)
        if default is not None:
            values = pc.coalesce(values, default[0])
        elif column.required:
            faults[~present] = text_parser.CellFault.MISSING
    of_rows = faults[cells.indices.to_numpy()] if faults.any() else faults[:0]
    typed = pa.DictionaryArray.from_arrays(cells.indices, values, safe=False)
    return TypedCells(typed, of_rows if of_rows.any() else None)


def find_rounded(values: pa.Array, cells: pa.DictionaryArray) -> text_parser.Mask:
    """Return which rows of a float32 column have an integer that float32 rounds; bool[rows].

    Args:
        values: The typed values.
        cells: As given to ``type_cells``.
    """
    rounded = np.zeros(len(cells), np.bool_)
    large = np.abs(values.dictionary.fill_null(0).to_numpy()) >= text_parser.EXACT_FLOAT32
    if large.any():
        rows = np.flatnonzero(large[values.indices.to_numpy()])
        texts = decode(cells.take(pa.array(rows)))
        rounded[rows] = text_parser.is_rounded(text_parser.parse_int64(texts, allow_padding=False))
    return rounded


def default_value(column: Column) -> Any:
    """Return an array with the value of missing cells, or None if they have none."""
    if column.default is not None:
        value = _parse(column, pa.array([column.default.encode()], pa.binary()), CellRules())[0]
        if column.several:
            return pa.ListArray.from_arrays([0, 1], value)
        return value
    if column.separator and column.required:
        return pa.array([[]], pa.list_(ARROW_TYPES[column.kind]))
    return None


def _parse(
    column: Column, texts: pa.Array, rules: CellRules
) -> tuple[pa.Array, text_parser.FaultCodes]:
    """Return the values of texts that are not missing, and their faults."""
    pieces, offsets = _split(column, texts)
    values, faults = _parse_single(column, pieces, rules)
    if offsets is None:
        return values, faults
    wrong = np.flatnonzero(faults)
    cells, firsts = np.unique(np.searchsorted(offsets, wrong, "right") - 1, return_index=True)
    of_cells = text_parser.no_faults(texts)
    of_cells[cells] = faults[wrong[firsts]]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values), of_cells


def _split(column: Column, texts: pa.Array) -> tuple[pa.Array, npt.NDArray[Any] | None]:
    """Return the values of cells, and offsets of each cell's values if it may have several."""
    if is_list(texts.type):
        return texts.flatten(), offsets_from_sizes(pc.list_value_length(texts).to_numpy())
    if column.several and not column.separator and not len(texts):
        return texts, np.zeros(1, np.int64)  # a file in which all lists are missing has no lists
    if not column.separator:
        return texts, None
    # An empty text is not missing if --null_values lacks it: a list without values.
    empty = ByteStrings.of_arrow(texts).sizes == 0
    lists = pc.split_pattern(texts, pattern=column.separator)
    sizes = np.diff(lists.offsets.to_numpy())
    pieces = lists.flatten().filter(pa.array(np.repeat(~empty, sizes)))
    return pieces, offsets_from_sizes(np.where(empty, 0, sizes))


def _parse_single(
    column: Column, texts: pa.Array, rules: CellRules
) -> tuple[pa.Array, text_parser.FaultCodes]:
    """Parse texts with one value each."""
    if column.kind == "bytes":
        texts, faults = arrow_values.to_texts(texts), text_parser.no_faults(texts)
        if texts.null_count:  # in lists
            faults[text_parser.find_missing(texts)] = text_parser.CellFault.MISSING
            texts = pc.fill_null(texts, b"")
        faults[find_outside(column, texts)] = text_parser.CellFault.DOMAIN
        return texts, faults
    numbers, faults = _parse_numbers(column, texts, rules)
    values = pa.array(numbers, ARROW_TYPES[column.kind])
    outside = find_outside(column, values) & (faults == text_parser.CellFault.NONE)
    faults[outside] = text_parser.CellFault.BOUNDS
    return values, faults


def find_outside(column: Column, values: pa.Array) -> text_parser.Mask:
    """Return which values, texts or numbers, are outside of the domain of the schema."""
    outside = np.zeros(len(values), np.bool_)
    if column.values is not None:
        outside |= ~text_parser.is_one_of(values, (text.encode() for text in column.values))
    if column.low is not None:
        outside |= values.to_numpy() < column.low
    if column.high is not None:
        outside |= values.to_numpy() > column.high
    return outside


def _parse_numbers(column: Column, texts: pa.Array, rules: CellRules) -> text_parser.Parsed:
    if texts.type != pa.binary():
        return arrow_values.convert_values(column.kind, arrow_values.in_unit(texts, column.time))
    if column.booleans:
        yes, no = map(fold_boolean, column.booleans)
        return text_parser.parse_booleans(texts, (yes, no))
    if column.time:
        return text_parser.parse_times(texts, column.time, column.time_format)
    texts = rules.plain(texts)
    if column.kind == "float32":
        return text_parser.parse_float32(texts)
    return text_parser.parse_int64(texts, allow_padding=column.zero_padded)


def describe_misfit(
    column: Column,
    cell: pa.Array,
    fault: int,
    rules: CellRules,
    *,
    is_label: bool = False,
) -> str:
    """Return the message for a row that does not fit, without line and column.

    Args:
        column: As given to ``type_cells``.
        cell: The cell of the row, an array of one value.
        fault: The ``CellFault`` of the row.
        rules: As given to ``type_cells``.
        is_label: Whether the column is the label, which each row must have.
    """
    pieces, offsets = _split(column, cell)
    if offsets is not None:  # the first wrong value
        pieces = pieces.filter(pa.array(_parse_single(column, pieces, rules)[1] > 0))
    text = format_value(next(iter(arrow_values.to_texts(pieces).to_pylist()), None) or b"")
    text_type = "BYTES with --types or in the schema"
    others = f"FLOAT or {text_type}" if column.kind == "int64" else text_type
    if fault == text_parser.CellFault.MISSING:
        is_element = is_list(cell.type) and cell[0].is_valid
        return _describe_missing(text, column, is_element=is_element, is_label=is_label)
    if fault == text_parser.CellFault.DOMAIN:
        count = len(column.values or ())
        return f"{text} is not one of the {count} texts of its string_domain: add it in the schema"
    if fault == text_parser.CellFault.BOUNDS:
        return f"{text} is {_describe_bounds(column)}: widen the domain in the schema"
    if fault == text_parser.CellFault.PADDED:
        return (
            f"{text} has leading zeros: make it {text_type} to keep them, or allow them in the "
            f'schema with annotation {{ tag: "{ZERO_PADDED_TAG}" }}'
        )
    if fault == text_parser.CellFault.OVERFLOW:
        return f"{text} is out of range of {column.kind}: make it {others}"
    if column.time:
        form = column.time_format or "YYYY-MM-DD, which a time and an offset may follow"
        return f"{text} is not a {column.time} of the form {form}: change its format in --types"
    if column.booleans:
        yes, no = column.booleans
        return f"{text} is neither {yes!r} nor {no!r}: make it {text_type}"
    article = "an" if column.kind == "int64" else "a"
    return (
        f"{text} is not {article} {column.kind}: make it {others}, or list it in "
        "--null_values if it means missing"
    )


def _describe_missing(text: str, column: Column, *, is_element: bool, is_label: bool) -> str:
    if is_element:
        return (
            f"a value of the list is missing: fill it in, or use --drop={column.name} "
            "(of a listing, --features)"
        )
    if is_label:
        return f"{text} is missing, but each row needs a label: fill it in, or remove the row"
    return (
        f"{text} is missing, but a value is required: make it optional (presence "
        "{ min_fraction: 0 } and no shape) or give it a default (annotation "
        f'{{ tag: "{DEFAULT_TAG}=…" }}) in the schema'
    )


def _describe_bounds(column: Column) -> str:
    if column.low is None:
        return f"over {column.high}"
    if column.high is None:
        return f"under {column.low}"
    return f"not between {column.low} and {column.high}"


def check_default(column: Column) -> None:
    """Check that the default of a column, if it has one, is a valid cell.

    Raises:
        UsageError: It is not.
    """
    if column.default is None:
        return
    cell = pa.array([column.default.encode()])
    rules = CellRules.of(())
    faults = type_cells(column, number_rows(cell), rules).faults
    if faults is not None:
        why = describe_misfit(column, cell, faults[0], rules)
        raise invalid_column(name=column.name, problem=f"has a wrong default: {why}")
