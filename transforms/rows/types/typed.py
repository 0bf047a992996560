"""Cells to values: what each cell of a column is by its schema, or why it does not fit.

Everything is decided on the distinct texts of a column; rows follow by index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.schema_pbtxt.columns import (
    DEFAULT_TAG,
    ZERO_PADDED_TAG,
    Column,
    fold_boolean,
)
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.transforms.columnar.typed_column import TypedColumn
from shardmill.transforms.rows.types.casts import (
    NUMBER_CHARACTERS,
    Codes,
    Fault,
    Mask,
    Padding,
    Read,
    foreign,
    mask_of,
    parts_of,
    read_booleans,
    read_float32,
    read_int64,
    trim,
)

# What stands for a missing number unless --null_values says otherwise: the list of pyarrow.csv,
# and what R, pandas, Python and the UCI archive write.
NUMERIC_NULLS = frozenset(
    {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
    | {"<NA>", "?", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
)
_ARROW: dict[Kind, pa.DataType] = {
    "int64": pa.int64(),
    "float32": pa.float32(),
    "bytes": pa.binary(),
}
_REASONS = {
    Fault.CAST: "cast",
    Fault.PADDED: "cast",
    Fault.WIDE: "range",
    Fault.BOUNDS: "range",
    Fault.DOMAIN: "domain",
    Fault.MISSING: "missing",
}
_SHOWN = 80


@dataclass(frozen=True)
class Nulls:
    """Which cells are missing.

    Attributes:
        numbers: Texts that are missing in int64 and float32 columns, with spaces around or not.
        texts: Texts that are missing in bytes columns, exactly.
    """

    numbers: frozenset[bytes] = frozenset(text.encode() for text in NUMERIC_NULLS)
    texts: frozenset[bytes] = frozenset({b""})

    @classmethod
    def of(cls, texts: Iterable[str]) -> Nulls:
        """Returns the texts of ``--null_values``, which hold for all columns, alone."""
        given = frozenset(text.encode() for text in texts)
        return cls(given, given)

    @cached_property
    def _may_be_numbers(self) -> bool:
        return any(text and not text.translate(None, NUMBER_CHARACTERS) for text in self.numbers)

    def missing_texts(self, texts: pa.Array) -> Mask | None:
        """Tells which of the texts of a bytes column are missing; None: none of them."""
        if self.texts == frozenset({b""}):
            flags = np.diff(parts_of(texts)[1]) == 0
        else:
            flags = mask_of(pc.is_in(texts, value_set=pa.array(sorted(self.texts), pa.binary())))
        return flags if flags.any() else None

    def missing_numbers(self, texts: pa.Array) -> Mask | None:
        """Tells which of the texts of a number column are missing; None: none of them."""
        plain = not foreign(texts, NUMBER_CHARACTERS)
        if plain and not self._may_be_numbers and np.diff(parts_of(texts)[1]).all():
            return None
        flags = mask_of(pc.is_in(texts, value_set=pa.array(sorted(self.numbers), pa.binary())))
        if not plain:
            # A cell of spaces alone is not empty: only a text can have spaces around it.
            named = pa.array(sorted(self.numbers - {b""}), pa.binary())
            flags |= mask_of(pc.is_in(trim(texts), value_set=named))
        return flags if flags.any() else None


class Misfits(NamedTuple):
    """What is wrong with the distinct texts of a column.

    Attributes:
        faults: uint8: ``Fault`` of each text.
        texts: What to show of each: itself, or the first piece of a multi-valued cell that does
            not fit.
    """

    faults: Codes
    texts: pa.Array


class Typed(NamedTuple):
    """A column as its schema wants it.

    Attributes:
        column: The values; a row that does not fit has the index -1.
        bad: bool[rows]: which rows do not fit; None when all do.
        misfits: What is wrong with the texts of those rows; None when all fit.
    """

    column: TypedColumn
    bad: Mask | None
    misfits: Misfits | None


class _Values(NamedTuple):
    values: pa.Array
    misfits: Misfits | None


def type_cells(column: Column, cells: pa.DictionaryArray, nulls: Nulls) -> Typed:
    """Returns the values of one column's cells.

    Args:
        column: What the cells should be.
        cells: dictionary<int32, binary> without nulls; one entry a row.
        nulls: Which texts are missing cells.
    """
    texts = cells.dictionary
    absent = nulls.missing_texts if column.kind == "bytes" else nulls.missing_numbers
    missing = absent(texts)
    found = _read(column, texts if missing is None else texts.filter(pa.array(~missing)))
    values = found.values
    rows = cells.indices.to_numpy()
    if missing is None and found.misfits is None:
        return Typed(TypedColumn(column.name, column.kind, values, rows), None, None)
    faults = np.zeros(len(texts), np.uint8)
    present = slice(None) if missing is None else ~missing
    if found.misfits is not None:
        faults[present] = found.misfits.faults
    slots = np.full(len(texts), -1, np.int32)
    slots[present] = np.arange(len(values), dtype=np.int32)
    if missing is not None:
        stand_in = _stand_in(column)
        if stand_in is not None:
            slots[missing] = len(values)
            values = pa.concat_arrays([values, stand_in])
        elif column.required:
            faults[missing] = Fault.MISSING
    slots[faults != Fault.NONE] = -1
    typed = TypedColumn(column.name, column.kind, values, slots[rows])
    bad = (faults != Fault.NONE)[rows]
    if not bad.any():
        return Typed(typed, None, None)
    return Typed(typed, bad, Misfits(faults, _shown(texts, missing, found)))


def _stand_in(column: Column) -> pa.Array | None:
    """Returns the one value of missing cells, or None when they have none."""
    if column.default is not None:
        return _read(column, pa.array([column.default.encode()], pa.binary())).values
    if column.separator and column.required:
        return pa.array([[]], pa.list_(_ARROW[column.kind]))
    return None


def _shown(texts: pa.Array, missing: Mask | None, found: _Values) -> pa.Array:
    """Returns the text to show for each distinct text."""
    if missing is None or found.misfits is None:
        return texts if found.misfits is None else found.misfits.texts
    places = np.arange(len(texts))
    places[~missing] = len(texts) + np.arange(len(found.values))
    return pa.concat_arrays([texts, found.misfits.texts]).take(pa.array(places))


def _read(column: Column, texts: pa.Array) -> _Values:
    """Returns the values of texts that are not missing."""
    if not column.separator:
        return _read_single(column, texts)
    empty = np.diff(parts_of(texts)[1]) == 0
    lists = pc.split_pattern(texts, pattern=column.separator)
    pieces = lists.flatten()
    bounds = lists.offsets.to_numpy()
    if empty.any():  # which --null_values may not have named: such a cell holds no values
        lengths = np.where(empty, 0, np.diff(bounds))
        pieces = pieces.filter(pa.array(np.repeat(~empty, np.diff(bounds))))
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    found = _read_single(column, pieces)
    values = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), found.values)
    if found.misfits is None:
        return _Values(values, None)
    wrong = np.flatnonzero(found.misfits.faults)
    owners, firsts = np.unique(np.searchsorted(bounds, wrong, "right") - 1, return_index=True)
    faults = np.zeros(len(texts), np.uint8)
    faults[owners] = found.misfits.faults[wrong[firsts]]
    places = np.arange(len(texts))
    places[owners] = len(texts) + wrong[firsts]
    return _Values(
        values, Misfits(faults, pa.concat_arrays([texts, pieces]).take(pa.array(places)))
    )


def _read_single(column: Column, texts: pa.Array) -> _Values:
    if column.kind == "bytes":
        if column.values is None:
            return _Values(texts, None)
        allowed = pa.array([text.encode() for text in column.values], pa.binary())
        outside = ~mask_of(pc.is_in(texts, value_set=allowed))
        faults = np.where(outside, Fault.DOMAIN, Fault.NONE).astype(np.uint8)
        return _Values(texts, Misfits(faults, texts) if outside.any() else None)
    read = _check_bounds(column, _read_numbers(column, texts))
    values = pa.array(read.values, _ARROW[column.kind])
    return _Values(values, None if read.faults is None else Misfits(read.faults, texts))


def _read_numbers(column: Column, texts: pa.Array) -> Read:
    if column.booleans:
        yes, no = map(fold_boolean, column.booleans)
        return read_booleans(texts, (yes, no))
    if column.kind == "float32":
        return read_float32(texts)
    return read_int64(texts, Padding.ALLOWED if column.zero_padded else Padding.REFUSED)


def _check_bounds(column: Column, read: Read) -> Read:
    """Returns the numbers with those outside the column's bounds marked."""
    outside = np.zeros(len(read.values), np.bool_)
    if column.low is not None:
        outside |= read.values < column.low
    if column.high is not None:
        outside |= read.values > column.high
    if not outside.any():
        return read
    faults = np.zeros(len(outside), np.uint8) if read.faults is None else read.faults
    faults[outside & (faults == Fault.NONE)] = Fault.BOUNDS
    return Read(read.values, faults)


def reasons_of(cells: pa.DictionaryArray, misfits: Misfits) -> npt.NDArray[np.str_]:
    """Returns the reason of each row, empty where it fits; shape [rows].

    Args:
        cells: As given to ``type_cells``.
        misfits: As ``type_cells`` returned it.
    """
    words = np.array([_REASONS.get(fault, "") for fault in sorted(Fault)])
    found: npt.NDArray[np.str_] = words[misfits.faults[cells.indices.to_numpy()]]
    return found


def describe(column: Column, cells: pa.DictionaryArray, misfits: Misfits, row: int) -> str:
    """Returns the message, without file and line, of one row that does not fit.

    Args:
        column: As given to ``type_cells``.
        cells: As given to ``type_cells``.
        misfits: As ``type_cells`` returned it.
        row: Number of a row that is bad.
    """
    slot = cells.indices[row].as_py()
    fault = Fault(int(misfits.faults[slot]))
    text = misfits.texts[slot].as_py()
    return f"{column.name!r}: {_problem(column, fault, _show(text))}"


def _problem(column: Column, fault: Fault, shown: str) -> str:
    if fault is Fault.MISSING:
        return (
            f"{shown} is missing, but a value is required: make it optional (presence "
            "{ min_fraction: 0 } and no shape) or give it a default (annotation "
            f'{{ tag: "{DEFAULT_TAG}=…" }}) in the schema'
        )
    if fault is Fault.DOMAIN:
        count = len(column.values or ())
        return f"{shown} is none of the {count} texts of its string_domain: add it in the schema"
    if fault is Fault.BOUNDS:
        return f"{shown} is {_beyond(column)}: widen the domain in the schema"
    if fault is Fault.PADDED:
        return (
            f"{shown} has leading zeros: make it BYTES in the schema to keep them, or allow them "
            f'with annotation {{ tag: "{ZERO_PADDED_TAG}" }}'
        )
    if fault is Fault.WIDE:
        wider = "FLOAT or BYTES" if column.kind == "int64" else "BYTES"
        return f"{shown} is outside the range of {column.kind}: make it {wider} in the schema"
    if column.booleans:
        yes, no = column.booleans
        return f"{shown} is neither {yes!r} nor {no!r}: make it BYTES in the schema"
    others = "FLOAT or BYTES" if column.kind == "int64" else "BYTES"
    return (
        f"{shown} is no {column.kind}: make it {others} in the schema, or name it in "
        "--null_values if it means missing"
    )


def _beyond(column: Column) -> str:
    if column.low is None:
        return f"over {column.high}"
    if column.high is None:
        return f"under {column.low}"
    return f"not within {column.low} to {column.high}"


def _show(text: bytes) -> str:
    """Returns a value as messages show it, cut to 80 characters."""
    # Four bytes a character at most: the rest of a cell of many megabytes is not decoded.
    characters = text[: 4 * (_SHOWN + 1)].decode("utf-8", "backslashreplace")
    return repr(characters[:_SHOWN]) + ("…" if len(characters) > _SHOWN else "")


__all__ = ["NUMERIC_NULLS", "Misfits", "Nulls", "Typed", "describe", "type_cells"]
