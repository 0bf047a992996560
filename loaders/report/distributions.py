"""Descriptions of columns from a sample of the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from shardmill.loaders.html.histogram import make_histogram
from shardmill.loaders.html.thumbnails import is_picture
from shardmill.loaders.record_decoder import IMAGE_ENCODINGS
from shardmill.schemas.schema_pbtxt.feature_spec import FeatureSpec


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
