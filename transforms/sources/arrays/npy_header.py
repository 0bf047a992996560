"""Headers of .npy files, parsed by ``numpy.lib.format``: dtype and shape, without any value."""

from __future__ import annotations

import io
import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy_format

from shardmill.schemas.errors import InputError
from shardmill.schemas.errors.catalogue import coded
from shardmill.schemas.file_signatures import describe_format

MAX_HEADER_BYTES = 12 + 10_000  # magic, version and length, and the longest header NumPy accepts
_MAX_DIMS = 64
_MAX_SIDE = np.iinfo(np.int64).max
_NUMBERS = "biufc"  # NumPy's kinds of booleans, integers, floats and complex numbers
_WIDEST = {"f": 8, "c": 16}  # bytes; wider floats differ between machines
_READERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
    # Only field names can be other than ASCII, which is where version 3 differs from version 2.
    (3, 0): npy_format.read_array_header_2_0,
}


class NpyHeader(NamedTuple):
    """The header of a .npy file.

    Attributes:
        dtype: Type of the values, in the byte order of the file.
        shape: All dimensions, examples first.
        fortran: Whether the first dimension varies fastest.
        num_bytes: Bytes before the first value.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    num_bytes: int


def parse_header(start: bytes, source: str) -> NpyHeader:
    """Return the header of a .npy file.

    Args:
        start: The first ``MAX_HEADER_BYTES`` of the file, or all bytes of a shorter file.
        source: Name of the file in messages.

    Raises:
        InputError: The header is missing or malformed, or the values are neither numbers nor
            texts.
    """
    if not start.startswith(npy_format.MAGIC_PREFIX):
        raise InputError(_describe_start(start, source))
    stream = io.BytesIO(start)
    try:
        shape, fortran, dtype = _read(stream)
    except Exception as error:
        problem = (str(error) or type(error).__name__).partition("\n")[0].rstrip(".")[:120]
        raise InputError("npy-header-malformed", source=source, problem=problem) from error
    unsupported = _describe_unsupported(dtype, source)
    if unsupported is not None:
        raise InputError(unsupported)
    # With one side longer than 1, C order and Fortran order are the same.
    fortran = fortran and sum(side != 1 for side in shape) > 1
    return NpyHeader(dtype, shape, fortran, stream.tell())


def _read(stream: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy_format.read_magic(stream)
    if version not in _READERS:
        raise ValueError(f"version {version[0]}.{version[1]} is not 1.0, 2.0 or 3.0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a header written by Python 2, or a deprecated dtype
        shape, fortran, dtype = _READERS[version](stream)
    if not all(type(side) is int and 0 <= side <= _MAX_SIDE for side in shape):
        raise ValueError(f"shape is not valid: {shape}")
    if len(shape) > _MAX_DIMS:
        raise ValueError(f"{len(shape):,} dimensions are over {_MAX_DIMS}")
    return shape, fortran, dtype


def _describe_unsupported(dtype: np.dtype[Any], source: str) -> str | None:
    """Return why values of a dtype cannot be written, with the fix, or None."""
    if dtype.names or dtype.shape:
        return coded("npy-structured", source=source)
    if dtype.kind == "O":
        return coded("npy-objects", source=source)
    if dtype.kind in "Mm":
        return coded("npy-not-numbers", source=source, dtype=dtype.name, type="int64")
    if dtype.kind == "V":
        return coded("npy-void", source=source, dtype=dtype.str[1:])
    if dtype.kind in _WIDEST and dtype.itemsize > _WIDEST[dtype.kind]:
        wide = "complex128" if dtype.kind == "c" else "float64"
        return coded("npy-long-double", source=source, dtype=dtype.name, wide=wide)
    if dtype.kind in _NUMBERS + "SU":
        return None
    return coded("npy-not-numbers", source=source, dtype=dtype.name, type="float64")


def _describe_start(start: bytes, source: str) -> str:
    """Return what a file without the signature of .npy is, with the fix."""
    if not start:
        return coded("npy-empty", source=source)
    if start[:1] == b"\x80":
        return coded("npy-pickle", source=source)
    description = describe_format(start)
    if not description:
        return coded("npy-unknown-format", source=source, start=start[:6].hex(" "))
    fix = "" if ": " in description else ": save it with numpy.save"
    return coded("npy-other-format", source=source, description=description, fix=fix)
