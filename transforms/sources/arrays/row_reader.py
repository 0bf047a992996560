"""Reading the rows of a part from an array of any size, in memory that does not depend on it.

Large rows are read directly, by their offsets. Other arrays are regrouped first: read once from
beginning to end and written to a scratch file in which the rows of each part are contiguous. That
is where rows are small (each would cost one read), where the member is compressed or in Fortran
order (rows are not contiguous), and where a small array is in a bucket (each row would cost one
request).
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import IO

import numpy as np
import numpy.typing as npt

from shardmill.schemas.storage import scheme_of
from shardmill.transforms.runtime.map_ordered import map_ordered, storage_threads
from shardmill.transforms.sources.arrays import scratch
from shardmill.transforms.sources.arrays.array_file import (
    ArrayFile,
    check_unchanged,
    open_unchanged,
    stream_values,
)
from shardmill.transforms.sources.arrays.row_index import RowPlacement, index_rows, row_parts

_CHUNK_BYTES = 4 << 20  # per read
_BLOCK_BYTES = 32 << 20  # of rows that are regrouped at a time
_LARGE_ROW = 64 << 10  # bytes; smaller rows are not worth one read each
_LARGE_ARRAY = 128 << 20  # bytes; a smaller array in a bucket is not worth one request a row
_MAX_REGROUPED = 64  # arrays whose scratch files are kept
_READ_AHEAD = 256  # rows
_lock = threading.Lock()

ReadAt = Callable[[int, int], bytes]


def read_part(
    array: ArrayFile, placement: RowPlacement, part: int, places: npt.NDArray[np.int64],
    threads: int,
) -> npt.NDArray[np.uint8]:  # fmt: skip
    """Return the rows of a part: their values, little-endian, in C order.

    Args:
        array: The array.
        placement: How rows are placed in parts.
        part: Number of the part among all splits.
        places: Place of each row in the result, in ascending order of rows; int64, shape [n].
        threads: Number of concurrent reads.

    Returns:
        uint8, shape [n, row_bytes].

    Raises:
        InputError: The file changed or is damaged.
        OutputError: The scratch file cannot be written.
    """
    out = np.empty((len(places), array.row_bytes), np.uint8)
    if out.size:
        index = index_rows(placement)
        if is_regrouped(array):
            with _lock:
                file = _regroup(array, placement)
            _read_regrouped(file, int(index.starts[part]) * array.row_bytes, places, out)
        else:
            _read_rows(array, index.rows_of(part), places, out, threads)
        check_unchanged(array)
    if array.dtype.str.startswith(">"):
        swapped: npt.NDArray[np.uint8] = out.view(array.dtype).byteswap().view(np.uint8)
        return swapped
    return out


def is_regrouped(array: ArrayFile) -> bool:
    """Return whether the rows of an array are copied to a scratch file first."""
    if array.compressed or array.fortran or array.row_bytes < _LARGE_ROW:
        return True
    return bool(scheme_of(array.uri)) and array.num_bytes < _LARGE_ARRAY


def _read_rows(
    array: ArrayFile, rows: npt.NDArray[np.int64], places: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8], threads: int,
) -> None:  # fmt: skip
    """Read rows by their offsets, several at a time, into their places."""
    width = array.row_bytes

    def read(task: tuple[int, int]) -> None:
        row, place = task
        data = reader.read_at(array.offset + row * width, width)
        if len(data) < width:
            raise array.changed("it was truncated")
        out[place] = np.frombuffer(data, np.uint8)

    workers = storage_threads(array.uri) or threads
    with open_unchanged(array) as reader:
        tasks = zip(rows.tolist(), places.tolist(), strict=True)
        for _ in map_ordered(read, tasks, workers, window=_READ_AHEAD):
            pass


def _read_regrouped(
    file: IO[bytes], start: int, places: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]
) -> None:
    """Read consecutive rows of a scratch file into their places."""
    width = out.shape[1]
    step = max(1, _CHUNK_BYTES // width)
    for first in range(0, len(places), step):
        some = places[first : first + step]
        data = os.pread(file.fileno(), len(some) * width, start + first * width)
        out[some] = np.frombuffer(data, np.uint8).reshape(-1, width)


@functools.lru_cache(maxsize=_MAX_REGROUPED)
def _regroup(array: ArrayFile, placement: RowPlacement) -> IO[bytes]:
    """Return a scratch file of all rows, grouped by part and ascending in each part.

    Raises:
        InputError: The file changed or is damaged.
        OutputError: The scratch file cannot be written.
    """
    starts = index_rows(placement).starts
    with scratch.report_full_disk(array.source, array.num_bytes):
        file = scratch.open_scratch()
        scratch.write_grouped(
            file, starts,
            ((row_parts(placement, at, at + len(rows)), rows) for at, rows in _blocks(array)),
        )  # fmt: skip
    return file


def _blocks(array: ArrayFile) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Yield consecutive rows in C order: the number of the first, and uint8 [n, row_bytes]."""
    width = array.row_bytes
    step = max(1, _BLOCK_BYTES // width)
    if not array.fortran:
        for number, data in enumerate(stream_values(array, step * width)):
            yield number * step, np.frombuffer(data, np.uint8).reshape(-1, width)
    elif not array.compressed and not scheme_of(array.uri):
        with open_unchanged(array) as reader:
            yield from _transpose(array, reader.read_at, array.offset, step)
    else:
        with scratch.open_scratch() as file:
            at = 0
            for data in stream_values(array, _CHUNK_BYTES):
                scratch.write_at(file, at, memoryview(data))
                at += len(data)
            yield from _transpose(
                array, lambda start, length: os.pread(file.fileno(), length, start), 0, step
            )


def _transpose(
    array: ArrayFile, read_at: ReadAt, start: int, step: int
) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Yield the rows of an array in Fortran order, step at a time, in C order.

    Positioned reads keep memory flat: a memory-mapped file maps 16 pages at each touched column,
    which is the whole file.
    """
    item, end = array.dtype.itemsize, start + array.num_bytes
    for first in range(0, array.rows, step):
        count = min(step, array.rows - first)
        if count == array.rows:
            chunks = range(start, end, _CHUNK_BYTES)
            reads = ((at, min(_CHUNK_BYTES, end - at)) for at in chunks)
        else:
            columns = range(start + first * item, end, array.rows * item)
            reads = ((at, count * item) for at in columns)
        data = bytearray().join(read_at(*each) for each in reads)
        if len(data) < count * array.row_bytes:
            raise array.changed("it was truncated")
        values = np.frombuffer(data, f"V{item}").reshape(*array.shape[:0:-1], count)
        yield first, np.ascontiguousarray(values.T).reshape(count, -1).view(np.uint8)
