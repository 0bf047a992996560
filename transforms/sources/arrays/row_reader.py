"""Read consecutive rows of an array of any size, in memory that does not depend on it.

Rows in C order are read by their offset. Those of a compressed member, and of a stored member whose
checksum is compared, are read in one stream from beginning to end. Rows in Fortran order are not
contiguous: many of them are read together, from a temporary file where reads are requests.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import IO

import numpy as np
import numpy.typing as npt

from shardmill.schemas.errors import OutputError, ShardmillError
from shardmill.schemas.storage import scheme_of
from shardmill.transforms.sources.arrays.array_file import (
    ArrayFile,
    check_unchanged,
    open_unchanged,
    stream_values,
)

_CHUNK_BYTES = 4 << 20  # per read
ReadAt = Callable[[int, int], bytes]
Raw = npt.NDArray[np.uint8]


def is_stream(array: ArrayFile) -> bool:
    """Return whether the rows of an array can only be read from the first to the last."""
    return bool(array.member) or (array.fortran and bool(scheme_of(array.uri)))


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
        OutputError: A temporary file cannot be written.
    """
    for rows in _read(array, first, end, step):
        check_unchanged(array)
        if array.dtype.str.startswith(">"):
            swapped: Raw = rows.view(array.dtype).byteswap().view(np.uint8)
            yield swapped
        else:
            yield rows


def _read(array: ArrayFile, first: int, end: int, step: int) -> Iterator[Raw]:
    width = array.row_bytes
    if not width:
        for at in range(first, end, step):
            yield np.empty((min(step, end - at), 0), np.uint8)
    elif not is_stream(array):
        with open_unchanged(array) as reader:
            if array.fortran:
                yield from _transpose(array, reader.read_at, array.offset, range(first, end, step))
                return
            for at in range(first, end, step):
                start, stop = (array.offset + row * width for row in (at, min(at + step, end)))
                yield _joined(array, reader.read_at, _chunks(start, stop)).reshape(-1, width)
    elif not array.fortran:
        for data in stream_values(array, step * width):
            yield np.frombuffer(data, np.uint8).reshape(-1, width)
    else:
        with _spool(array) as file:
            at = 0
            for data in stream_values(array, _CHUNK_BYTES):
                at += _write(file, data, array)

            def read_at(start: int, length: int) -> bytes:
                return os.pread(file.fileno(), length, start)

            yield from _transpose(array, read_at, 0, range(first, end, step))


def _chunks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length of reads of limited size."""
    for at in range(start, stop, _CHUNK_BYTES):
        yield at, min(_CHUNK_BYTES, stop - at)


def _joined(array: ArrayFile, read_at: ReadAt, reads: Iterator[tuple[int, int]]) -> Raw:
    wanted = [*reads]
    data = bytearray().join(read_at(*each) for each in wanted)
    if len(data) < sum(length for _, length in wanted):
        raise array.changed("it was truncated")
    return np.frombuffer(data, np.uint8)


def _transpose(array: ArrayFile, read_at: ReadAt, start: int, firsts: range) -> Iterator[Raw]:
    """Yield the rows of an array in Fortran order, some at a time, in C order.

    Positioned reads keep memory flat: a memory-mapped file maps 16 pages at each touched column,
    which is the whole file.
    """
    item, end = array.dtype.itemsize, start + array.num_bytes
    for first in firsts:
        count = min(firsts.step, firsts.stop - first)
        if count == array.rows:
            reads = _chunks(start, end)
        else:
            columns = range(start + first * item, end, array.rows * item)
            reads = ((at, count * item) for at in columns)
        data = _joined(array, read_at, reads)
        values = data.view(f"V{item}").reshape(*array.shape[:0:-1], count)
        yield np.ascontiguousarray(values.T).reshape(count, -1).view(np.uint8)


def _spool(array: ArrayFile) -> IO[bytes]:
    """Return a new temporary file without a name, which is deleted when it is closed."""
    try:
        return tempfile.TemporaryFile(prefix="shardmill-", buffering=0)
    except OSError as error:
        raise _full(array, error) from error


def _write(file: IO[bytes], data: bytes, array: ArrayFile) -> int:
    try:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
    except ShardmillError:
        raise
    except OSError as error:
        raise _full(array, error) from error
    return len(data)


def _full(array: ArrayFile, error: OSError) -> OutputError:
    return OutputError(
        f"{array.source} needs {array.num_bytes:,} bytes in a temporary file, which cannot be "
        f"written ({error.strerror or error}): set TMPDIR to a folder on a larger disk and run "
        "again."
    )
