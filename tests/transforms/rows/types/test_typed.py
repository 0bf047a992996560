"""Typed cells: what each cell is, judged by Python's int() and float(), and numpy.float32."""

import pickle
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.rows.types.casts import Padding, read_float32, read_int64
from shardmill.transforms.rows.types.typed import (
    NUMERIC_NULLS,
    Nulls,
    describe,
    reasons_of,
    type_cells,
)
from tests.conftest import examples

ABSENT = object()
SPACES = b" \t\n\v\f\r"


def cells_of(texts):
    return pa.array(texts, pa.binary()).dictionary_encode()


def rows_of(typed):
    """The value of each row as Python's, ABSENT where there is none; the reason where it is bad."""
    values, indices = typed.column.values, typed.column.indices
    assert values.null_count == 0
    indices = np.arange(len(values)) if indices is None else indices
    assert indices.dtype == np.int32
    values = values.to_pylist()
    rows = [ABSENT if i < 0 else values[i] for i in indices]
    assert typed.bad is None or (typed.bad.any() and typed.misfits is not None)
    return rows


def outcomes(column, texts, nulls=None):
    """The value, or the reason, of each cell."""
    cells = cells_of(texts)
    typed = type_cells(column, cells, nulls or Nulls())
    rows = rows_of(typed)
    assert len(rows) == len(texts)
    for row in [] if typed.bad is None else np.flatnonzero(typed.bad):
        assert rows[row] is ABSENT
        rows[row] = str(reasons_of(cells, typed.misfits)[row])
        message = describe(column, cells, typed.misfits, int(row))
        assert column.name in message
        assert "\n" not in message
    return rows


# A slow reading of one cell, written from the rules


class RefusedError(Exception):
    pass


def slow_number(column, text):
    text = text.strip(SPACES)
    if column.booleans:
        texts = [word.strip().lower().encode() for word in column.booleans]
        if text.lower() not in texts:
            raise RefusedError("cast")
        return 1 - texts.index(text.lower())
    if not text.isascii() or b"_" in text:
        raise RefusedError("cast")
    try:
        if column.kind == "int64":
            number = int(text)
            if re.match(rb"[+-]?0\d", text) and not column.zero_padded:
                raise RefusedError("cast")
            within = -(2**63) <= number < 2**63
        else:
            with np.errstate(over="ignore"):
                number = float(np.float32(float(text)))
            within = np.isfinite(number)
    except ValueError:
        raise RefusedError("cast") from None
    low = -np.inf if column.low is None else column.low
    high = np.inf if column.high is None else column.high
    if not within or not low <= number <= high:
        raise RefusedError("range")
    return number


def slow_value(column, text):
    if column.kind != "bytes":
        return slow_number(column, text)
    if column.values is not None and text not in [value.encode() for value in column.values]:
        raise RefusedError("domain")
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
    except RefusedError as refused:
        return refused.args[0]
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
NULLS = [Nulls(), Nulls.of(["-", "7", ""]), Nulls.of([]), Nulls.of(["NA", " "])]
TEXTS = st.one_of(
    st.text("0123456789+-.eE", max_size=5),
    st.text("0123456789 |;", max_size=8),
    st.sampled_from([*sorted(NUMERIC_NULLS), "a", " ", "yes", "N", "inf", "-Infinity", "7", "-"]),
    st.integers(-(2**64), 2**64).map(str),
    st.floats().map(repr),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
).map(str.encode) | st.binary(max_size=4)


@pytest.mark.parametrize("column", COLUMNS, ids=range(len(COLUMNS)))
@settings(max_examples=examples(100), deadline=None)
@given(texts=st.lists(TEXTS, max_size=12), nulls=st.sampled_from(NULLS))
def test_every_cell_is_what_a_slow_reading_says(column, texts, nulls):
    expected = [slow_cell(column, text, nulls) for text in texts]
    found = outcomes(column, texts, nulls)
    assert str(found) == str(expected)  # as text, so that -0.0 is not 0.0


@pytest.mark.parametrize("column", COLUMNS, ids=range(len(COLUMNS)))
def test_cells_are_judged_alone_and_in_company_alike(column):
    texts = [
        b"1",
        b"+1",
        b"007",
        b"",
        b"NA",
        b" 12 ",
        b"1.5",
        b"a",
        b"yes",
        b"1|2",
        b"x|1",
        b"1e99",
    ]
    assert outcomes(column, texts) == [outcomes(column, [text])[0] for text in texts]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_every_int64_is_read(numbers):
    assert outcomes(Column("c", "int64"), [b"%d" % n for n in numbers]) == numbers


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
@example([3.4028235677973362e38, 3.4028235677973366e38, -1e-46, 5e-324, 16777217.0, -0.0])
def test_every_double_is_rounded_as_numpy_rounds_it(numbers):
    with np.errstate(over="ignore"):
        expected = np.array(numbers).astype(np.float32)
    read = read_float32(pa.array([repr(n).encode() for n in numbers]))
    faults = np.zeros(len(numbers)) if read.faults is None else read.faults
    fits = np.isfinite(expected)
    assert ((faults == 0) == fits).all()
    assert read.values[fits].tobytes() == expected[fits].tobytes()


@given(st.lists(st.text("0123456789+-.eE \t", max_size=6)))
def test_arrow_reads_no_more_of_plain_characters_than_the_rules_allow(texts):
    # The fast ways trust Arrow's parsers where only such characters are: each alone goes there.
    for text in texts:
        array = pa.array([text.encode()])
        whole = re.fullmatch(r"[+-]?(0|[1-9]\d*)", text.strip())
        assert (read_int64(array, Padding.REFUSED).faults is None) == bool(whole)
        decimal = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text.strip(), re.IGNORECASE)
        fits = bool(decimal) and abs(float(text)) < 3.4e38
        assert (read_float32(array).faults is None) == fits


CASES = [
    ("int64", b"3.0", "cast", "'3.0' is no int64: make it FLOAT or BYTES in the schema"),
    ("int64", b"1e3", "cast", "no int64"),
    ("int64", b"0x10", "cast", "no int64"),
    ("int64", b"1_000", "cast", "no int64"),
    ("int64", b"1,000", "cast", "no int64"),
    ("int64", b" ", "cast", "' ' is no int64"),
    ("int64", "\uff11\uff12".encode(), "cast", "'\uff11\uff12' is no int64"),
    ("int64", b"--1", "cast", "no int64"),
    ("int64", b"-", "cast", "no int64"),
    ("int64", b"1 2", "cast", "no int64"),
    ("int64", b"\xff", "cast", r"'\\xff' is no int64"),
    ("int64", b"007", "cast", "'007' has leading zeros: make it BYTES"),
    ("int64", b"-01", "cast", 'annotation { tag: "zero_padded" }'),
    ("int64", b"9223372036854775808", "range", "outside the range of int64: make it FLOAT or"),
    ("int64", b"-9223372036854775809", "range", "outside the range of int64"),
    ("int64", b"9" * 5000, "range", "9'… is outside"),
    ("int64", b"NA", "missing", "'NA' is missing, but a value is required"),
    ("int64", b" ? ", "missing", "is missing"),
    ("float32", b"inf", "range", "outside the range of float32: make it BYTES"),
    ("float32", b"1e400", "range", "outside"),
    ("float32", b"-1e39", "range", "outside"),
    ("float32", b"NAN", "range", "outside"),
    ("float32", b"nan", "missing", "is missing"),
    ("float32", b"0x1p3", "cast", "no float32: make it BYTES"),
    ("float32", b"1,5", "cast", "--null_values"),
    ("float32", b"1e", "cast", "no float32"),
    ("bytes", b"", "missing", "'' is missing"),
]


@pytest.mark.parametrize(("kind", "text", "reason", "message"), CASES)
def test_what_does_not_fit_says_why_and_what_to_change(kind, text, reason, message):
    column = Column("income", kind)
    cells = cells_of([b"1", text, b"2"])
    typed = type_cells(column, cells, Nulls())
    assert typed.bad.tolist() == [False, True, False]
    found = reasons_of(cells, typed.misfits)[1]
    said = describe(column, cells, typed.misfits, 1)
    assert found == reason
    assert said.startswith("'income': ")
    assert message in said
    assert len(said) < 300


@pytest.mark.parametrize(
    ("column", "text", "reason", "message"),
    [
        (Column("c", "int64", low=1, high=9), b"0", "range", "'0' is not within 1 to 9: widen"),
        (Column("c", "float32", low=1), b".5", "range", "'.5' is under 1.0"),
        (Column("c", "float32", high=1), b"2", "range", "'2' is over 1.0"),
        (Column("c", "bytes", values=("a", "b")), b"c", "domain", "none of the 2 texts"),
        (Column("c", "int64", booleans=("yes", "no")), b"1", "cast", "neither 'yes' nor 'no'"),
        (Column("c", "int64", separator="|"), b"1|b|3|d", "cast", "'b' is no int64"),
        (Column("c", "int64", separator="|"), b"1||3", "cast", "'' is no int64"),
        (Column("c", "bytes", separator="|", values=("a",)), b"a|" + b"\n" * 99, "domain", "'…"),
    ],
)
def test_what_breaks_the_schema_says_which_rule(column, text, reason, message):
    cells = cells_of([b"", text])
    typed = type_cells(column, cells, Nulls())
    found = reasons_of(cells, typed.misfits)[1]
    said = describe(column, cells, typed.misfits, 1)
    assert (found, message in said) == (reason, True), said
    assert "\n" not in said


def test_a_missing_cell_takes_the_default_and_its_value_stands_once():
    column = Column("c", "float32", default="1.5")
    cells = cells_of([b"2", b"", b"NA", b"3", b""])
    typed = type_cells(column, cells, Nulls())
    assert rows_of(typed) == [2, 1.5, 1.5, 3, 1.5]
    assert len(typed.column.values) == 3
    assert typed.column.values.type == pa.float32()


def test_lists_have_the_type_of_their_values():
    for kind, arrow in (("int64", pa.int64()), ("float32", pa.float32()), ("bytes", pa.binary())):
        for texts in ([b"1|2"], [b""], [b"", b"1|2"], []):
            typed = type_cells(Column("c", kind, separator="|"), cells_of(texts), Nulls())
            assert typed.column.values.type == pa.list_(arrow)
            assert typed.bad is None


def test_only_rows_count_not_what_a_dictionary_holds_besides():
    dictionary = pa.array([b"x", b"", b"2", b"9"], pa.binary())
    cells = pa.DictionaryArray.from_arrays(pa.array([0, 2, 3, 2], pa.int32()), dictionary)[1:]
    typed = type_cells(Column("c", "int64"), cells, Nulls())
    assert rows_of(typed) == [2, 9, 2]
    assert typed.bad is None
    # Slices of dictionaries too.
    cells = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), dictionary[2:])
    for separator in ("", "|"):
        typed = type_cells(Column("c", "int64", separator=separator), cells, Nulls())
        assert rows_of(typed) == ([2, 9] if not separator else [[2], [9]])


def test_nulls_of_a_flag_replace_all_others():
    nulls = Nulls.of(["-9", "none"])
    assert outcomes(Column("c", "int64"), [b"-9", b"", b"NA", b"1"], nulls) == [
        "missing",
        "cast",
        "cast",
        1,
    ]
    optional = Column("c", "bytes", required=False)
    assert outcomes(optional, [b"none", b"", b" none"], nulls) == [ABSENT, b"", b" none"]
    assert pickle.loads(pickle.dumps(nulls)) == nulls


def test_what_arrow_csv_takes_for_missing_is_missing():
    from pyarrow import csv

    assert set(csv.ConvertOptions().null_values) < NUMERIC_NULLS


def test_many_rows_take_no_time_of_their_own():
    # 2 million rows of few texts: nothing may walk over the rows one by one.
    import time

    cells = pa.DictionaryArray.from_arrays(
        pa.array(np.arange(2_000_000, dtype=np.int32) % 3), pa.array([b"1", b"NA", b"x"])
    )
    start = time.process_time()
    typed = type_cells(Column("c", "int64", required=False), cells, Nulls())
    assert time.process_time() - start < 0.5
    assert typed.bad.sum() == 666_666
