"""RowIndex: the rows of an array that belong to each part, computed from hashes of row numbers.

A row is identified by the key of its input and its number (``transforms.tables.row_hash``). Each
process hashes all row numbers twice, in chunks, and writes them to a scratch file, grouped by part,
so that no row number crosses a shuffle.
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
from shardmill.transforms.sources.arrays.scratch import (
    open_scratch,
    report_full_disk,
    write_grouped,
)
from shardmill.transforms.tables.byte_arrays import offsets_from_sizes
from shardmill.transforms.tables.row_hash import hash_offsets, part_numbers, split_numbers

_CHUNK_ROWS = 1 << 20  # hashed at a time
_ROW = np.dtype("<u8")
_lock = threading.Lock()


@dataclass(frozen=True)
class RowPlacement:
    """The parameters that place the rows of an array in parts.

    Attributes:
        key: Key of the input.
        rows: Number of rows.
        seed: Seed of the hash.
        shares: Splits and their shares.
        parts: Number of parts of each split, in the order of shares; 0 where the share is 0.
    """

    key: str
    rows: int
    seed: int
    shares: tuple[tuple[str, Fraction], ...]
    parts: tuple[int, ...]

    def part_index(self, split: str, part: int) -> int:
        """Return the number of a split's part among the parts of all splits."""
        names = [name for name, _ in self.shares]
        return sum(self.parts[: names.index(split)]) + part


@dataclass(frozen=True)
class RowIndex:
    """The numbers of all rows, grouped by part, in a scratch file.

    Attributes:
        file: The scratch file: uint64 little-endian, ascending in each part.
        starts: First row of each part, then the number of rows; int64, shape [parts + 1].
    """

    file: IO[bytes]
    starts: npt.NDArray[np.int64]

    def rows_of(self, part: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows of a part, ascending; int64, shape [n]."""
        first, end = int(self.starts[part]), int(self.starts[part + 1])
        size = (end - first) * _ROW.itemsize
        data = os.pread(self.file.fileno(), size, first * _ROW.itemsize)
        return np.frombuffer(data, _ROW).astype(np.int64)


def index_rows(placement: RowPlacement) -> RowIndex:
    """Return the index of an array's rows, computed once in each process.

    Raises:
        OutputError: The scratch file cannot be written.
    """
    with _lock:
        return _index_rows(placement)


def row_parts(placement: RowPlacement, first: int, end: int) -> npt.NDArray[np.int64]:
    """Return the part, among all splits, of each row from first to end - 1; int64, shape [n]."""
    hashes = hash_offsets(placement.seed, placement.key, np.arange(first, end))
    split = split_numbers(Splits("fractions", placement.shares), hashes.split)
    parts = np.empty(end - first, np.int64)
    before = 0
    for number, count in enumerate(placement.parts):
        of_split = split == number
        if count and of_split.any():
            parts[of_split] = before + part_numbers(hashes.position[of_split], count)
        before += count
    return parts


@functools.lru_cache(maxsize=8)
def _index_rows(placement: RowPlacement) -> RowIndex:
    counts = np.zeros(sum(placement.parts), np.int64)
    for parts, _ in _chunks(placement):
        counts += np.bincount(parts, minlength=counts.size)
    starts = offsets_from_sizes(counts)
    with report_full_disk("The list of rows", placement.rows * _ROW.itemsize):
        file = open_scratch()
        write_grouped(file, starts, _chunks(placement))
    return RowIndex(file, starts)


def _chunks(
    placement: RowPlacement,
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]]:
    """Yield the part of each row, and row numbers as bytes (shape [n, 8]), a chunk at a time."""
    for first in range(0, placement.rows, _CHUNK_ROWS):
        end = min(first + _CHUNK_ROWS, placement.rows)
        numbers = np.arange(first, end, dtype=_ROW).view(np.uint8)
        yield row_parts(placement, first, end), numbers.reshape(-1, _ROW.itemsize)
