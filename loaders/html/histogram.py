"""Histograms of numbers, as plain data for templates."""

from __future__ import annotations

from typing import Any

import numpy as np

_BINS = 24
_TAIL = 0.99  # a histogram with few far larger values ends at this quantile
_MIN_WIDTH = 1e-290  # of all bars; NumPy cannot divide much less


@np.errstate(all="ignore")  # sums may overflow
def make_histogram(values: Any) -> dict[str, Any]:
    """Returns a histogram of the finite numbers; empty if there are none.

    Returns:
        ``bars`` (smallest number, largest number and count of each), ``tail`` (whether the last bar
        has all larger numbers too), ``min``, ``max``, ``median``, ``mean`` and ``std``.
    """
    numbers = np.asarray(values, np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size or not np.isfinite(numbers.max() - numbers.min()):
        return {}
    low, median, end, high = np.quantile(numbers, [0, 0.5, _TAIL, 1]).tolist()
    tail = high - low > 4 * (end - low) > 0
    width = (end if tail else high) - low
    half, bins = 0.0, _BINS
    if width < _MIN_WIDTH or (width < _BINS and (numbers == np.floor(numbers)).all()):
        half, bins = 0.5, int(width) + 1  # a bar for each number
    # Differences are exact where large numbers are not.
    counts, edges = np.histogram(np.minimum(numbers - low, width), bins, (-half, width + half))
    begins, ends = (low + edges[:-1] + half).tolist(), (low + edges[1:] - half).tolist()
    return {
        "bars": list(zip(begins, ends, counts.tolist(), strict=True)), "tail": tail, "min": low,
        "max": high, "median": median, "mean": numbers.mean().item(), "std": numbers.std().item(),
    }  # fmt: skip
