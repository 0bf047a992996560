"""Histograms, and descriptions of columns from a sample of the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from shardmill.loaders.record_decoder import IMAGE_ENCODINGS
from shardmill.loaders.report.thumbnails import is_picture
from shardmill.schemas.schema_pbtxt.feature_spec import FeatureSpec

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


def describe_column(spec: FeatureSpec, records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Returns a description of a feature of some records.

    Returns:
        ``spec``, ``picture`` (whether its values can be shown as images), ``histogram`` of numbers,
        ``texts`` (the most frequent, with their shares), ``distinct`` (number of texts) and
        ``unique`` (whether all texts differ).
    """
    found = (record.get(spec.name, ("missing", ())) for record in records)
    values: list[Any] = [v for kind, some in found if spec.kind.startswith(kind) for v in some]
    numbers, texts = np.array([]), Counter[bytes]()
    if spec.encoding == "raw" and spec.dtype is not None and spec.dtype.kind != "c":
        size = spec.dtype.itemsize
        data = b"".join(value[: len(value) // size * size] for value in values)
        numbers = np.frombuffer(data, spec.dtype).astype(np.float64)
    elif spec.kind != "bytes":
        numbers = np.array(values, np.float64)
    elif not spec.encoding:
        texts = Counter(values)
    return {
        "spec": spec, "picture": is_image(spec), "histogram": make_histogram(numbers),
        "texts": [(text.decode("utf-8", "backslashreplace"), count / len(values))
                  for text, count in texts.most_common(5)],
        "distinct": len(texts), "unique": len(texts) == len(values),
    }  # fmt: skip


def is_image(spec: FeatureSpec) -> bool:
    """Returns whether the values of a feature can be shown as images."""
    raw = spec.encoding == "raw" and is_picture(spec.shape or (), spec.dtype)
    return raw or spec.channels > 0 or spec.encoding in IMAGE_ENCODINGS
