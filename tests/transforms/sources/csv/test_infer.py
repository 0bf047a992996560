"""Inference: a column is numeric only if every sampled cell fits the type."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.sources.csv.infer import infer_column, merge_profiles, profile_columns
from shardmill.transforms.sources.csv.text_parser import CellRules
from shardmill.transforms.sources.csv.typed_cells import type_cells
from tests.conftest import examples


def cells_of(texts):
    return pa.array(texts, pa.binary()).dictionary_encode()


def profile(texts, nulls=None):
    return profile_columns({"c": cells_of(texts)}, nulls or CellRules())["c"]


def infer(texts, nulls=None):
    return infer_column("c", profile([text.encode() for text in texts], nulls))


def optional(kind, **facts):
    return Column("c", kind, required=False, **facts)


def test_null_values_flag_replaces_the_defaults():
    nulls = CellRules.of(["-999", "none"])
    assert infer(["-999", "1"], nulls) == optional("int64")
    assert infer(["none", "a"], nulls) == optional("bytes")
    assert infer(["NA", "1"], nulls) == Column("c", "bytes")
    assert infer(["", "1"], nulls) == Column("c", "bytes")
    assert infer(["nan", "1.5"], nulls) == Column("c", "bytes")


WORDS = ["true", "False", "YES", "no", "t", "F", "y", "", "NA", "?", "007", "+12345678", "1e39"]
TEXTS = st.one_of(
    st.sampled_from(WORDS),
    st.integers(-(2**65), 2**65).map(str),
    st.floats().map(repr),
    st.text("0123456789+-.eE ", max_size=4),
    st.text(max_size=3),
).map(lambda text: text.encode("utf-8", "replace"))
KINDS = [
    st.sampled_from(WORDS),
    st.integers(0, 99).map(str),
    st.floats(0, 1).map(repr),
    st.sampled_from(["yes", "NO", "Yes", ""]),
]
COLUMNS = st.lists(TEXTS, max_size=8) | st.one_of(
    [st.lists(kind.map(str.encode), max_size=8) for kind in KINDS]
)
NULLS = st.sampled_from([CellRules(), CellRules.of([]), CellRules.of(["", "7", "no"])])


@settings(max_examples=examples(300), deadline=None)
@given(COLUMNS, NULLS)
def test_sampled_cells_fit_the_inferred_column(texts, nulls):
    found = profile(texts, nulls)
    assert found.counts["cells"] == len(texts)
    assert found.counts.total() - found.counts["empty"] == 2 * len(texts)
    column = infer_column("c", found)
    typed = type_cells(column, cells_of(texts), nulls)
    assert typed.faults is None
    if column.required:
        assert None not in typed.values.to_pylist()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(COLUMNS, min_size=3, max_size=3))
def test_profiles_merge_in_any_order(parts):
    a, b, c = map(profile, parts)
    whole = profile([text for part in parts for text in part])
    assert (
        merge_profiles(merge_profiles(a, b), c)[:2]
        == merge_profiles(a, merge_profiles(b, c))[:2]
        == merge_profiles(c, merge_profiles(b, a))[:2]
        == whole[:2]  # without the example of rounding
    )
    assert merge_profiles(a, profile([])) == a


def test_ignores_dictionary_values_without_rows():
    dictionary = pa.array([b"x", b"1", b"007"], pa.binary())
    cells = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1], pa.int32()), dictionary)[1:]
    profile = profile_columns({"c": cells}, CellRules())["c"]
    assert profile[:4] == ({"cells": 2, "integers": 2}, set(), "", "'1'")
