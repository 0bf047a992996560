"""Byte strings stored in one array: concatenated and prefixed without a Python loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

_DENSE_SIZES = 1 << 16


class ByteStrings(NamedTuple):
    """Byte strings stored back to back.

    Attributes:
        data: uint8, the concatenated bytes.
        offsets: int64[n + 1], start of each string and end of the last; the first is 0.
    """

    data: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, items: Iterable[bytes]) -> ByteStrings:
        """Return a few Python byte strings as one array."""
        strings = list(items)
        data = np.frombuffer(b"".join(strings), np.uint8)
        return cls(data, offsets_from_sizes(np.array([len(item) for item in strings], np.int64)))

    @classmethod
    def of_arrow(cls, array: pa.Array) -> ByteStrings:
        """Return the values of a binary or large_binary array without nulls, without a copy."""
        if array.type not in (pa.binary(), pa.large_binary()):
            raise TypeError(f"{array.type} is not binary")
        offset_type = np.int64 if array.type == pa.large_binary() else np.int32
        _, offset_buffer, data = array.buffers()
        if not len(array):
            return cls(np.empty(0, np.uint8), np.zeros(1, np.int64))
        offsets = np.frombuffer(offset_buffer, offset_type)
        offsets = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
        all_bytes = np.frombuffer(b"" if data is None else data, np.uint8)
        return cls(all_bytes[offsets[0] : offsets[-1]], offsets - offsets[0])

    @classmethod
    def fixed(cls, data: np.ndarray, number: int) -> ByteStrings:
        """Return a number of byte strings of one size that are stored back to back."""
        return cls(data, np.arange(number + 1, dtype=np.int64) * (data.size // max(1, number)))

    @property
    def number(self) -> int:
        """Number of byte strings."""
        return self.offsets.size - 1

    @property
    def sizes(self) -> np.ndarray:
        """Length of each string in bytes, int64[n]."""
        return np.diff(self.offsets)

    @property
    def width(self) -> int:
        """Length of all strings, or 0 if they are empty, or differ in it."""
        sizes = self.sizes
        return int(sizes[0]) if sizes.size and (sizes == sizes[0]).all() else 0

    def arrow(self) -> pa.LargeBinaryArray:
        """Return the strings as an Arrow array without a copy; 64-bit offsets do not overflow."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), self.number, buffers)


def offsets_from_sizes(sizes: np.ndarray) -> np.ndarray:
    """Return the offsets, int64[n + 1], of items of these sizes stored back to back."""
    offsets = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def concatenate(arrays: Sequence[ByteStrings]) -> ByteStrings:
    """Return the byte strings of all arrays, in order."""
    data = np.concatenate([strings.data for strings in arrays])
    sizes = np.concatenate([strings.sizes for strings in arrays])
    return ByteStrings(data, offsets_from_sizes(sizes))


def rank_sizes(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct sizes, ascending, and the rank of each size among them.

    Args:
        sizes: int64[n], not negative.
    """
    most = int(sizes.max(initial=0))
    if most > _DENSE_SIZES:
        return np.unique(sizes, return_inverse=True)
    # Sizes are small and have few values: a table of them takes less time than a sort.
    seen = np.zeros(most + 1, np.bool_)
    seen[sizes] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[sizes]


def join_fixed(arrays: Sequence[ByteStrings]) -> ByteStrings:
    """Return the first strings of all arrays as one string, the second ones as another, and so on.

    Args:
        arrays: At least one; of one number, each with a ``width``.
    """
    rows, at = arrays[0].number, 0
    widths = [strings.data.size // rows for strings in arrays]
    data = np.empty(rows * sum(widths), np.uint8)
    for strings, width in zip(arrays, widths, strict=True):
        kind = f"V{width}"  # a strided copy of whole strings
        np.ndarray((rows,), kind, data, at, (sum(widths),))[:] = strings.data.view(kind)
        at += width
    return ByteStrings.fixed(data, rows)


def prepend_headers(strings: ByteStrings, header: Callable[[int], bytes]) -> ByteStrings:
    """Return each byte string with a header in front that depends only on its size.

    Args:
        strings: The byte strings.
        header: Returns the header for a size in bytes, empty for 0 alone; called once per size.
    """
    size = strings.width
    if size:  # as of float32 values
        start = header(size)
        starts = np.frombuffer(start * strings.number, np.uint8)
        return join_fixed([ByteStrings.fixed(starts, strings.number), strings])
    distinct, ranks = rank_sizes(strings.sizes)
    headers = ByteStrings.of(map(header, distinct.tolist()))
    ids = np.column_stack((ranks, headers.number + np.arange(strings.number)))
    pieces = concatenate([headers, strings]).arrow().take(pa.array(ids.reshape(-1)))
    both = ByteStrings.of_arrow(pieces)
    return ByteStrings(both.data, both.offsets[::2])
