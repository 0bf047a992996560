"""Sums of values are exact for integers, accurate for floats, and merge in any order."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from shardmill.transforms.statistics.sums import (
    Summary,
    Sums,
    compute_statistics,
    merge_summaries,
    sum_values,
)
from tests.conftest import examples
from tests.support.statistics_tools import assert_close


def arrays_of(dtype: str) -> st.SearchStrategy[np.ndarray]:
    shape = arrays.array_shapes(max_dims=1, max_side=81, min_side=0)
    return arrays.arrays(dtype, shape, elements=arrays.from_dtype(np.dtype(dtype)))


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_sums_equal_those_of_fractions(dtype) -> None:
    @settings(max_examples=examples(90))
    @given(arrays_of(dtype))
    def check(array: np.ndarray) -> None:
        sums = sum_values(array)
        values = array.reshape(-1).tolist()
        assert_close(sums, values)
        assert sums.values == array.size
        assert sums.nan == sum(map(math.isnan, values))
        assert sums.infinite == sum(map(math.isinf, values))

    check()


rng = np.random.default_rng(5)
EDGES = {
    "int64 limits": np.array([-(2**63), 2**63 - 1] * 3),
    "around 32 bits": np.array([2**31, -(2**31), 2**32, -(2**52) - 1]),
    "many large integers": rng.integers(-(2**62), 2**62, 30_000),
    "many bytes": rng.integers(0, 256, 30_000),
    "float32 limits": np.array([3.4028235e38, 1e-45, -3.4028235e38, 1e-45], np.float32),
    "sum above the float32 limit": np.full(1_000, 1e38, np.float32),
    "subnormal": np.array([1e-45, 3e-45, 1e-45], np.float32),
    "negative zero first": np.array([-0.0, 0.0], np.float32),
    "negative zero last": np.array([0.0, -0.0], np.float32),
    "large offset, small variance": (1e15 + rng.normal(size=30_000) * 1e9).astype(np.float32),
    "one of many differs": np.append(np.full(100_000, 16_777_215), 16_777_214).astype(np.float32),
    "many scales": (rng.normal(size=30_000) * 10.0 ** rng.integers(-30, 30, 30_000)).astype("f4"),
    "not contiguous": rng.normal(size=2_100).astype(np.float32)[::2],
    "empty": np.zeros(0, np.float32),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_of_the_range(name) -> None:
    sums = sum_values(EDGES[name])
    assert_close(sums, EDGES[name].reshape(-1).tolist())
    assert math.copysign(1, sums.minimum or 0) == 1 or sums.minimum < 0


@pytest.mark.parametrize("value", [0.1, 1e38, 1e-45, 1e15, -3.3])
def test_std_of_a_constant_is_zero(value) -> None:
    parts = [sum_values(np.full(count, value, np.float32)) for count in (1, 7, 997, 65_537)]
    merged = merge_summaries(Summary({"x": part}) for part in parts).features["x"]
    assert (merged.mean(), merged.std()) == (float(np.float32(value)), 0.0)


@settings(max_examples=examples(150))
@given(st.lists(arrays.arrays("f4", st.integers(0, 9)), min_size=1, max_size=6), st.randoms())
def test_merging_does_not_depend_on_the_order(pieces, random) -> None:
    # Sidecars store summaries as JSON.
    parts = [
        Summary.from_json(json.loads(json.dumps(Summary({"x": sum_values(piece)}))))
        for piece in pieces
    ]
    merged = merge_summaries(parts)
    random.shuffle(parts)
    middle = len(parts) // 2
    assert merged == merge_summaries(map(merge_summaries, (parts[:middle], parts[middle:])))
    assert merged.features["x"].examples == len(pieces)
    assert_close(merged.features["x"], np.concatenate(pieces).tolist())


def test_nan_and_infinite_values_are_counted_separately() -> None:
    sums = sum_values(np.array([np.nan, 2, np.inf, 4, -np.inf], "f4"), 5)
    feature = compute_statistics(Summary({"x": sums}), 6).to_json()["features"]["x"]
    assert feature == {
        "count": 5, "missing": 1, "min": 2.0, "max": 4.0, "mean": 3.0, "std": 1.0, "nan": 1,
        "infinite": 2,
    }  # fmt: skip
    only_nan = sum_values(np.array([np.nan], "f4"))
    feature = compute_statistics(Summary({"x": only_nan}), 1).to_json()["features"]["x"]
    assert {feature[name] for name in ("min", "max", "mean", "std")} == {None}
    json.dumps(feature, allow_nan=False)


def test_records_without_values_are_missing() -> None:
    statistics = compute_statistics(Summary({"x": Sums("bytes", examples=3, values=9)}), 5)
    assert statistics.to_json()["features"]["x"] == {"count": 9, "missing": 2}
