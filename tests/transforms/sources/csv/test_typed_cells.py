"""Typed cells equal the values of Python's int() and float() and numpy.float32."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.schemas.errors import UsageError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.sources.csv.text_parser import (
    NUMERIC_NULLS,
    CellRules,
)
from shardmill.transforms.sources.csv.typed_cells import (
    REASONS,
    check_default,
    describe_misfit,
    type_cells,
)
from shardmill.transforms.tables.table_source import decode
from tests.conftest import examples
from tests.transforms.sources.csv.test_infer import cells_of

ABSENT = object()
SPACES = b" \t\n\v\f\r"


def rows_of(typed):
    """Return the value of each row as a Python object, ABSENT where there is none."""
    return [ABSENT if value is None else value for value in typed.values.to_pylist()]


def outcomes(column, texts, nulls=None):
    """Return the value of each cell, or the reason of its reject."""
    cells = cells_of(texts)
    typed = type_cells(column, cells, nulls or CellRules())
    rows = rows_of(typed)
    assert len(rows) == len(texts)
    for row in np.flatnonzero(typed.faults) if typed.faults is not None else []:
        rows[row] = str(REASONS[typed.faults[row]])
        cell = pa.array([texts[row]])
        assert "\n" not in describe_misfit(column, cell, typed.faults[row], nulls or CellRules())
    return rows


# An independent parser of one cell, written from the documented rules


class MisfitError(Exception):
    pass


def slow_number(column, text):
    text = text.strip(SPACES)
    if column.booleans:
        texts = [word.strip().lower().encode() for word in column.booleans]
        if text.lower() not in texts:
            raise MisfitError("cast")
        return 1 - texts.index(text.lower())
    if not text.isascii() or b"_" in text:
        raise MisfitError("cast")
    try:
        if column.kind == "int64":
            number = int(re.sub(rb"\A([+-]?\d+)\.0*\Z", rb"\1", text))
            if re.match(rb"[+-]?0\d", text) and not column.zero_padded:
                raise MisfitError("cast")
            within = -(2**63) <= number < 2**63
        else:
            with np.errstate(over="ignore"):
                number = float(np.float32(float(text)))
            within = np.isfinite(number) or b"inf" in text.lower()
    except ValueError:
        raise MisfitError("cast") from None
    low = -np.inf if column.low is None else column.low
    high = np.inf if column.high is None else column.high
    if not within or not low <= number <= high:
        raise MisfitError("range")
    return number


def slow_value(column, text):
    if column.kind != "bytes":
        return slow_number(column, text)
    if column.values is not None and text not in [value.encode() for value in column.values]:
        raise MisfitError("domain")
    return text


def slow_values(column, text):
    if not column.separator:
        return slow_value(column, text)
    pieces = text.split(column.separator.encode()) if text else []
    return [slow_value(column, piece) for piece in pieces]


def slow_cell(column, text, nulls):
    missing = text in nulls.texts
    if column.kind != "bytes":
        trimmed = text.strip(SPACES)
        missing = text in nulls.numbers or (trimmed != b"" and trimmed in nulls.numbers)
    try:
        if not missing:
            return slow_values(column, text)
    except MisfitError as error:
        return error.args[0]
    if column.default is not None:
        return slow_values(column, column.default.encode())
    if not column.required:
        return ABSENT
    return [] if column.separator else "missing"


COLUMNS = [
    Column("c", "int64"),
    Column("c", "int64", required=False),
    Column("c", "int64", default=" 7 "),
    Column("c", "int64", zero_padded=True),
    Column("c", "int64", low=-5, high=100),
    Column("c", "int64", booleans=("Yes", "n")),
    Column("c", "int64", booleans=("1", "0"), required=False),
    Column("c", "int64", separator="|"),
    Column("c", "int64", separator="|", required=False, low=0),
    Column("c", "int64", separator="|", default="1|2"),
    Column("c", "float32"),
    Column("c", "float32", required=False, low=-1.5),
    Column("c", "float32", default="0.1", high=0.1),
    Column("c", "float32", separator=";", required=False),
    Column("c", "bytes"),
    Column("c", "bytes", required=False),
    Column("c", "bytes", default="?"),
    Column("c", "bytes", values=("a", "NA", "7")),
    Column("c", "bytes", separator="|", values=("a", "7")),
    Column("c", "bytes", separator="||", required=False),
]
NULLS = [CellRules(), CellRules.of(["-", "7", ""]), CellRules.of([]), CellRules.of(["NA", " "])]
TEXTS = st.one_of(
    st.text("0123456789+-.eE", max_size=5),
    st.text("0123456789 |;", max_size=8),
    st.sampled_from([*sorted(NUMERIC_NULLS), "a", " ", "yes", "N", "inf", "-Infinity", "7", "-"]),
    st.integers(-(2**64), 2**64).map(str),
    st.floats().map(repr),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
).map(str.encode) | st.binary(max_size=4)


@pytest.mark.sweep
@pytest.mark.parametrize("column", COLUMNS, ids=range(len(COLUMNS)))
@settings(max_examples=examples(100), deadline=None)
@given(texts=st.lists(TEXTS, max_size=12), nulls=st.sampled_from(NULLS))
def test_cells_equal_the_independent_parser(column, texts, nulls):
    expected = [slow_cell(column, text, nulls) for text in texts]
    assert str(outcomes(column, texts, nulls)) == str(expected)  # as text: -0.0 is not 0.0


INT64, FLOAT32 = Column("c", "int64"), Column("c", "float32")


def test_list_columns_have_the_type_of_their_values():
    for kind, arrow in (("int64", pa.int64()), ("float32", pa.float32()), ("bytes", pa.binary())):
        for texts in ([b"1|2"], [b""], [b"", b"1|2"], []):
            typed = type_cells(Column("c", kind, separator="|"), cells_of(texts), CellRules())
            assert decode(typed.values).type == pa.list_(arrow)
            assert typed.faults is None


def test_ignores_dictionary_values_without_rows():
    dictionary = pa.array([b"x", b"", b"2", b"9"], pa.binary())
    cells = pa.DictionaryArray.from_arrays(pa.array([0, 2, 3, 2], pa.int32()), dictionary)[1:]
    typed = type_cells(Column("c", "int64"), cells, CellRules())
    assert rows_of(typed) == [2, 9, 2]
    assert typed.faults is None
    # A sliced dictionary.
    cells = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), dictionary[2:])
    for separator in ("", "|"):
        typed = type_cells(Column("c", "int64", separator=separator), cells, CellRules())
        assert rows_of(typed) == ([2, 9] if not separator else [[2], [9]])


def test_defaults_include_the_nulls_of_pyarrow():
    from pyarrow import csv

    assert set(csv.ConvertOptions().null_values) < NUMERIC_NULLS


WRONG_DEFAULTS = [
    Column("c", "int64", default="1.5"),
    Column("c", "int64", default="12", high=9),
    Column("c", "int64", booleans=("a", "b"), default="1"),
    Column("c", "int64", default=""),
    Column("c", "int64", default="007"),
    Column("c", "int64", default="9" * 5000),
    Column("c", "float32", default="1e39"),
    Column("c", "float32", default="nan"),
    Column("c", "float32", default="0.2", high=0.1),
    Column("c", "int64", default="1|x", separator="|"),
    Column("c", "bytes", default="c", values=("a", "b")),
]


@pytest.mark.parametrize("column", WRONG_DEFAULTS, ids=str)
def test_rejects_a_default_that_is_not_a_cell(column):
    with pytest.raises(UsageError, match=r"^The column 'c' has a wrong default: .* .*\.$"):
        check_default(column)


def test_accepts_defaults_that_are_cells():
    for column in (
        Column("c", "bytes", default=""),
        Column("c", "int64", separator="|", default="1|2"),
        Column("c", "int64", separator="|", default=""),
        Column("c", "int64"),
        Column("c", "float32", low=0.1, default=" +.1e0 "),
        Column("c", "int64", zero_padded=True, default="007"),
    ):
        check_default(column)
