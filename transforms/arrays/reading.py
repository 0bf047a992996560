"""Reading chosen rows of an array of any size, in a memory that does not depend on its size.

Rows of a plain array are read where they lie. What cannot be read so (a compressed member, Fortran
order, or small rows in a bucket, where each call costs as much as a megabyte) is first laid out
plainly in a temporary file, once a process; the file has no name and ends with the process.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO

import numpy as np
import numpy.typing as npt

from shardmill.schemas.storage import scheme_of
from shardmill.transforms.arrays.files import ArrayFile, check_unchanged, opened_again, stream_bytes
from shardmill.transforms.arrays.scratch import room_for, scratch_file

_CHUNK = 4 << 20
_TRANSPOSED_BYTES = 64 << 20  # of rows in Fortran order that are turned round at a time
_SMALL_ROW = 64 << 10  # bytes; in a bucket such rows are not worth a call each
_KEPT = 64  # arrays that stay laid out
_REMOTE_READS = 16
_lock = threading.Lock()

ReadAt = Callable[[int, int], bytes]


def take_rows(
    array: ArrayFile, rows: npt.NDArray[np.int64], places: npt.NDArray[np.int64], threads: int
) -> npt.NDArray[np.uint8]:
    """Returns some rows of an array: their values little-endian, in C order.

    Args:
        array: The array.
        rows: Which rows, ascending; int64, shape [n].
        places: Where in the result each of them goes; int64, shape [n].
        threads: How many reads are under way at a time.

    Returns:
        uint8, shape [n, bytes of a row].

    Raises:
        InputError: The file changed or is damaged.
        OutputError: There is no room to lay the array out.
    """
    out = np.empty((len(rows), array.row_bytes), np.uint8)
    if out.size:
        with _plain(array) as (read_at, start, gap):
            spans = _spans(rows, array.row_bytes, gap)
            remote = bool(scheme_of(array.uri)) and not _laid_out(array)
            read = functools.partial(_read_spans, array, (read_at, start), rows, places, out)
            _spread(read, spans, _REMOTE_READS if remote else threads)
        check_unchanged(array)
    if array.descr.startswith(">"):
        swapped: npt.NDArray[np.uint8] = out.view(array.dtype).byteswap().view(np.uint8)
        return swapped
    return out


def _spans(rows: npt.NDArray[np.int64], row_bytes: int, gap: int) -> npt.NDArray[np.int64]:
    """Returns where the rows that are read by one call begin, and the number of rows."""
    far = (np.diff(rows) - 1) * row_bytes > gap
    pages = rows * row_bytes // _CHUNK  # no call reads much more than a chunk
    cuts = np.flatnonzero(far | (np.diff(pages) != 0)) + 1
    return np.concatenate(([0], cuts, [len(rows)]))


def _spread(
    read: Callable[[npt.NDArray[np.int64]], None], spans: npt.NDArray[np.int64], threads: int
) -> None:
    threads = min(threads, len(spans) - 1)
    if threads < 2:
        read(spans)
        return
    bounds = np.linspace(0, len(spans) - 1, threads + 1).astype(int)
    pieces = [spans[a : b + 1] for a, b in itertools.pairwise(bounds)]
    with ThreadPoolExecutor(threads, thread_name_prefix="rows") as pool:
        list(pool.map(read, pieces))


def _read_spans(
    array: ArrayFile, source: tuple[ReadAt, int], rows: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64], out: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64],
) -> None:  # fmt: skip
    read_at, start = source
    width = array.row_bytes
    bounds = spans.tolist()
    for first, after in itertools.pairwise(bounds):
        low, high = int(rows[first]), int(rows[after - 1]) + 1
        data = read_at(start + low * width, (high - low) * width)
        if len(data) < (high - low) * width:
            raise array.changed("it became shorter")
        if after - first == 1:
            out[places[first]] = np.frombuffer(data, np.uint8)
        else:
            found = np.frombuffer(data, np.uint8).reshape(-1, width)
            out[places[first:after]] = found[rows[first:after] - low]


@contextmanager
def _plain(array: ArrayFile) -> Iterator[tuple[ReadAt, int, int]]:
    """Opens the plain values: how to read them, where they begin, and what gap is read over."""
    if _laid_out(array):
        with _lock:
            file = _lay_out(array)
        yield _reader_of(file), 0, 16 << 10
        return
    with opened_again(array) as reader:
        # More than a row of gap would make reading rows from a bucket several times as much.
        yield reader.read_at, array.offset, min(reader.gap, max(array.row_bytes, 16 << 10))


def _laid_out(array: ArrayFile) -> bool:
    small = bool(scheme_of(array.uri)) and array.row_bytes < _SMALL_ROW
    return bool(array.member) or array.fortran or small


@functools.lru_cache(maxsize=_KEPT)
def _lay_out(array: ArrayFile) -> IO[bytes]:
    """Returns a temporary file of the values, row after row.

    Raises:
        InputError: The file changed or is damaged.
        OutputError: There is no room.
    """
    with room_for(array.shown, array.num_bytes):
        return _laid(array)


def _laid(array: ArrayFile) -> IO[bytes]:
    if not array.member and not scheme_of(array.uri):
        with opened_again(array) as reader:
            return _transposed(array, reader.read_at, array.offset)
    file = scratch_file()
    for data in stream_bytes(array, _CHUNK):
        _write(file, data)
    return _transposed(array, _reader_of(file), 0) if array.fortran else file


def _transposed(array: ArrayFile, read_at: ReadAt, start: int) -> IO[bytes]:
    """Returns a temporary file of an array in Fortran order, turned round block by block."""
    file = scratch_file()
    item, width = array.dtype.itemsize, math.prod(array.shape[1:])
    block = max(1, _TRANSPOSED_BYTES // max(1, array.row_bytes))
    for first in range(0, array.rows if width else 0, block):
        number = min(block, array.rows - first)
        if number == array.rows:
            data = bytearray().join(
                read_at(start + at, min(_CHUNK, array.num_bytes - at))
                for at in range(0, array.num_bytes, _CHUNK)
            )
        else:
            columns = range(start + first * item, start + array.num_bytes, array.rows * item)
            data = bytearray().join(read_at(at, number * item) for at in columns)
        if len(data) < number * array.row_bytes:
            raise array.changed("it became shorter")
        values = np.frombuffer(data, f"V{item}").reshape(*array.shape[:0:-1], number)
        _write(file, np.ascontiguousarray(values.T).reshape(-1).view(np.uint8).data)
    return file


def _write(file: IO[bytes], data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _reader_of(file: IO[bytes]) -> ReadAt:
    def read_at(offset: int, length: int) -> bytes:
        return os.pread(file.fileno(), length, offset)

    return read_at


__all__ = ["take_rows"]
