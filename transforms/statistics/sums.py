"""Sums of feature values and of pixels, and the totals of parts.

The manifest's statistics are computed from them.

Every sum is a Python integer, so merging is exact, associative and commutative: Beam may combine
parts in any order, and the manifest stays the same. Integers and pixels are summed exactly. Floats
are summed in float64 within one part, whose records have a fixed order, and converted to
fixed-point integers before parts are merged.
"""

from __future__ import annotations

import decimal
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardmill.schemas.dataset.statistics import FeatureStatistics, PixelStatistics, Statistics
from shardmill.schemas.schema_pbtxt.schema_text import Kind

# Binary digits after the point of sums. The smallest float32 is 2**-149: there are enough digits
# left to represent the mean and variance of such numbers.
_FRACTION_BITS: dict[Kind, int] = {"int64": 0, "float32": 256, "bytes": 0}
_ROOT_DIGITS = 100
_PIXEL_POWERS = np.stack([np.arange(256) ** power for power in range(3)], axis=1)


class Sums(NamedTuple):
    """Sums over the values of one feature, or over the pixels of one colour channel.

    Attributes:
        kind: Type of the values; bytes are counted only.
        examples: Number of records with at least one value.
        values: Number of values, including NaN and infinite ones.
        nan: Number of NaN values.
        infinite: Number of infinite values.
        minimum: Smallest finite value, if any.
        maximum: Largest finite value, if any.
        total: Sum of the finite values. Of floats: times 2**256.
        squares: Sum of the squares of the finite values. Of floats: times 2**512.
    """

    kind: Kind
    examples: int = 0
    values: int = 0
    nan: int = 0
    infinite: int = 0
    minimum: float | None = None
    maximum: float | None = None
    total: int = 0
    squares: int = 0

    @property
    def finite(self) -> int:
        """Number of finite values."""
        return self.values - self.nan - self.infinite

    def mean(self) -> float | None:
        """Return the mean of the finite values, or None if there is none."""
        if not self.finite:
            return None
        return self.total / (self.finite << _FRACTION_BITS[self.kind])

    def std(self) -> float | None:
        """Return the population standard deviation of the finite values, or None."""
        if not self.finite:
            return None
        # The difference cancels most digits where the mean is large, so it is taken of integers.
        spread = self.finite * self.squares - self.total**2
        context = decimal.Context(prec=_ROOT_DIGITS)
        divisor = self.finite << _FRACTION_BITS[self.kind]
        return float(context.divide(context.sqrt(spread), divisor))


class Summary(NamedTuple):
    """The sums over some records: of each feature by name, and of each colour channel."""

    features: Mapping[str, Sums] = {}
    channels: tuple[Sums, ...] = ()

    @classmethod
    def from_json(cls, body: Sequence[Any]) -> Summary:
        """Return the summary that was written as JSON, where tuples become lists."""
        features, channels = body
        return cls(
            {name: Sums(*values) for name, values in features.items()},
            tuple(Sums(*values) for values in channels),
        )


def merge_summaries(summaries: Iterable[Summary]) -> Summary:
    """Return the sums over the records of all summaries, features sorted by name.

    The kind of a feature and the number of channels are the same in all of them.
    """
    features: dict[str, list[Sums]] = defaultdict(list)
    channels: list[tuple[Sums, ...]] = []
    for summary in summaries:
        for name, sums in summary.features.items():
            features[name].append(sums)
        if summary.channels:
            channels.append(summary.channels)
    names = sorted(features, key=str.encode)
    merged = map(_merge_sums, zip(*channels, strict=True))
    return Summary({name: _merge_sums(features[name]) for name in names}, tuple(merged))


def _merge_sums(sums: Sequence[Sums]) -> Sums:
    """Add up sums; they must come from different records."""
    if len(sums) == 1:
        return sums[0]
    kinds, examples, values, nan, infinite, minima, maxima, totals, squares = zip(
        *sums, strict=True
    )
    return Sums(
        kinds[0],
        sum(examples),
        sum(values),
        sum(nan),
        sum(infinite),
        min((minimum for minimum in minima if minimum is not None), default=None),
        max((maximum for maximum in maxima if maximum is not None), default=None),
        sum(totals),
        sum(squares),
    )


def compute_statistics(summary: Summary, records: int) -> Statistics | None:
    """Return the statistics of a split for the manifest, if it has any.

    Args:
        summary: Sums over the records of the split.
        records: Number of these records.
    """
    pixels = None
    if summary.channels:
        means, stds = zip(*((sums.mean(), sums.std()) for sums in summary.channels), strict=True)
        pixels = PixelStatistics(summary.channels[0].values, means, stds)
    features = {name: _of_feature(sums, records) for name, sums in summary.features.items()}
    if pixels or features:
        return Statistics(pixels, features)
    return None


def _of_feature(sums: Sums, records: int) -> FeatureStatistics:
    missing = records - sums.examples
    if sums.kind == "bytes":
        return FeatureStatistics(sums.values, missing, numeric=False)
    return FeatureStatistics(
        sums.values,
        missing,
        sums.minimum,
        sums.maximum,
        sums.mean(),
        sums.std(),
        sums.nan,
        sums.infinite,
    )


def sum_pixels(histogram: Sequence[int]) -> tuple[Sums, ...]:
    """Return the sums over the pixels of each channel of an image.

    Args:
        histogram: ``PIL.Image.Image.histogram()`` of an 8-bit image: 256 counts per channel.
    """
    # Three times as fast as np.array(histogram).
    packed = struct.pack(f"{len(histogram)}q", *histogram)
    counts = np.frombuffer(packed, np.int64).reshape(-1, 256)
    powers = (counts @ _PIXEL_POWERS).tolist()
    return tuple(
        Sums("int64", 1, number, total=total, squares=squares) for number, total, squares in powers
    )


def sum_rows(rows: Iterable[tuple[int, Sequence[int], Sequence[int]]]) -> Summary:
    """Summarize one or more images from ``pixels`` and the two sums in their catalog."""
    pixels, pixel_sums, pixel_squares = zip(*rows, strict=True)
    totals = map(sum, zip(*pixel_sums, strict=True))
    squares = map(sum, zip(*pixel_squares, strict=True))
    return Summary(
        channels=tuple(
            Sums("int64", len(pixels), sum(pixels), total=total, squares=square)
            for total, square in zip(totals, squares, strict=True)
        )
    )


def sum_values(values: npt.NDArray[Any], examples: int = 1) -> Sums:
    """Return the sums over the values of a feature.

    Args:
        values: int64 or float32; shape [n]. Sums of floats depend on their order.
        examples: Number of records with at least one of the values.
    """
    if values.dtype == np.int64:
        return _with_bounds(Sums("int64", examples, values.size), values)
    finite = np.isfinite(values)
    if finite.all():
        return _with_bounds(Sums("float32", examples, values.size), values)
    nan = int(np.count_nonzero(np.isnan(values)))
    infinite = values.size - int(np.count_nonzero(finite)) - nan
    return _with_bounds(Sums("float32", examples, values.size, nan, infinite), values[finite])


def _with_bounds(sums: Sums, finite: npt.NDArray[Any]) -> Sums:
    if not finite.size:
        return sums
    total, squares = _sum_int64(finite) if sums.kind == "int64" else _sum_floats(finite)
    # Adding zero turns -0.0 into 0.0: which of the two is the minimum depends on the order.
    minimum, maximum = (bound.item() + 0 for bound in (finite.min(), finite.max()))
    return sums._replace(minimum=minimum, maximum=maximum, total=total, squares=squares)


def _sum_int64(values: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Return the exact sums of int64 values and of their squares; shape [n], n > 0."""
    bound = max(-int(values.min()), int(values.max()))
    if bound * bound * values.size < 1 << 63:
        return int(values.sum()), int((values * values).sum())
    high, low = values >> 32, values & 0xFFFFFFFF  # value = high * 2**32 + low
    low_squares = low.view(np.uint64) ** 2
    squares = (_sum_wide(high * high) << 64) + (_sum_wide(high * low) << 33)
    return _sum_wide(values), squares + _sum_wide(low_squares)


def _sum_wide(values: npt.NDArray[Any]) -> int:
    """Return the exact sum of fewer than 2**31 integers of 64 bits."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def _sum_floats(values: npt.NDArray[Any]) -> tuple[int, int]:
    """Return the fixed-point sums of finite floats and of their squares; shape [n], n > 0.

    NumPy adds contiguous float64 numbers pairwise, in an order that depends on n only, so the
    result is the same on every CPU. The squares are computed from the deviations from the mean
    (T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance", 1983,
    equation 1.7): in float64, squares of large and nearly equal numbers would cancel.
    """
    deviations = values.astype(np.float64)
    total = deviations.sum()
    deviations -= total / values.size
    rounding_error = deviations.sum()  # of the mean, times n
    deviations *= deviations
    squares = deviations.sum() - rounding_error**2 / values.size
    bits = _FRACTION_BITS["float32"]
    fixed = _to_fixed_point(total, bits)
    # Rounded up, so that the variance of merged sums is never negative.
    square_of_total = -(-fixed * fixed // values.size)
    return fixed, _to_fixed_point(squares, 2 * bits) + square_of_total


def _to_fixed_point(value: float, bits: int) -> int:
    numerator, denominator = float(value).as_integer_ratio()
    return (numerator << bits) // denominator


@dataclass
class Totals:
    """The totals over some parts; they do not depend on the order of adding.

    Attributes:
        made: Number of parts that this run made.
        reused: Number of finished parts that it reused.
        taken: Number of records that were taken from the published dataset.
        records: Number of records.
        label_counts: Number of records by label.
        rejects: Number of rejected inputs by reason.
        duplicates: Number of references that repeat the key of another.
        multi_frame: Number of records from files with several frames.
        counts: Sums of the columns of the catalog that are counts.
        versions: Versions of the codecs: one tuple of (name, version) pairs per distinct set.
        summary: Sums over the values of the records.
        failure: Smallest message of the failed parts, if any.
    """

    made: int = 0
    reused: int = 0
    taken: int = 0
    records: int = 0
    label_counts: Counter[str] = field(default_factory=Counter)
    rejects: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    multi_frame: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    versions: set[tuple[tuple[str, str], ...]] = field(default_factory=set)
    summary: Summary = field(default_factory=Summary)
    failure: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the totals of a part for its sidecar."""
        return {**vars(self), "versions": sorted(self.versions)}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Totals:
        """Return the totals of a finished part, which is reused, from its sidecar."""
        versions = {tuple((name, version) for name, version in pairs) for pairs in body["versions"]}
        summary = Summary.from_json(body["summary"])
        fields = {"made": 0, "reused": 1, "versions": versions, "summary": summary}
        return cls(**{**body, **fields})

    def merge(self, other: Totals) -> None:
        """Add the totals of other parts."""
        self.made += other.made
        self.reused += other.reused
        self.taken += other.taken
        self.records += other.records
        self.label_counts.update(other.label_counts)
        self.rejects.update(other.rejects)
        self.duplicates += other.duplicates
        self.multi_frame += other.multi_frame
        self.counts.update(other.counts)
        self.versions |= other.versions
        self.summary = merge_summaries((self.summary, other.summary))
        self.failure = min(filter(None, (self.failure, other.failure)), default="")
