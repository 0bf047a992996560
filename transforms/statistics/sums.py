"""Statistics: the exact sums that means and standard deviations are made of.

Sums are kept as Python's integers and rounded once, at the very end, so they are the same
whatever the order of adding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardmill.schemas.dataset.statistics import FeatureStatistics, PixelStatistics, Statistics
from shardmill.transforms.statistics.exact import UNITS, Kind, cut_sums, kind_of, scaled

_BLOCK = 1 << 16  # values of an array at a time
_PIXEL_POWERS = np.stack([np.arange(256) ** power for power in range(3)], axis=1)


class Sums(NamedTuple):
    """What is known of the values of one feature, or one colour channel, exactly.

    Attributes:
        kind: What the values are; of bytes only the numbers are known.
        examples: Records with at least one value.
        values: Values, those that are not finite among them.
        nan: Values that are no numbers.
        infinite: Values that are infinite.
        low: Least finite value, None where there is none.
        high: Greatest finite value.
        total: Sum of the finite values, in units of ``2**-UNITS[kind]``.
        squares: Sum of their squares, in units of ``2**(-2 * UNITS[kind])``.
    """

    kind: Kind
    examples: int = 0
    values: int = 0
    nan: int = 0
    infinite: int = 0
    low: float | None = None
    high: float | None = None
    total: int = 0
    squares: int = 0

    def plus(self, other: Sums) -> Sums:
        """Returns the sums of both; records are taken to be different ones.

        Raises:
            ValueError: The values are of another kind.
        """
        if other.kind != self.kind:
            raise ValueError(f"a feature holds {self.kind} here and {other.kind} there")
        return Sums(
            self.kind,
            self.examples + other.examples,
            self.values + other.values,
            self.nan + other.nan,
            self.infinite + other.infinite,
            self.low if other.low is None else _least(self.low, other.low),
            self.high if other.high is None else _greatest(self.high, other.high),
            self.total + other.total,
            self.squares + other.squares,
        )

    def minus(self, other: Sums) -> Sums:
        """Returns the sums without those of some of the records; the bounds stay."""
        return self._replace(
            examples=self.examples - other.examples,
            values=self.values - other.values,
            nan=self.nan - other.nan,
            infinite=self.infinite - other.infinite,
            total=self.total - other.total,
            squares=self.squares - other.squares,
        )

    @property
    def finite(self) -> int:
        """Number of finite values."""
        return self.values - self.nan - self.infinite

    def mean(self) -> float | None:
        """Returns the double next to the mean of the finite values, None where there is none."""
        if not self.finite:
            return None
        return float(Fraction(self.total, self.finite << UNITS[self.kind]))

    def std(self) -> float | None:
        """Returns the double next to their population standard deviation."""
        if not self.finite:
            return None
        spread = self.finite * self.squares - self.total**2
        return _root(spread, (self.finite << UNITS[self.kind]) ** 2)


class Summary(NamedTuple):
    """The sums of some records: of their features by name, and of their images' channels."""

    features: Mapping[str, Sums] = {}
    channels: tuple[Sums, ...] = ()

    @classmethod
    def from_json(cls, body: Sequence[Any]) -> Summary:
        """Returns a summary that went through JSON, where tuples become lists."""
        features, channels = body
        return cls(
            {name: Sums(*values) for name, values in features.items()},
            tuple(Sums(*values) for values in channels),
        )


def merged(summaries: Iterable[Summary]) -> Summary:
    """Returns the sums of all, in the names' order; which are added first makes no difference."""
    features: dict[str, Sums] = {}
    channels: tuple[Sums, ...] = ()
    for summary in summaries:
        for name, sums in summary.features.items():
            known = features.get(name)
            features[name] = sums if known is None else known.plus(sums)
        if summary.channels:
            pairs = zip(channels, summary.channels, strict=True)
            channels = tuple(a.plus(b) for a, b in pairs) if channels else summary.channels
    return Summary(dict(sorted(features.items(), key=lambda item: item[0].encode())), channels)


def publish_summary(summary: Summary, records: int) -> Statistics | None:
    """Returns what the manifest says of a summary, None where that is nothing.

    Args:
        summary: Of a split.
        records: Number of its records.
    """
    pixels = None
    if summary.channels:
        means, stds = zip(*((sums.mean(), sums.std()) for sums in summary.channels), strict=True)
        pixels = PixelStatistics(summary.channels[0].values, means, stds)
    features = {name: _published(sums, records) for name, sums in summary.features.items()}
    return Statistics(pixels, features) if pixels or features else None


def _published(sums: Sums, records: int) -> FeatureStatistics:
    missing = records - sums.examples
    if sums.kind == "bytes":
        return FeatureStatistics(sums.values, missing, numeric=False)
    return FeatureStatistics(
        sums.values, missing, sums.low, sums.high, sums.mean(), sums.std(), sums.nan, sums.infinite
    )


def sums_of_pixels(histogram: Sequence[int]) -> tuple[Sums, ...]:
    """Returns the sums of an image's channels.

    Args:
        histogram: As Pillow counts the pixels of an 8-bit image: 256 numbers for each channel.
    """
    counts = np.array(histogram, np.int64).reshape(-1, 256)
    powers = (counts @ _PIXEL_POWERS).tolist()
    return tuple(
        Sums("integer", 1, number, total=total, squares=squares)
        for number, total, squares in powers
    )


def sums_of_array(values: npt.NDArray[Any], examples: int = 1) -> Sums:
    """Returns the exact sums of an array of numbers.

    Args:
        values: bool, int8 to int64, uint8 to uint64, float16, float32 or float64; any shape.
        examples: Number of records that it is the values of.

    Raises:
        TypeError: It holds something else.
    """
    kind = kind_of(values.dtype)
    flat = values.reshape(-1, order="A")
    sums = Sums(kind, examples)
    for first in range(0, flat.size, _BLOCK):
        sums = sums.plus(_of_block(kind, flat[first : first + _BLOCK]))
    return sums


def _of_block(kind: Kind, values: npt.NDArray[Any]) -> Sums:
    part = cut_sums(kind, values, np.zeros(1, np.int64))
    low, high = (None if part.empty[0] else bound[0].item() for bound in (part.low, part.high))
    unit = UNITS[kind]
    total = sum(scaled(layer[0], shift + unit) for layer, shift in part.total)
    squares = sum(scaled(layer[0], shift + 2 * unit) for layer, shift in part.squares)
    nan, infinite = int(part.nan[0]), int(part.infinite[0])
    return Sums(kind, 0, values.size, nan, infinite, low, high, total, squares)


def _root(number: int, divisor: int) -> float:
    """Returns the double next to the square root of a fraction."""
    # At least 64 bits of the root, and a last one that says whether more follow: then rounding
    # the fraction rounds the root. Two to the power of twice the shift has a whole root.
    shift = max(0, 64 - (number.bit_length() - divisor.bit_length()) // 2)
    scaled, left = divmod(number << 2 * shift, divisor)
    root = math.isqrt(scaled)
    rest = bool(left) or root * root != scaled
    return float(Fraction(2 * root + rest, 1 << shift + 1))


def _least(first: float | None, second: float) -> float:
    return second if first is None else min(first, second)


def _greatest(first: float | None, second: float) -> float:
    return second if first is None else max(first, second)
