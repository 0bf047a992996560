"""The values of records, on their way from runs to the parts that compute statistics of them.

Statistics are computed from the records of a part in their final order and without duplicates,
which is known only when segments are merged. To parse the records again would take too long, so a
segment stores its numbers next to its records.

Large tables have many segments with few records each. No step loops over the columns of a segment,
apart from columns with lists: one structured array holds all others.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.transforms.columnar.byte_arrays import offsets_from_sizes
from shardmill.transforms.columnar.typed_column import TypedColumn, has_lists
from shardmill.transforms.statistics.sums import Kind, Sums, sum_values

_HEAD = struct.Struct("<II")  # bytes of the JSON text that describes the columns, records
_DTYPES: dict[Kind, str] = {"int64": "<i8", "float32": "<f4"}


class _Column(NamedTuple):
    """A column: whether its cells are lists decides where its values are stored."""

    name: str
    kind: Kind
    is_list: bool


@dataclass(frozen=True)
class RecordValues:
    """The values of some records.

    Attributes:
        columns: The columns of the records.
        cells: Structured array, shape [records]: for each column the number of values, and the
            value itself if it is a number and not a list.
        lists: Arrow lists of numbers, shape [records], by index of their column.
    """

    columns: tuple[_Column, ...]
    cells: npt.NDArray[np.void]
    lists: Mapping[int, pa.Array] = field(default_factory=dict)

    def pack(self, first: int, after: int) -> bytes:
        """Return the values of some consecutive records as bytes.

        Args:
            first: Index of the first record.
            after: Index behind the last record.
        """
        text = json.dumps(self.columns, ensure_ascii=False).encode()
        lists = [each[first:after].flatten().to_numpy().tobytes() for each in self.lists.values()]
        cells = self.cells[first:after].tobytes()
        return b"".join([_HEAD.pack(len(text), after - first), text, cells, *lists])

    def sum(self, order: npt.NDArray[np.int64]) -> dict[str, Sums]:
        """Return the sums over some of the records, by name of the column.

        Args:
            order: Indices of these records in their final order.
        """
        cells = np.take(self.cells, order)  # indexing a structured array is 15 times slower
        sums = {}
        for number, column in enumerate(self.columns):
            counts = cells[_count(number)]
            examples = int(np.count_nonzero(counts))
            if column.kind == "bytes":
                sums[column.name] = Sums("bytes", examples, int(counts.sum(dtype=np.int64)))
                continue
            if column.is_list:
                values = self.lists[number].take(pa.array(order)).flatten().to_numpy()
            else:
                values = np.ascontiguousarray(cells[_value(number)])
                values = values if examples == len(cells) else values[counts > 0]
            sums[column.name] = sum_values(values, examples)
        return sums


def _count(column: int) -> str:
    return f"count{column}"


def _value(column: int) -> str:
    return f"value{column}"


def _cell_dtype(columns: Sequence[_Column]) -> np.dtype[np.void]:
    fields = []
    for number, column in enumerate(columns):
        fields.append((_count(number), "<u4" if column.is_list else "u1"))
        if column.kind != "bytes" and not column.is_list:
            fields.append((_value(number), _DTYPES[column.kind]))
    return np.dtype(fields)


def take_values(columns: Sequence[TypedColumn], order: npt.NDArray[np.int64]) -> RecordValues:
    """Return the values of the records of a table.

    Args:
        columns: The columns of the table.
        order: Row number of each record; shape [records].
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
                lists[number] = cell_lists
            continue
        rows = order if column.indices is None else np.take(column.indices, order)
        cells[_count(number)] = _are_present(column.values, rows)
        if column.kind != "bytes":
            cells[_value(number)] = column.take(order).fill_null(0)
    return RecordValues(described, cells, lists)


def _are_present(values: pa.Array, rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    present: npt.NDArray[np.bool_] = rows >= 0
    if values.null_count:
        present &= values.is_valid().to_numpy(zero_copy_only=False)[rows]
    return present


def unpack_values(packed: Sequence[bytes]) -> RecordValues:
    """Return the values of the records of several segments, one segment after another.

    Args:
        packed: Results of ``RecordValues.pack``, of the same columns; at least one.
    """
    texts, records, cells, tails = set(), [], [], []
    for each in packed:
        text_bytes, number = _HEAD.unpack_from(each)
        start = _HEAD.size + text_bytes
        text = bytes(each[_HEAD.size : start])
        if text not in texts:
            texts.add(text)
            columns = tuple(_Column(*column) for column in json.loads(text))
            dtype = _cell_dtype(columns)
        records.append(number)
        cells.append(each[start : start + number * dtype.itemsize])
        tails.append(each[start + number * dtype.itemsize :])
    if len(texts) != 1:
        raise AssertionError(f"segments of one part have different columns: {texts}")
    joined = np.frombuffer(b"".join(cells), dtype)
    return RecordValues(columns, joined, _split_lists(columns, joined, records, tails))


def _split_lists(
    columns: Sequence[_Column], cells: npt.NDArray[np.void], records: Sequence[int],
    tails: Sequence[bytes],
) -> dict[int, pa.Array]:  # fmt: skip
    """Return the lists of numbers, which follow the cells of each segment column by column."""
    bounds = [0, *itertools.accumulate(records)]
    lists = {}
    for number, column in enumerate(columns):
        if not column.is_list or column.kind == "bytes":
            continue
        dtype = np.dtype(_DTYPES[column.kind])
        offsets = offsets_from_sizes(cells[_count(number)])
        sizes = (np.diff(offsets[bounds]) * dtype.itemsize).tolist()
        data = b"".join(tail[:size] for tail, size in zip(tails, sizes, strict=True))
        tails = [tail[size:] for tail, size in zip(tails, sizes, strict=True)]
        lists[number] = pa.LargeListArray.from_arrays(offsets, np.frombuffer(data, dtype))
    return lists
