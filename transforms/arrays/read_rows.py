"""Reading the rows of a part from an array of any size, in a memory that does not depend on it.

Where rows are large, or all of them few, they are read where they lie. Otherwise each would cost a
read of its own, or cannot be read so at all: of a compressed member, in Fortran order, or in a
bucket. Such an array is read once from its beginning to its end, and its rows put into a temporary
file, those of a part together; the file has no name and ends with the process.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO

import numpy as np
import numpy.typing as npt

from shardmill.schemas.storage import scheme_of
from shardmill.transforms.arrays.files import ArrayFile, check_unchanged, opened_again, stream_bytes
from shardmill.transforms.arrays.row_index import Placing, index_of, slots_of
from shardmill.transforms.arrays.scratch import room_for, scratch_file, write_at

_CHUNK = 4 << 20
_BLOCK_BYTES = 32 << 20  # of rows that are put in their places at a time
_SMALL_ROW = 64 << 10  # bytes; such rows are not worth a read each
_SMALL_ARRAY = 128 << 20  # bytes; such an array stays in memory when it was read once
_KEPT = 64  # arrays that stay laid out
_REMOTE_READS = 16
_lock = threading.Lock()

ReadAt = Callable[[int, int], bytes]


def take_part(
    array: ArrayFile, placing: Placing, slot: int, places: npt.NDArray[np.int64], threads: int
) -> npt.NDArray[np.uint8]:
    """Returns the rows of a part: their values little-endian, in C order.

    Args:
        array: The array.
        placing: How rows find their parts.
        slot: Number of the part.
        places: Where in the result each row goes, rows ascending; int64, shape [n].
        threads: How many reads are under way at a time.

    Returns:
        uint8, shape [n, bytes of a row].

    Raises:
        InputError: The file changed or is damaged.
        OutputError: There is no room to lay the array out.
    """
    out = np.empty((len(places), array.row_bytes), np.uint8)
    if out.size:
        if is_laid_out(array):
            with _lock:
                file = _lay_out(array, placing)
            first = int(index_of(placing).starts[slot])
            _read_laid(file, first * array.row_bytes, places, out)
        else:
            _read_in_place(array, index_of(placing).rows_of(slot), places, out, threads)
        check_unchanged(array)
    if array.descr.startswith(">"):
        swapped: npt.NDArray[np.uint8] = out.view(array.dtype).byteswap().view(np.uint8)
        return swapped
    return out


def is_laid_out(array: ArrayFile) -> bool:
    """Tells whether an array's rows are put into a temporary file first."""
    if array.member or array.fortran:
        return True
    remote = bool(scheme_of(array.uri))
    return array.row_bytes < _SMALL_ROW and (remote or array.num_bytes > _SMALL_ARRAY)


def _read_in_place(
    array: ArrayFile, rows: npt.NDArray[np.int64], places: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8], threads: int,
) -> None:  # fmt: skip
    """Reads rows where they lie, neighbours by one call, into their places."""
    with opened_again(array) as reader:
        # To read over more than a row would make reading from a bucket several times as much.
        gap = min(reader.gap, max(array.row_bytes, 16 << 10))
        spans = _spans(rows, array.row_bytes, gap)
        read = functools.partial(_read_spans, array, reader.read_at, rows, places, out)
        number = min(_REMOTE_READS if scheme_of(array.uri) else threads, len(spans) - 1)
        if number < 2:
            read(spans)
            return
        bounds = np.linspace(0, len(spans) - 1, number + 1).astype(int)
        pieces = [spans[a : b + 1] for a, b in itertools.pairwise(bounds)]
        with ThreadPoolExecutor(number, thread_name_prefix="rows") as pool:
            list(pool.map(read, pieces))


def _spans(rows: npt.NDArray[np.int64], row_bytes: int, gap: int) -> npt.NDArray[np.int64]:
    """Returns where the rows that are read by one call begin, and the number of rows."""
    far = (np.diff(rows) - 1) * row_bytes > gap
    pages = rows * row_bytes // _CHUNK  # no call reads much more than a chunk
    cuts = np.flatnonzero(far | (np.diff(pages) != 0)) + 1
    return np.concatenate(([0], cuts, [len(rows)]))


def _read_spans(
    array: ArrayFile, read_at: ReadAt, rows: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64], out: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64],
) -> None:  # fmt: skip
    width = array.row_bytes
    for first, after in itertools.pairwise(spans.tolist()):
        low, high = int(rows[first]), int(rows[after - 1]) + 1
        data = read_at(array.offset + low * width, (high - low) * width)
        if len(data) < (high - low) * width:
            raise array.changed("it became shorter")
        found = np.frombuffer(data, np.uint8).reshape(-1, width)
        out[places[first:after]] = found[rows[first:after] - low]


def _read_laid(
    file: IO[bytes], start: int, places: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]
) -> None:
    """Reads rows that lie together into their places."""
    width = out.shape[1]
    step = max(1, _CHUNK // width)
    for first in range(0, len(places), step):
        mine = places[first : first + step]
        data = os.pread(file.fileno(), len(mine) * width, start + first * width)
        out[mine] = np.frombuffer(data, np.uint8).reshape(-1, width)


@functools.lru_cache(maxsize=_KEPT)
def _lay_out(array: ArrayFile, placing: Placing) -> IO[bytes]:
    """Returns a temporary file of the rows, those of a part together and ascending.

    Raises:
        InputError: The file changed or is damaged.
        OutputError: There is no room.
    """
    filled = index_of(placing).starts[:-1].copy()
    width = array.row_bytes
    with room_for(array.shown, array.num_bytes):
        file = scratch_file()
        for first, block in _blocks(array):
            slots = slots_of(placing, first, first + len(block))
            order = np.argsort(slots, kind="stable")
            ordered = block[order]
            sizes = np.bincount(slots, minlength=filled.size)
            ends = np.cumsum(sizes)
            for slot in np.flatnonzero(sizes).tolist():
                mine = ordered[ends[slot] - sizes[slot] : ends[slot]]
                write_at(file, int(filled[slot]) * width, mine.reshape(-1).data)
            filled += sizes
    return file


def _blocks(array: ArrayFile) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Yields all rows in their order, some at a time: the first one's number, uint8 [n, width]."""
    width = array.row_bytes
    step = max(1, _BLOCK_BYTES // width)
    if not array.fortran:
        for number, data in enumerate(stream_bytes(array, step * width)):
            yield number * step, np.frombuffer(data, np.uint8).reshape(-1, width)
    elif not array.member and not scheme_of(array.uri):
        with opened_again(array) as reader:
            yield from _transposed(array, reader.read_at, array.offset, step)
    else:
        with scratch_file() as file:
            at = 0
            for data in stream_bytes(array, _CHUNK):
                write_at(file, at, memoryview(data))
                at += len(data)
            read = functools.partial(_read_at, file)
            yield from _transposed(array, read, 0, step)


def _transposed(
    array: ArrayFile, read_at: ReadAt, start: int, step: int
) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Yields the rows of an array in Fortran order, step at a time."""
    item = array.dtype.itemsize
    for first in range(0, array.rows, step):
        number = min(step, array.rows - first)
        if number == array.rows:
            ranges = range(start, start + array.num_bytes, _CHUNK)
            end = start + array.num_bytes
            data = bytearray().join(read_at(at, min(_CHUNK, end - at)) for at in ranges)
        else:
            columns = range(start + first * item, start + array.num_bytes, array.rows * item)
            data = bytearray().join(read_at(at, number * item) for at in columns)
        if len(data) < number * array.row_bytes:
            raise array.changed("it became shorter")
        values = np.frombuffer(data, f"V{item}").reshape(*array.shape[:0:-1], number)
        turned = np.ascontiguousarray(values.T).reshape(number, -1)
        yield first, turned.view(np.uint8)


def _read_at(file: IO[bytes], offset: int, length: int) -> bytes:
    return os.pread(file.fileno(), length, offset)


__all__ = ["is_laid_out", "take_part"]
