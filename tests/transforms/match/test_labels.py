"""Labels: a regular expression over the key, and presets for common layouts."""

import re

from hypothesis import given
from hypothesis import strategies as st

from shardmill.transforms.match.labels import (
    sort_labels,
    warn_of_order,
)

NUMBERS = st.one_of(
    st.integers(-200, 200).map(str),
    st.tuples(st.integers(-20, 20), st.integers(0, 99)).map(
        lambda pair: f"{pair[0]}.{pair[1]:02d}"
    ),
)


@given(st.sets(st.one_of(NUMBERS, st.text("a19_.-é", min_size=1, max_size=6))))
def test_numbers_sort_by_value(labels: set[str]) -> None:
    """Numbers come first, by their values as floats; no order of the input matters."""
    ordered = sort_labels(labels, "number")
    assert set(ordered) == labels
    assert len(ordered) == len(labels)
    assert ordered == sort_labels(sorted(labels, reverse=True), "number")
    is_number = [re.fullmatch(r"-?\d+(\.\d+)?", label) is not None for label in ordered]
    assert is_number == sorted(is_number, reverse=True)
    values = [float(label) for label in ordered if re.fullmatch(r"-?\d+(\.\d+)?", label)]
    assert values == sorted(values)


@given(st.sets(st.integers(0, 300)), st.sampled_from(["", "class_", "fold-3/", "É"]))
def test_digits_in_labels_sort_by_value(numbers: set[int], prefix: str) -> None:
    labels = {f"{prefix}{number}" for number in numbers}
    assert sort_labels(labels, "number") == tuple(f"{prefix}{each}" for each in sorted(numbers))
    warned = [*warn_of_order(labels)]
    differs = [str(each) for each in sorted(numbers)] != sorted(map(str, numbers))
    assert bool(warned) == (differs and not prefix)
