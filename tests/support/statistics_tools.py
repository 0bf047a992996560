"""Computes statistics with fractions, to compare with those of the manifest."""

import math
from collections.abc import Iterable
from fractions import Fraction

from shardmill.transforms.statistics.sums import Sums

TOLERANCE = 1e-12  # relative, of floats; statistics of integers are exact
Expected = tuple[float | None, float | None, float | None, float | None]


def nearest_root(value: Fraction) -> float:
    """Return the double that is nearest to the square root of a fraction."""
    if not value:
        return 0.0
    bits = value.denominator.bit_length() - value.numerator.bit_length()
    shift = max(0, bits // 2 + 600)
    root = Fraction(math.isqrt((value.numerator << 2 * shift) // value.denominator), 1 << shift)
    return float(root)  # 600 more bits than a double has: no root of the tests is so near a tie


def expected(values: Iterable[float]) -> Expected:
    """Return minimum, maximum, mean and standard deviation of the finite values."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None, None, None, None
    fractions = [Fraction(value) for value in finite]
    mean = sum(fractions) / len(finite)
    # The sum of squares needs as many additions, but of shorter fractions than the differences.
    variance = sum(value * value for value in fractions) / len(finite) - mean**2
    return min(finite), max(finite), float(mean), nearest_root(variance)


def assert_close(sums: Sums, values: Iterable[float]) -> None:
    """Assert that sums are those of the values: exactly for integers, within 1e-12 for floats."""
    compare((sums.minimum, sums.maximum, sums.mean(), sums.std()), list(values), sums.kind)


def compare(actual: Expected, values: list[float], kind: str) -> None:
    """Assert that (minimum, maximum, mean, standard deviation) are those of the values."""
    wanted = expected(values)
    if kind == "int64" or wanted[0] is None:
        assert actual == wanted
        return
    assert actual[:2] == wanted[:2]
    assert str(actual[0]) != "-0.0"
    largest = max(abs(wanted[0]), abs(wanted[1]))
    assert math.isclose(actual[2], wanted[2], rel_tol=TOLERANCE, abs_tol=TOLERANCE * largest)
    assert math.isclose(actual[3], wanted[3], rel_tol=TOLERANCE)
