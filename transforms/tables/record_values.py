"""The values of records, on their way from runs to the parts that compute statistics of them.

Statistics are computed from the records of a part in their final order and without duplicates,
which is known only when segments are merged. To parse the records again would take too long, so a
segment stores its numbers next to its records.

Large tables have many segments with few records each. No step loops over the columns of a segment,
apart from columns with lists: one column of structured values holds all others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.transforms.statistics.sums import Sums, sum_values
from shardmill.transforms.tables.table_source import TypedColumn, has_lists

_CELLS, _COLUMNS = "values", b"columns"
_DTYPES: dict[Kind, str] = {"int64": "<i8", "float32": "<f4"}


class _Column(NamedTuple):
    """A column: whether its cells are lists decides where its values are stored."""

    name: str
    kind: Kind
    is_list: bool


def _count(column: int) -> str:
    return f"count{column}"


def _value(column: int) -> str:
    return f"value{column}"


def _cell_dtype(columns: Sequence[_Column]) -> np.dtype[np.void]:
    # Counts, of which nearly all are 1, follow each other: they compress faster and better so.
    fields = [(_count(n), "<u4" if each.is_list else "u1") for n, each in enumerate(columns)]
    for number, column in enumerate(columns):
        if column.kind != "bytes" and not column.is_list:
            fields.append((_value(number), _DTYPES[column.kind]))
    return np.dtype(fields)


def take_values(columns: Sequence[TypedColumn], order: npt.NDArray[np.int64]) -> pa.Table:
    """Return the values of the records of a table.

    Args:
        columns: The columns of the table.
        order: Row number of each record; shape [records].

    Returns:
        A table of one row per record. ``values`` has for each column the number of values, and the
        value itself if it is a number and not a list. A column of lists of numbers has a column.
    """
    described = tuple(
        _Column(column.name, column.kind, has_lists(column.values)) for column in columns
    )
    cells = np.zeros(len(order), _cell_dtype(described))
    lists = {}
    for number, column in enumerate(columns):
        if described[number].is_list:
            cell_lists = column.take(order)
            cells[_count(number)] = pc.fill_null(pc.list_value_length(cell_lists), 0)
            if column.kind != "bytes":
                lists[_value(number)] = cell_lists
            continue
        rows = order if column.indices is None else np.take(column.indices, order)
        cells[_count(number)] = _are_present(column.values, rows)
        if column.kind != "bytes":
            values = column.values.fill_null(0).to_numpy()
            # The value of index -1, of an absent feature, is the last one.
            cells[_value(number)] = np.take(np.append(values, values.dtype.type(0)), rows)
    buffers = [None, pa.py_buffer(cells.view(np.uint8))]
    packed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(cells.itemsize), len(cells), buffers)
    text = json.dumps(described, ensure_ascii=False)
    return pa.table({_CELLS: packed, **lists}, metadata={_COLUMNS: text})


def _are_present(values: pa.Array, rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    present: npt.NDArray[np.bool_] = rows >= 0
    if values.null_count:
        present &= values.is_valid().to_numpy(zero_copy_only=False)[rows]
    return present


def sum_records(table: pa.Table, order: npt.NDArray[np.int64]) -> dict[str, Sums]:
    """Return the sums over some of the records, by name of the column.

    Args:
        table: A table with the columns of ``take_values``, each with one chunk.
        order: Indices of these records in their final order.
    """
    columns = [_Column(*column) for column in json.loads(table.schema.metadata[_COLUMNS])]
    packed, dtype = table[_CELLS].chunk(0), _cell_dtype(columns)
    start = packed.offset * dtype.itemsize  # of a slice, whose buffer is that of the whole
    stored = np.frombuffer(packed.buffers()[1], dtype, len(table), start)
    # Indexing a structured array is 15 times slower than take.
    cells = np.take(stored, order)
    sums = {}
    for number, column in enumerate(columns):
        counts = cells[_count(number)]
        examples = int(np.count_nonzero(counts))
        if column.kind == "bytes":
            sums[column.name] = Sums("bytes", examples, int(counts.sum(dtype=np.int64)))
            continue
        if column.is_list:
            lists = table[_value(number)].chunk(0)
            values = lists.take(pa.array(order)).flatten().to_numpy()
        else:
            values = np.ascontiguousarray(cells[_value(number)])
            values = values if examples == len(cells) else values[counts > 0]
        sums[column.name] = sum_values(values, examples)
    return sums
