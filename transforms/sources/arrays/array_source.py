"""ArraySource: the rows of arrays as typed columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.schemas.refs import InputRef
from shardmill.transforms.sources.arrays.array_file import ArrayFile
from shardmill.transforms.sources.arrays.labels import ArrayLabels, decode_label
from shardmill.transforms.sources.arrays.row_reader import Raw, is_stream, read_rows
from shardmill.transforms.tables.byte_arrays import ByteStrings
from shardmill.transforms.tables.row_rejects import RejectCollector
from shardmill.transforms.tables.table_source import TableInput, TypedBatch, Unit
from shardmill.transforms.tables.table_spec import PickledOnce, TableSpec
from shardmill.transforms.tables.typed_column import TypedColumn

_BATCH_BYTES = 8 << 20  # of arrays
_MAX_BATCH_ROWS = 1 << 20


@dataclass(frozen=True)
class ArraySource(PickledOnce):
    """The ``TableSource`` of arrays that are features of the same examples.

    A unit is a slice of the rows, or all rows where an array is a stream.

    Attributes:
        table: See ``TableSource``; its columns are not used.
        arrays: The features without the label.
        label: The label, if there is one.
        num_rows: Number of examples.
    """

    table: TableSpec
    arrays: tuple[ArrayFile, ...]
    label: ArrayLabels | None
    num_rows: int

    @property
    def _all(self) -> tuple[ArrayFile, ...]:
        return self.arrays + ((self.label.array,) if self.label else ())

    @property
    def batch_rows(self) -> int:
        """Number of rows of a batch."""
        width = sum(array.row_bytes for array in self._all)
        return max(1, min(_BATCH_BYTES // max(1, width), _MAX_BATCH_ROWS))

    def inspect(self, ref: InputRef) -> TableInput:
        """Return the input: headers were read before."""
        return TableInput(ref, sum(array.num_bytes for array in self._all))

    def units(self, item: TableInput) -> Iterator[Unit]:
        """Yield slices of the rows."""
        step, rows = self.batch_rows, self.num_rows
        size = -(-item.num_bytes // max(1, -(-rows // step)))
        if any(map(is_stream, self._all)):
            yield Unit(tuple(item.ref), 0, size, rows <= step, (0, rows, step), (0, rows))
            return
        for first in range(0, rows, step):
            end = min(first + step, rows)
            yield Unit(tuple(item.ref), first, size, True, (first, end, step), (first, end))

    def read(self, unit: Unit) -> Iterator[TypedBatch]:
        """Yield the rows of a unit.

        Raises:
            InputError: A file changed or is damaged.
            OutputError: A temporary file cannot be written.
        """
        ref, (first, end) = InputRef(*unit.ref), unit.detail
        readers = [read_rows(array, first, end, self.batch_rows) for array in self._all]
        for batch in zip(*readers, strict=True):
            count = len(batch[0])
            rows = RejectCollector(np.arange(first, first + count), np.zeros(count, np.int64))
            yield TypedBatch(ref, self._columns(batch), rows, {}, count)
            first += count

    def _columns(self, batch: tuple[Raw, ...]) -> list[TypedColumn]:
        columns = [
            TypedColumn(array.name, "bytes", _to_arrow(rows), None)
            for array, rows in zip(self.arrays, batch, strict=False)
        ]
        if self.label:
            columns += label_columns(self.label, self.label.values(batch[-1]))
        return columns


def label_columns(label: ArrayLabels, values: npt.NDArray[Any]) -> list[TypedColumn]:
    """Return the features of labels.

    Args:
        label: The label.
        values: int64, or texts; shape [n].
    """
    distinct, numbers = np.unique(values, return_inverse=True)
    indices: npt.NDArray[np.int32] = numbers.reshape(-1).astype(np.int32)
    if not label.texts:
        return [TypedColumn(label.name, "int64", pa.array(distinct), indices)]
    texts = [decode_label(value)[0] for value in distinct.tolist()]
    numbered = {text: number for number, text in enumerate(label.texts)}
    ids = pa.array([numbered[text] for text in texts], pa.int64())
    names = pa.array([text.encode() for text in texts], pa.binary())
    return [
        TypedColumn(label.name, "int64", ids, indices),
        TypedColumn(label.text_name, "bytes", names, indices),
    ]


def _to_arrow(rows: Raw) -> pa.LargeBinaryArray:
    """Return rows of bytes as an Arrow array, without a copy."""
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int64) * width
    return ByteStrings(np.ascontiguousarray(rows).reshape(-1), offsets).arrow()
