"""Which rows of an array each part has: found from hashes of row numbers alone.

The hashes are those of rows in general (``transforms.rows.places``): a row is known by the key of
its input and its number. All rows are hashed twice in each process, chunk by chunk, and their
numbers kept in a temporary file, those of a part together; so parts need not look at each other's.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import IO

import numpy as np
import numpy.typing as npt

from shardmill.schemas.dataset.splits import Splits
from shardmill.transforms.arrays.scratch import room_for, scratch_file, write_at
from shardmill.transforms.columnar.row_hash import hash_offsets, part_numbers, split_numbers

_CHUNK = 1 << 20  # rows that are hashed at a time
_ROW = np.dtype("<u8")
_lock = threading.Lock()


@dataclass(frozen=True)
class Placing:
    """How the rows of an array find their parts.

    Attributes:
        key: Of the input.
        rows: How many there are.
        seed: Of the hash.
        shares: Splits and their shares.
        parts: Number of parts of each split, in the order of shares; 0 where the share is 0.
    """

    key: str
    rows: int
    seed: int
    shares: tuple[tuple[str, Fraction], ...]
    parts: tuple[int, ...]

    def slot(self, split: str, part: int) -> int:
        """Returns the number of a part among all parts of all splits."""
        names = [name for name, _ in self.shares]
        return sum(self.parts[: names.index(split)]) + part


@dataclass(frozen=True)
class RowIndex:
    """The numbers of all rows, part by part, in a temporary file that ends with the process.

    Attributes:
        file: The file: uint64 little-endian, ascending in each part.
        starts: int64[parts + 1], where each part begins, counted in rows.
    """

    file: IO[bytes]
    starts: npt.NDArray[np.int64]

    def rows_of(self, slot: int) -> npt.NDArray[np.int64]:
        """Returns the rows of a part, ascending; int64, shape [n]."""
        first, after = int(self.starts[slot]), int(self.starts[slot + 1])
        size = (after - first) * _ROW.itemsize
        data = os.pread(self.file.fileno(), size, first * _ROW.itemsize)
        return np.frombuffer(data, _ROW).astype(np.int64)


def index_of(placing: Placing) -> RowIndex:
    """Returns the index of an array's rows, made once a process."""
    with _lock:
        return _index_of(placing)


def positions_of(placing: Placing, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Returns the places of rows in the global order; uint64, shape [n], no two alike."""
    found: npt.NDArray[np.uint64] = hash_offsets(placing.seed, placing.key, rows).position
    return found


@functools.lru_cache(maxsize=8)
def _index_of(placing: Placing) -> RowIndex:
    counts = np.zeros(sum(placing.parts), np.int64)
    for _, slots in _slots(placing):
        counts += np.bincount(slots, minlength=counts.size)
    starts = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    with room_for("The list of rows", placing.rows * _ROW.itemsize):
        return RowIndex(_write_rows(placing, starts), starts)


def _write_rows(placing: Placing, starts: npt.NDArray[np.int64]) -> IO[bytes]:
    """Returns a file with the numbers of all rows, part by part."""
    file = scratch_file()
    filled = starts[:-1].copy()
    for first, slots in _slots(placing):
        order = np.argsort(slots, kind="stable")
        rows = (order + first).astype(_ROW)
        sizes = np.bincount(slots, minlength=filled.size)
        ends = np.cumsum(sizes)
        for slot in np.flatnonzero(sizes).tolist():
            mine = rows[ends[slot] - sizes[slot] : ends[slot]]
            write_at(file, int(filled[slot]) * _ROW.itemsize, mine.view(np.uint8).data)
        filled += sizes
    return file


def slots_of(placing: Placing, first: int, after: int) -> npt.NDArray[np.int64]:
    """Returns the number of the part of each row from first to before after; int64, shape [n]."""
    hashes = hash_offsets(placing.seed, placing.key, np.arange(first, after))
    split = split_numbers(Splits("fractions", placing.shares), hashes.split)
    slots = np.empty(after - first, np.int64)
    base = 0
    for number, parts in enumerate(placing.parts):
        mine = split == number
        if parts and mine.any():
            slots[mine] = base + part_numbers(hashes.position[mine], parts)
        base += parts
    return slots


def _slots(placing: Placing) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yields chunk by chunk its first row, and the part of each row."""
    for first in range(0, placing.rows, _CHUNK):
        yield first, slots_of(placing, first, min(first + _CHUNK, placing.rows))


__all__ = ["Placing", "RowIndex", "index_of", "positions_of", "slots_of"]
