"""The header of a .npy file: what an array is, without loading any of it.

The format is that of NumPy's NEP 1 and ``numpy.lib.format``. The header is read as a literal and
nothing in it is ever executed or unpickled.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardmill.schemas.errors import InputError

MAGIC = b"\x93NUMPY"
PREFIX = 12  # bytes that hold the length of any header
MAX_HEADER = 10_000  # bytes; NumPy's own limit
_MAX_DIMS = 64
_VERSIONS = {1: 2, 2: 4, 3: 4}  # major version: bytes of the length
_PYTHON_2 = re.compile(r"(\d)L(?=[,)\s])")  # how Python 2 wrote long integers
_NUMBERS = "biufc"
_WIDEST = {"f": 8, "c": 16}  # bytes; wider ones differ from machine to machine

Kind = Literal["number", "text"]


@dataclass(frozen=True)
class NpyHeader:
    """What a .npy file says of its array.

    Attributes:
        dtype: Type of the values, in the byte order of the file.
        shape: All dimensions, examples first.
        fortran: Whether the first dimension varies fastest.
        offset: Where the values begin, in bytes.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int

    @property
    def num_bytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def kind(self) -> Kind:
        """Whether the values are numbers or texts."""
        return "number" if self.dtype.kind in _NUMBERS else "text"


def header_bytes(begin: bytes, what: str) -> int:
    """Returns how many bytes a header takes, magic and all.

    Args:
        begin: The first ``PREFIX`` bytes of the file, or all where it has fewer.
        what: What messages call the file.

    Raises:
        InputError: It is no .npy file.
    """
    if not begin.startswith(MAGIC):
        raise InputError(f"{what} {_other_kind(begin)}: save it with numpy.save.")
    width = _VERSIONS.get(begin[6]) if len(begin) > 6 else None
    if width is None and len(begin) > 6:
        raise InputError(
            f"{what} is of the .npy version {begin[6]}, which is not 1, 2 or 3: save it again with "
            "numpy.save."
        )
    if width is None or len(begin) < 8 + width:
        raise InputError(f"{what} ends within its .npy header: copy it again.")
    size = int.from_bytes(begin[8 : 8 + width], "little")
    if size > MAX_HEADER:
        raise InputError(
            f"{what} has a .npy header of {size:,} bytes, over {MAX_HEADER:,}: save a plain array "
            "of numbers with numpy.save."
        )
    return 8 + width + size


def parse_header(data: bytes, what: str) -> NpyHeader:
    """Returns what a header says.

    Args:
        data: As many bytes as ``header_bytes`` says; fewer where the file ends.
        what: What messages call the file.

    Raises:
        InputError: The header is malformed, or the values are no numbers and no texts.
    """
    size = header_bytes(data[:PREFIX], what)
    if len(data) < size:
        raise InputError(f"{what} ends within its .npy header: copy it again.")
    start = 8 + _VERSIONS[data[6]]
    try:
        text = data[start:size].decode("utf-8" if data[6] == 3 else "latin-1")
        body = ast.literal_eval(_PYTHON_2.sub(r"\1", text.strip()))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise _malformed(what, "is no Python literal") from error
    if not isinstance(body, dict) or set(body) != {"descr", "fortran_order", "shape"}:
        raise _malformed(what, "does not say descr, fortran_order and shape")
    shape, fortran = body["shape"], body["fortran_order"]
    if not isinstance(fortran, bool):
        raise _malformed(what, f"has the fortran_order {_short(fortran)}")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise _malformed(what, f"has the shape {_short(shape)}")
    if len(shape) > _MAX_DIMS:
        raise _malformed(what, f"has {len(shape):,} dimensions, more than {_MAX_DIMS}")
    # With one dimension that is not 1, both orders are the same.
    fortran = fortran and sum(n != 1 for n in shape) > 1
    return NpyHeader(_dtype(body["descr"], what), shape, fortran, size)


def _dtype(descr: object, what: str) -> np.dtype[Any]:
    """Returns the type that a header names.

    Raises:
        InputError: It is malformed, or one whose values are no numbers and no texts.
    """
    if isinstance(descr, list | tuple):
        raise InputError(_structured(what))
    try:
        dtype = np.dtype(descr if isinstance(descr, str) else None)
    except (TypeError, ValueError, SyntaxError) as error:
        raise _malformed(what, f"has the dtype {_short(descr)}") from error
    if not isinstance(descr, str):
        raise _malformed(what, f"has the dtype {_short(descr)}")
    if dtype.names or dtype.shape:
        raise InputError(_structured(what))
    if dtype.kind in "SU" or (
        dtype.kind in _NUMBERS and dtype.itemsize <= _WIDEST.get(dtype.kind, 8)
    ):
        return dtype
    raise InputError(f"{what} holds {_refused(dtype)}")


def _refused(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "O":
        return (
            "pickled Python objects (dtype object), which are never loaded: save an array of "
            "numbers, such as numpy.stack(x), or of texts, such as y.astype(str)."
        )
    if dtype.kind in "Mm":
        return f"{dtype.name}, which is no number: save x.astype('int64')."
    if dtype.kind == "V":
        return (
            f"{dtype.str[1:]}, raw bytes without a type (bfloat16 is saved so): save "
            "x.astype('float32'), or x.view('uint16') to keep the bits."
        )
    return f"{dtype.name}, which differs from machine to machine: save it as " + (
        "x.astype('complex128')." if dtype.kind == "c" else "x.astype('float64')."
    )


def _structured(what: str) -> str:
    return (
        f"{what} holds records with fields (a structured dtype), not plain numbers: save each "
        "field as an array of its own, as in numpy.savez('data.npz', a=x['a'], b=x['b'])."
    )


def _malformed(what: str, problem: str) -> InputError:
    return InputError(f"The .npy header of {what} {problem}: save it again with numpy.save.")


def _other_kind(begin: bytes) -> str:
    if not begin:
        return "has no bytes"
    if begin[:1] == b"\x80":
        return "is a pickle, which is never loaded"
    if begin.startswith(b"PK"):
        return "is a zip file (.npz) and no .npy file"
    if begin.startswith(b"version https://git-lfs"[: len(begin)]):
        return "is a Git LFS pointer and no .npy file"
    return f"begins with {begin[:6].hex(' ')}, so it is no .npy file"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
