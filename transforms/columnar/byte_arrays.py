"""Many byte strings as one array of bytes: looked into, cut anew and joined without a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

_DENSE = 1 << 20  # up to here a table over all numbers costs less than sorting them


class Blobs(NamedTuple):
    """Byte strings, one behind the other.

    Attributes:
        data: uint8, the bytes of all.
        offsets: int64[n + 1], where each begins and the last one ends; the first is 0.
    """

    data: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, items: Iterable[bytes]) -> Blobs:
        """Returns the items; meant for few of them."""
        listed = list(items)
        data = np.frombuffer(b"".join(listed), np.uint8)
        return cls(data, offsets_of(np.array([len(item) for item in listed], np.int64)))

    @classmethod
    def of_arrow(cls, array: pa.Array) -> Blobs:
        """Returns the bytes of an array of binary or large_binary without nulls, not copied."""
        if array.type not in (pa.binary(), pa.large_binary()):
            raise TypeError(f"{array.type} is not binary")
        wide = array.type == pa.large_binary()
        _, places, data = array.buffers()
        if not len(array):
            return cls(np.empty(0, np.uint8), np.zeros(1, np.int64))
        offsets = np.frombuffer(places, np.int64 if wide else np.int32)
        offsets = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
        all_bytes = np.frombuffer(b"" if data is None else data, np.uint8)
        return cls(all_bytes[offsets[0] : offsets[-1]], offsets - offsets[0])

    @property
    def number(self) -> int:
        """How many byte strings there are."""
        return self.offsets.size - 1

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each, int64."""
        return np.diff(self.offsets)

    def arrow(self) -> pa.LargeBinaryArray:
        """Returns the same as an Arrow array, not copied; its offsets cannot overflow."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), self.number, buffers)


def offsets_of(sizes: np.ndarray) -> np.ndarray:
    """Returns the offsets, int64[n + 1], of things of these sizes that stand one behind another."""
    offsets = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def joined(lots: Sequence[Blobs]) -> Blobs:
    """Returns the byte strings of all lots, in their order."""
    data = np.concatenate([lot.data for lot in lots])
    return Blobs(data, offsets_of(np.concatenate([lot.sizes for lot in lots])))


def taken(blobs: Blobs, ids: np.ndarray) -> Blobs:
    """Returns for each line of ids, int[n, k], the byte strings with these numbers as one."""
    pieces = Blobs.of_arrow(blobs.arrow().take(pa.array(ids.reshape(-1))))
    return Blobs(pieces.data, pieces.offsets[:: ids.shape[1]])


def ranked(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct numbers, sorted, and for each number which of them it is.

    Args:
        numbers: int64[n], none of them negative.
    """
    top = int(numbers.max(initial=0))
    if top > _DENSE:
        distinct, ranks = np.unique(numbers, return_inverse=True)
        return distinct, ranks
    present = np.zeros(top + 1, np.int64)
    present[numbers] = 1
    return np.flatnonzero(present), (np.cumsum(present) - 1)[numbers]


def with_heads(blobs: Blobs, head: Callable[[int], bytes]) -> Blobs:
    """Returns each byte string behind a head that depends on its size alone.

    Args:
        blobs: The byte strings.
        head: Gives the head for a number of bytes; called once for each distinct one.
    """
    distinct, ranks = ranked(blobs.sizes)
    heads = [head(size) for size in distinct.tolist()]
    if len(heads) == 1:
        rows = np.empty((blobs.number, len(heads[0]) + int(distinct[0])), np.uint8)
        rows[:, : len(heads[0])] = np.frombuffer(heads[0], np.uint8)
        rows[:, len(heads[0]) :] = blobs.data.reshape(blobs.number, -1)
        return Blobs(rows.reshape(-1), np.arange(blobs.number + 1, dtype=np.int64) * rows.shape[1])
    ids = np.empty((blobs.number, 2), np.int64)
    ids[:, 0] = ranks
    ids[:, 1] = np.arange(len(heads), len(heads) + blobs.number)
    return taken(joined([Blobs.of(heads), blobs]), ids)
