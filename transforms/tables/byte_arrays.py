"""Byte strings stored in one array: concatenated and prefixed without a Python loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_NOTHING = pa.scalar(b"", pa.large_binary())


class ByteStrings(NamedTuple):
    """Byte strings stored back to back.

    Attributes:
        data: uint8, the concatenated bytes.
        offsets: int64[n + 1], start of each string and end of the last; the first is 0.
    """

    data: np.ndarray
    offsets: np.ndarray

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


def headers_of(
    sizes: np.ndarray, header: Callable[[int], bytes]
) -> tuple[pa.LargeBinaryArray, np.ndarray]:
    """Return the distinct headers of items, and the index of each item's header; int32[n].

    Args:
        sizes: Bytes of each item; int64[n].
        header: Returns the header for a size; called once per size.
    """
    encoded = pa.array(sizes).dictionary_encode()
    headers = pa.array([*map(header, encoded.dictionary.to_pylist())], pa.large_binary())
    return headers, encoded.indices.to_numpy()


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
    headers, rows = headers_of(strings.sizes, header)
    both = pc.binary_join_element_wise(headers.take(pa.array(rows)), strings.arrow(), _NOTHING)
    return ByteStrings.of_arrow(both)
