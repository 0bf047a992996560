"""Texts to numbers, many at a time: which texts are int64, float32 or a boolean, and why not.

Arrow's own parsers do the work, but they read what is no number here (``0x10``) and turn ``1e400``
into infinity, so the bytes are looked at first: where a whole array holds only characters of plain
numbers, Arrow's answer stands; else masks over the array tell what each text is.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.schema_pbtxt.columns import SPACES

Codes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

INTEGER_CHARACTERS = b"0123456789-"  # without the plus, which Arrow does not read
NUMBER_CHARACTERS = b"0123456789-+.eE"
_WHOLE = r"\A[+-]?[0-9]+\z"
_PADDED = r"\A[+-]?0[0-9]+\z"
_DECIMAL = r"\A[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\z"
_NOT_FINITE = r"(?i)\A[+-]?(nan|inf|infinity)\z"
_INT64_DIGITS = 19
_GREATEST, _LEAST = "9223372036854775807", "9223372036854775808"


class Fault(IntEnum):
    """Why a text does not fit its column."""

    NONE = 0
    CAST = 1  # no number (or boolean) at all
    PADDED = 2  # an integer with leading zeros
    WIDE = 3  # a number that the type cannot hold
    BOUNDS = 4  # a number outside the schema's domain
    DOMAIN = 5  # a text outside the schema's domain
    MISSING = 6  # nothing where a value is required


class Read(NamedTuple):
    """What texts are.

    Attributes:
        values: A value for each text, of the type asked for; any where there is a fault.
        faults: ``Fault`` of each text; None when all fit.
    """

    values: npt.NDArray[Any]
    faults: Codes | None


def parts_of(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Returns the bytes of a binary array without nulls, and the len + 1 bounds of its texts."""
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return np.zeros(0, np.uint8), np.zeros(len(texts) + 1, np.int32)
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data, np.uint8), bounds


def foreign(texts: pa.Array, characters: bytes) -> bytes:
    """Returns what a binary array holds besides some ASCII characters, in one piece."""
    data, bounds = parts_of(texts)
    return data[bounds[0] : bounds[-1]].tobytes().translate(None, characters)


def as_strings(texts: pa.Array) -> pa.Array:
    """Returns the same bytes as Arrow strings, unchecked: only for functions on ASCII."""
    return texts.view(pa.string())


def trim(texts: pa.Array) -> pa.Array:
    """Returns the texts without ASCII spaces around them."""
    return pc.ascii_trim_whitespace(as_strings(texts)).view(pa.binary())


def mask_of(flags: pa.Array) -> Mask:
    """Returns Arrow booleans without nulls as NumPy's."""
    return np.asarray(flags.to_numpy(zero_copy_only=False), np.bool_)


def matches(texts: pa.Array, pattern: str) -> Mask:
    """Tells which texts match a regular expression (RE2, on bytes)."""
    return mask_of(pc.match_substring_regex(texts, pattern))


class Padding(IntEnum):
    """What an integer with leading zeros is."""

    REFUSED = 0
    ALLOWED = 1


def read_int64(texts: pa.Array, padding: Padding) -> Read:
    """Returns texts as int64: ``[+-]?digits`` with spaces around, no leading zeros unless allowed.

    Args:
        texts: Binary array without nulls.
        padding: Whether "007" is 7.
    """
    plain = _plain(texts, INTEGER_CHARACTERS)
    if plain is not None:
        values = _cast(plain, pa.int64())
        if values is not None and (padding is Padding.ALLOWED or not _any_padded(plain)):
            return Read(values, None)
    trimmed = trim(texts)
    faults = np.full(len(texts), Fault.CAST, np.uint8)
    whole = matches(trimmed, _WHOLE)
    if padding is Padding.REFUSED:
        padded = matches(trimmed, _PADDED)
        faults[padded] = Fault.PADDED
        whole &= ~padded
    signed = as_strings(trimmed.filter(pa.array(whole)))
    negative = pc.starts_with(signed, "-")
    digits = pc.ascii_ltrim(pc.ascii_ltrim(signed, characters="+-"), characters="0")
    digits = pc.if_else(pc.equal(pc.binary_length(digits), 0), "0", digits)
    length = pc.binary_length(digits)
    within = pc.less_equal(digits, pc.if_else(negative, _LEAST, _GREATEST))
    fits = pc.or_(pc.less(length, _INT64_DIGITS), pc.and_(pc.equal(length, _INT64_DIGITS), within))
    canonical = pc.binary_join_element_wise(pc.if_else(negative, "-", ""), digits, "")
    faults[whole] = np.where(mask_of(fits), Fault.NONE, Fault.WIDE)
    values = np.zeros(len(texts), np.int64)
    values[faults == Fault.NONE] = pc.cast(canonical.filter(fits), pa.int64()).to_numpy()
    return Read(values, faults if faults.any() else None)


def read_float32(texts: pa.Array) -> Read:
    """Returns texts as float32: decimals and exponents with spaces around, read as double first.

    Args:
        texts: Binary array without nulls.
    """
    plain = _plain(texts, NUMBER_CHARACTERS)
    if plain is not None:
        doubles = _cast(plain, pa.float64())
        if doubles is not None:
            values = _round(doubles)
            if np.isfinite(values).all():
                return Read(values, None)
    trimmed = trim(texts)
    decimal = matches(trimmed, _DECIMAL)
    faults = np.full(len(texts), Fault.CAST, np.uint8)
    faults[matches(trimmed, _NOT_FINITE)] = Fault.WIDE
    numbers = as_strings(trimmed.filter(pa.array(decimal)))
    values = np.zeros(len(texts), np.float32)
    values[decimal] = _round(pc.cast(numbers, pa.float64()).to_numpy())
    faults[decimal] = np.where(np.isfinite(values[decimal]), Fault.NONE, Fault.WIDE)
    return Read(values, faults if faults.any() else None)


def read_booleans(texts: pa.Array, booleans: tuple[str, str]) -> Read:
    """Returns texts as 1 and 0: one of two texts, case (ASCII) and spaces around aside.

    Args:
        texts: Binary array without nulls.
        booleans: The texts that are 1 and 0, as ``fold_boolean`` leaves them. The words 1 and 0
            are numbers, and no booleans unless they are named.
    """
    folded = pc.ascii_lower(pc.ascii_trim_whitespace(as_strings(texts)))
    places = pc.index_in(folded, value_set=pa.array(booleans, pa.string()))
    found = pc.fill_null(places, 2).to_numpy(zero_copy_only=False)
    faults = np.where(found == 2, Fault.CAST, Fault.NONE).astype(np.uint8)
    return Read((found == 0).astype(np.int64), faults if faults.any() else None)


def _plain(texts: pa.Array, characters: bytes) -> pa.Array | None:
    """Returns the texts, trimmed, when they hold only some characters and spaces."""
    left = foreign(texts, characters)
    if left.translate(None, SPACES.encode()):
        return None
    return trim(texts) if left else texts


def _cast(texts: pa.Array, kind: pa.DataType) -> npt.NDArray[Any] | None:
    """Returns what Arrow reads, or None when it cannot read all."""
    try:
        return np.asarray(pc.cast(as_strings(texts), kind).to_numpy())
    except pa.ArrowInvalid:
        return None


def _any_padded(texts: pa.Array) -> bool:
    """Tells whether one of many integers has leading zeros; none is empty or a lone sign."""
    data, bounds = parts_of(texts)
    starts = bounds[:-1]
    minus = data[starts] == ord("-")
    return bool(((data[starts + minus] == ord("0")) & (np.diff(bounds) - minus > 1)).any())


def _round(doubles: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return doubles.astype(np.float32)
