"""Inference: a column is numeric only if every sampled cell fits the type."""

import contextlib
import csv
import io
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.schemas.schema_pbtxt.columns import Column, format_schema, parse_schema
from shardmill.transforms.rows.types.infer import (
    ColumnProfile,
    infer_column,
    merge_profiles,
    profile_cells,
)
from shardmill.transforms.rows.types.typed_cells import NUMERIC_NULLS, Nulls, type_cells
from tests.conftest import examples


def cells_of(texts):
    return pa.array(texts, pa.binary()).dictionary_encode()


def profile(texts, nulls=None):
    return profile_cells(cells_of(texts), nulls or Nulls())


def infer(texts, nulls=None):
    return infer_column("c", profile([text.encode() for text in texts], nulls))


def optional(kind, **facts):
    return Column("c", kind, required=False, **facts)


# Texts: numbers that lose something, out of range or mixed with words, and dates.
TEXT_COLUMNS = [
    ["1", "01234"], ["1", "-01"], ["1.5", "01.5"], ["NA", "007"],
    ["+491701234567", "+12125550123"], ["1", "18446744073709551615"], ["-9223372036854775809"],
    ["9223372036854775808", "0.5"], ["1", "1e400"], ["1.5", "1e39"], ["1.5", "inf"], ["no", "no"],
    ["F", "F"], ["F", "M"], ["yes", "false"], ["y", "f"], ["true", "1"],
    ["2024-01-31", "2024-02-01"], ["31.01.2024"], ["12:30"], ["1,000"], ["\uff11"], ["0x10"],
    ["a", "1"], ["a", "NA", "?"], [" ", "1"],
]  # fmt: skip
CASES = {
    "integers": (["1", "-2", "+3", " 4 ", "0", "-0"], Column("c", "int64")),
    "bounds": (["9223372036854775807", "-9223372036854775808"], Column("c", "int64")),
    "integers_missing": (["1", "", "?", "NA"], optional("int64")),
    "decimals": (["1.5", "2", ".5", "5.", "1e3", "-1E-5"], Column("c", "float32")),
    "decimals_missing": (["1.5", "nan", " N/A "], optional("float32")),
    "tiny": (["1e-400", "0.0"], Column("c", "float32")),
    "zero_and_fraction": (["0", "0.5", "-0.5", "0e1"], Column("c", "float32")),
    "true": (["True", "False", "True"], Column("c", "int64", booleans=("True", "False"))),
    "true_only": (["TRUE"], Column("c", "int64", booleans=("TRUE", "FALSE"))),
    "false_only": (["False", ""], optional("int64", booleans=("True", "False"))),
    "true_lower_only": (["true"], Column("c", "int64", booleans=("true", "false"))),
    "spellings": (["no", "Yes", "YES", "No"], Column("c", "int64", booleans=("YES", "No"))),
    "t": (["t", "f"], Column("c", "int64", booleans=("t", "f"))),
    "y_missing": (["Y", " N", "NA"], optional("int64", booleans=("Y", "N"))),
    "0_and_1": (["0", "1"], Column("c", "int64")),
    "text_missing": (["a", ""], optional("bytes")),
    "all_empty": (["", ""], optional("bytes")),
    "all_na": (["NA", "?"], optional("bytes")),
    "no_rows": ([], optional("bytes")),
    **{f"text: {texts}": (texts, Column("c", "bytes")) for texts in TEXT_COLUMNS},
}


@pytest.mark.parametrize("case", CASES)
def test_infers_column(case):
    texts, column = CASES[case]
    assert infer(texts) == column
    assert infer(texts[::-1] * 3) == column
    assert parse_schema(format_schema([column]), "x") == (column,)


def test_null_values_flag_replaces_the_defaults():
    nulls = Nulls.of(["-999", "none"])
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
NULLS = st.sampled_from([Nulls(), Nulls.of([]), Nulls.of(["", "7", "no"])])


@settings(max_examples=examples(300), deadline=None)
@given(COLUMNS, NULLS)
def test_sampled_cells_fit_the_inferred_column(texts, nulls):
    found = profile(texts, nulls)
    kinds = ("nulls", "integers", "decimals", "coded", "wide", "booleans", "texts")
    assert sum(getattr(found, kind) for kind in kinds) == found.cells == len(texts)
    column = infer_column("c", found)
    typed = type_cells(column, cells_of(texts), nulls)
    assert typed.misfits is None
    if texts and column.required:
        assert (typed.column.indices >= 0).all()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(COLUMNS, min_size=3, max_size=3))
def test_profiles_merge_in_any_order(parts):
    a, b, c = map(profile, parts)
    whole = profile([text for part in parts for text in part])
    assert (
        merge_profiles(merge_profiles(a, b), c)
        == merge_profiles(a, merge_profiles(b, c))
        == merge_profiles(c, merge_profiles(b, a))
        == whole
    )
    assert merge_profiles(a, ColumnProfile()) == a


def test_ignores_dictionary_values_without_rows():
    dictionary = pa.array([b"x", b"1", b"007"], pa.binary())
    cells = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1], pa.int32()), dictionary)[1:]
    assert profile_cells(cells, Nulls()) == ColumnProfile(cells=2, integers=2)


# Whole tables; Python's int() and float() are the judges


def judge(texts):
    """Return the kind and the values by Python's int() and float(); None is missing."""
    texts = [text.strip() for text in texts]
    given = [text for text in texts if text not in NUMERIC_NULLS]
    if not given or any(re.match(r"-?0[0-9]", text) for text in given):
        return "bytes", None
    for kind, read in (("int64", int), ("float32", lambda text: float(np.float32(text)))):
        with contextlib.suppress(ValueError):
            return kind, [None if text in NUMERIC_NULLS else read(text) for text in texts]
    return "bytes", None


def check_table(text, names=None):
    """Infer and read each column, compare with Python, and return the columns."""
    rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    names, rows = (rows[0], rows[1:]) if names is None else (names, rows)
    found = []
    for place, name in enumerate(names):
        texts = [row[place] for row in rows if len(row) == len(names)]
        cells = cells_of([text.encode() for text in texts])
        column = infer_column(name, profile_cells(cells, Nulls()))
        found.append(column)
        if column.booleans:
            assert len(set(texts) - NUMERIC_NULLS) <= 2
            continue
        kind, expected = judge(texts)
        assert column.kind == kind, name
        if kind == "bytes":
            expected = [text.encode() or None for text in texts]
        assert column.required == (None not in expected), name
        typed = type_cells(column, cells, Nulls()).column
        values = typed.values.to_pylist()
        assert [None if i < 0 else values[i] for i in typed.indices] == expected, name
    return found


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("titanic_train.csv", {"Age": "float32", "Ticket": "bytes", "Survived": "int64"}),
        ("chicago_taxi_5000.csv", {}),
        ("penguins_missing.csv", {}),
        ("tips.csv", {"total_bill": "float32"}),
        ("adult_test_noheader.csv", {"0": "int64", "1": "bytes"}),
        ("horse_colic_noheader_qmarks.csv", {}),
        ("iris_noheader.csv", {"0": "float32", "4": "bytes"}),
        ("winequality_red_noheader.csv", {}),
    ],
)
def test_real_tables_equal_python(shared_data, name, kinds):
    text = (shared_data / "csv" / "tables" / name).read_text()
    first = next(csv.reader(io.StringIO(text)))
    names = [str(place) for place in range(len(first))] if "noheader" in name else None
    found = {column.name: column.kind for column in check_table(text, names)}
    assert kinds.items() <= found.items()
    assert len(set(found.values())) > 1 or name.startswith("wine")
