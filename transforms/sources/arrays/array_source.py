"""ArraySource: the rows of arrays as typed columns, read in memory that does not depend on size.

Rows in C order are read by their offset. Those of a compressed member, and of a stored member whose
checksum is compared, are read in one stream from beginning to end. Rows in Fortran order are not
contiguous: many of them are read together, and the whole array where reads are requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from blake3 import blake3

from shardmill.schemas.refs import InputRef
from shardmill.schemas.schema_pbtxt import schema_text
from shardmill.schemas.schema_pbtxt.schema_text import array_tags
from shardmill.schemas.storage import RandomReader
from shardmill.transforms.sources.arrays.array_file import (
    ArrayFile,
    check_unchanged,
    open_unchanged,
    stream_values,
)
from shardmill.transforms.sources.arrays.resolve_input import (
    LABEL,
    LABEL_TEXT,
    ArrayLabels,
    InputArrays,
    decode_label,
)
from shardmill.transforms.tables.byte_arrays import ByteStrings
from shardmill.transforms.tables.table_source import (
    PickledOnce,
    RejectCollector,
    TableInput,
    TableSpec,
    TypedBatch,
    TypedColumn,
    Unit,
)

ReadAt = Callable[[int, int], bytes]
Raw = npt.NDArray[np.uint8]


def read_rows(array: ArrayFile, first: int, end: int, step: int) -> Iterator[Raw]:
    """Yield rows in C order and little-endian, ``step`` at a time.

    Args:
        array: The array; all its rows are read if it is a stream.
        first: Number of the first row.
        end: Number of the row after the last one.
        step: Number of rows to yield at a time.

    Yields:
        uint8, shape [n, row_bytes].

    Raises:
        InputError: The file changed or is damaged.
    """
    for rows in _read(array, first, end, step):
        check_unchanged(array)
        if array.dtype.str.startswith(">"):
            swapped: Raw = rows.view(array.dtype).byteswap().view(np.uint8)
            yield swapped
        else:
            yield rows


def _read(array: ArrayFile, first: int, end: int, step: int) -> Iterator[Raw]:
    width, firsts = array.row_bytes, range(first, end, step)
    if not width:
        yield from (np.empty((min(step, end - at), 0), np.uint8) for at in firsts)
    elif array.is_stream:
        size = array.num_bytes if array.fortran else step * width
        for data in stream_values(array, size):
            if array.fortran:
                yield from _transpose(array, partial(_slice, data), firsts)
            else:
                yield np.frombuffer(data, np.uint8).reshape(-1, width)
    else:
        with open_unchanged(array) as reader:
            read_at = partial(_read_values, array, reader)
            if array.fortran:
                yield from _transpose(array, read_at, firsts)
                return
            for at in firsts:
                data = read_at(at * width, min(step, end - at) * width)
                yield np.frombuffer(data, np.uint8).reshape(-1, width)


def _slice(data: bytes, start: int, length: int) -> bytes:
    return data[start : start + length]


def _read_values(array: ArrayFile, reader: RandomReader, start: int, length: int) -> bytes:
    data = reader.read_at(array.header_bytes + start, length)
    if len(data) < length:
        raise array.changed("it was truncated")
    return data


def _transpose(array: ArrayFile, read_at: ReadAt, firsts: range) -> Iterator[Raw]:
    """Yield the rows of an array in Fortran order, some at a time, in C order.

    Positioned reads keep memory flat: a memory-mapped file maps 16 pages at each touched column,
    which is the whole file.
    """
    item = array.dtype.itemsize
    for first in firsts:
        count = min(firsts.step, firsts.stop - first)
        columns = range(first * item, array.num_bytes, array.rows * item)
        data = b"".join(read_at(at, count * item) for at in columns)
        values = np.frombuffer(data, f"V{item}").reshape(*array.shape[:0:-1], count)
        yield np.ascontiguousarray(values.T).reshape(count, -1).view(np.uint8)


_BATCH_BYTES = 8 << 20  # of arrays
_MAX_BATCH_ROWS = 1 << 20


@dataclass(frozen=True)
class ArraySource(PickledOnce):
    """The ``TableSource`` of arrays that are features of the same examples.

    Their files are inputs together: the units of the first one are slices of the rows of all, or
    all rows where an array is a stream.

    Attributes:
        table: See ``TableSource``; it has no columns.
        input: The arrays.
    """

    table: TableSpec
    input: InputArrays

    def schema(self, labels: Sequence[str]) -> str:
        """Return the text of ``schema.pbtxt``, given the labels in the order of their ids."""
        features = [
            schema_text.feature_fields(
                a.name, "bytes", array_tags(a.dtype.newbyteorder("<"), a.shape[1:])
            )
            for a in self.input.arrays
        ]
        label = self.input.label
        if label:
            class_id = schema_text.feature_fields(label.name, "int64")
            if label.texts:
                features.append(schema_text.feature_fields(label.text_name, "bytes"))
                class_id |= schema_text.class_id_domain(label.name, labels)
            features.append(class_id)
        return schema_text.format_schema_text(_by_name(features))

    def features(self) -> list[dict[str, Any]]:
        """Return the manifest's list of features, sorted by name."""
        features = [{"name": a.name, "type": "bytes", "source": "array"} for a in self.input.arrays]
        label = self.input.label
        if label:
            features.append({"name": label.name, "type": "int64", "source": LABEL})
            if label.texts:
                features.append({"name": label.text_name, "type": "bytes", "source": LABEL_TEXT})
        return _by_name(features)

    @property
    def batch_rows(self) -> int:
        """Number of rows of a batch."""
        return max(1, min(_BATCH_BYTES // max(1, self.input.row_bytes), _MAX_BATCH_ROWS))

    def inspect(self, ref: InputRef) -> TableInput:
        """Return a file: headers were read before. The first one stands for all rows."""
        is_first = ref.uri == self.input.files[0].uri
        size = self.input.rows * self.input.row_bytes if is_first else 0
        return TableInput(ref, size)

    def units(self, item: TableInput) -> Iterator[Unit]:
        """Yield slices of the rows."""
        arrays, step, rows = self.input, self.batch_rows, self.input.rows
        if item.ref.uri != arrays.files[0].uri:
            return
        ref = InputRef(arrays.key, item.ref.uri, version=arrays.input_id, ctime=arrays.ctime)
        size = -(-item.num_bytes // max(1, -(-rows // step)))
        is_stream_read = any(array.is_stream for array in arrays.every)
        span = rows if is_stream_read else step
        for first in range(0, rows, span):
            end = min(first + span, rows)
            detail = first, end
            identity = (*detail, step, arrays.layout)
            yield Unit(tuple(ref), first, size, end - first <= step, identity, detail)

    def read(self, unit: Unit) -> Iterator[TypedBatch]:
        """Yield the rows of a unit.

        Raises:
            InputError: A file changed or is damaged.
        """
        ref, (first, end) = InputRef(*unit.ref), unit.detail
        readers = [read_rows(array, first, end, self.batch_rows) for array in self.input.every]
        content = blake3()
        for batch in zip(*readers, strict=True):
            for values in batch:
                content.update(values)
            count = len(batch[0])
            rows = RejectCollector(np.arange(first, first + count), np.zeros(count, np.int64))
            yield TypedBatch(ref, self._columns(batch), rows, {}, count, content.hexdigest())
            first += count

    def content(self, unit: Unit) -> str:
        """Return the BLAKE3 of the rows of a unit."""
        *_, last = self.read(unit)
        return last.content

    def _columns(self, batch: tuple[Raw, ...]) -> list[TypedColumn]:
        columns = [
            TypedColumn(array.name, "bytes", ByteStrings.fixed(rows.reshape(-1), len(rows)).arrow())
            for array, rows in zip(self.input.arrays, batch, strict=False)
        ]
        if self.input.label:
            columns += label_columns(self.input.label, self.input.label.values(batch[-1]))
        return columns


def _by_name(features: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(features, key=lambda feature: feature["name"].encode())


def label_columns(label: ArrayLabels, values: npt.NDArray[Any]) -> list[TypedColumn]:
    """Return the features of labels.

    Args:
        label: The label.
        values: int64, or texts; shape [n].
    """
    distinct, numbers = np.unique(values, return_inverse=True)
    indices: npt.NDArray[np.int32] = numbers.reshape(-1).astype(np.int32)
    if not label.texts:
        ids = pa.DictionaryArray.from_arrays(indices, pa.array(distinct))
        return [TypedColumn(label.name, "int64", ids)]
    texts = [decode_label(value)[0] for value in distinct.tolist()]
    numbered = {text: number for number, text in enumerate(label.texts)}
    ids = pa.array([numbered[text] for text in texts], pa.int64())
    names = pa.array([text.encode() for text in texts], pa.binary())
    return [
        TypedColumn(label.name, "int64", pa.DictionaryArray.from_arrays(indices, ids)),
        TypedColumn(label.text_name, "bytes", pa.DictionaryArray.from_arrays(indices, names)),
    ]
