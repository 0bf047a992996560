"""Exact sums of arrays: how NumPy adds up many floats without any rounding.

A float is an integer times a power of two, so sums of floats and of their squares are integers in
a fixed unit. Each array is cut into layers of so few bits that adding a layer up is exact, in any
order (S. M. Rump, T. Ogita, S. Oishi, "Accurate Floating-Point Summation Part I", SIAM J. Sci.
Comput. 31, 2008, algorithm 3.2, ExtractVector).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Kind = Literal["integer", "float32", "float64", "bytes"]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# Values are whole multiples of two to the power of minus this: the least subnormal number.
UNITS: dict[Kind, int] = {"integer": 0, "float32": 149, "float64": 1074, "bytes": 0}
_LIMB = 26  # bits: the product of two such numbers is exact
_EXACT = 1 << 53
_BAND = 256  # exponents of float64 that are handled together: their squares stay in range


def kind_of(dtype: np.dtype[Any]) -> Kind:
    """Returns the kind of an array's values.

    Raises:
        TypeError: They are complex, of more than 64 bits, or no numbers.
    """
    if dtype.kind in "biu":
        return "integer"
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return "float64" if dtype.itemsize == 8 else "float32"
    raise TypeError(f"there are no exact sums of {dtype}: use integers, float32 or float64")


class CutSums(NamedTuple):
    """The sums of the pieces of an array; each array has one entry a piece.

    ``total`` and ``squares`` are layers and exponents: the exact sum of a piece is that of
    ``layer[piece] * 2**exponent`` over all layers. Bounds of an empty piece mean nothing.
    """

    empty: npt.NDArray[np.bool_]
    nan: Ints
    infinite: Ints
    low: npt.NDArray[Any]
    high: npt.NDArray[Any]
    total: list[tuple[Floats, int]]
    squares: list[tuple[Floats, int]]


def cut_sums(kind: Kind, values: npt.NDArray[Any], starts: Ints) -> CutSums:
    """Returns the sums of each piece of an array.

    Args:
        kind: As ``kind_of`` says.
        values: Shape [n].
        starts: Where pieces begin, the first at 0, ascending; shape [pieces]. One may be empty.
    """
    sizes = np.diff(starts, append=values.size)
    nan = infinite = np.zeros(len(starts), np.int64)
    if kind == "integer" and values.dtype.kind == "b":
        values = values.view(np.uint8)
    elif kind != "integer":
        with np.errstate(invalid="ignore"):  # of signalling NaNs
            values = values.astype(np.float64)
        finite = np.isfinite(values)
        if not finite.all():
            nan = _reduced(np.add, np.isnan(values).astype(np.int64), starts, sizes)
            infinite = _reduced(np.add, np.isinf(values).astype(np.int64), starts, sizes)
            sizes = _reduced(np.add, finite.astype(np.int64), starts, sizes)
            values = values[finite]
            starts = np.cumsum(sizes) - sizes
    low = _reduced(np.minimum, values, starts, sizes)
    high = _reduced(np.maximum, values, starts, sizes)
    if kind != "integer":  # which of two zeros is less depends on the order
        low, high = low + 0.0, high + 0.0
    most = int(sizes.max(initial=0))
    cut = _Cut(starts, sizes, most)
    total, squares = _layers(kind, values, low, high, cut)
    return CutSums(sizes == 0, nan, infinite, low, high, total, squares)


class _Cut(NamedTuple):
    starts: Ints
    sizes: Ints
    most: int


def _reduced(
    function: np.ufunc, values: npt.NDArray[Any], starts: Ints, sizes: Ints
) -> npt.NDArray[Any]:
    """Returns what a ufunc makes of each piece; 0 for empty ones, which reduceat cannot do."""
    full = sizes > 0
    if full.all():
        return np.asarray(function.reduceat(values, starts)) if len(starts) else values[:0]
    found = np.zeros(len(starts), values.dtype)
    if full.any():
        found[full] = function.reduceat(values, starts[full])
    return found


def _layers(
    kind: Kind, values: npt.NDArray[Any], low: npt.NDArray[Any], high: npt.NDArray[Any], cut: _Cut
) -> tuple[list[tuple[Floats, int]], list[tuple[Floats, int]]]:
    whole = kind == "integer"
    bounds = (int(bound[at]) for bound in (low, high) for at in _extremes(bound))
    bits = max(map(abs, bounds), default=0).bit_length() if whole else 0
    limbs = list(_limbs(kind, values, bits))
    sizes = [max(limb.max(initial=0.0), -limb.min(initial=0.0)) for limb, _ in limbs]
    total, squares = [], []
    for place, (limb, shift) in enumerate(limbs):
        total += [(layer, shift) for layer in _exact(limb, sizes[place], cut, whole)]
        for other, (factor, shift_of_other) in enumerate(limbs[place:], place):
            exponent = shift + shift_of_other + (other > place)  # twice a mixed product
            bound = sizes[place] * sizes[other]
            if bound:
                found = _exact(limb * factor, bound, cut, whole)
                squares += [(layer, exponent) for layer in found]
    return total, squares


def _extremes(bound: npt.NDArray[Any]) -> tuple[int, ...]:
    return (int(bound.argmin()), int(bound.argmax())) if bound.size else ()


def _limbs(kind: Kind, values: npt.NDArray[Any], bits: int) -> Iterator[tuple[Floats, int]]:
    """Yields arrays of at most 26 bits a number, and exponents: together they are the values."""
    if kind == "integer":
        for shift in range(0, max(1, bits), _LIMB):
            last = bits - shift <= _LIMB
            limb = values if last else values & values.dtype.type((1 << _LIMB) - 1)
            yield limb.astype(np.float64), shift
            values = values if last else values >> values.dtype.type(_LIMB)
    elif kind == "float32":
        yield values, 0
    else:
        for mine, shift in _bands(values):
            # Rounded to 26 bits: half of the last is added, and what follows cut off.
            half, rest = np.uint64(1 << _LIMB), np.uint64((1 << _LIMB + 1) - 1)
            first = ((mine.view(np.uint64) + half) & ~rest).view(np.float64)
            yield first, shift
            yield mine - first, shift


def _bands(values: Floats) -> Iterator[tuple[Floats, int]]:
    """Yields float64 arrays whose squares stay in range, and exponents: together the values."""
    sizes = np.abs(values)
    middle = math.ldexp(1.0, _BAND // 2)
    if sizes.max(initial=0) < middle and not ((sizes < 1 / middle) & (sizes > 0)).any():
        yield values, 0
        return
    bands = (np.frexp(values)[1] + _BAND // 2) // _BAND
    for band in np.unique(bands[values != 0]).tolist():
        yield np.ldexp(np.where(bands == band, values, 0.0), -_BAND * band), _BAND * band


def _exact(values: Floats, bound: float, cut: _Cut, integral: bool) -> Iterator[Floats]:
    """Yields layers of sums of pieces; those of a piece add up to its exact sum.

    Args:
        values: Shape [n].
        bound: No value is larger.
        cut: The pieces.
        integral: Whether all values are whole numbers.
    """
    if integral and bound * cut.most <= _EXACT:
        if bound:
            yield _reduced(np.add, values, cut.starts, cut.sizes)
        return
    exponent = math.frexp(bound)[1]
    room = cut.most.bit_length() + 1
    while bound:
        # Adding and taking away this rounds to so few bits that the sum of a piece is exact.
        anchor = math.ldexp(1.0, exponent + room)
        layer = (values + anchor) - anchor
        yield _reduced(np.add, layer, cut.starts, cut.sizes)
        values = values - layer
        bound = float(values.any())
        exponent += room - 53


def exact_columns(values: Floats) -> Floats:
    """Returns a few floats for each column that add up to its exact sum; shape [few, columns].

    Args:
        values: Shape [n, columns].
    """
    exponents = np.frexp(np.abs(values).max(axis=0, initial=0.0))[1]
    room = len(values).bit_length() + 1
    found = [np.zeros(values.shape[1])]
    while values.any():
        anchors = np.ldexp(1.0, exponents + room)
        layer = (values + anchors) - anchors
        found.append(layer.sum(axis=0))
        values = values - layer
        exponents += room - 53
    return np.stack(found)


def scaled(value: float, shift: int) -> int:
    """Returns ``value * 2**shift``, which must be whole."""
    number, divisor = float(value).as_integer_ratio()
    return (number << shift) // divisor if shift >= 0 else number // (divisor << -shift)


def in_units(layers: Iterable[float], kind: Kind, power: int) -> int:
    """Returns the sum of floats in units of ``2**(-power * UNITS[kind])``."""
    return sum(scaled(layer, power * UNITS[kind]) for layer in layers)
