"""Options of columns: which become features, with which names, types and defaults."""

import datetime as dt
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.pipelines import RowsConfig
from shardmill.schemas.errors import UsageError
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema, parse_schema
from shardmill.transforms.sources.csv import text_parser
from shardmill.transforms.sources.csv.dialect import CellOptions
from shardmill.transforms.sources.csv.text_parser import CellRules
from shardmill.transforms.sources.csv.typed_cells import type_cells
from tests.support.readers import current
from tests.support.rows_tools import make_table, published

HEADER = ["id", "zip", "Preis", "when", "day", "age", "note"]
ROWS = [
    ["1", "01234", "1.234,5", "2024-02-29 10:00:00", "31.12.1969", "7", "a"],
    ["2", "99999", "0,25", "1969-12-31T23:59:59.9Z", "01.01.1970", "", "b"],
    ["3", "10000", "-inf", "2024-01-01T00:00:00+01:00", "02.03.2024", "-1", ""],
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return make_table(tmp_path / "table.csv", HEADER, ROWS)


OPTIONS = {
    "rename": {"Preis": "price", "note": "label"},
    "drop": ["id"],
    "types": {"zip": "bytes", "when": "datetime", "day": "date:%d.%m.%Y", "age": "float"},
    "defaults": {"age": "0.5", "label": "none"},
    "decimal": ",",
    "thousands": ".",
    "label": "label",
}


def build(table: Path, **options) -> tuple[list[dict], str]:
    """Return the examples of a dataset and the text of its schema."""
    output = table.parent / "ds"
    options = {"splits": "train:1", **options}
    examples, _ = published(input=str(table), output=str(output), **options)
    return examples, (current(output) / "schema.pbtxt").read_text()


def test_columns_are_chosen_named_typed_and_defaulted(table) -> None:
    examples, schema = build(table, key="id", **OPTIONS)
    assert sorted(examples, key=lambda each: each["when"]) == [
        {
            "zip": [b"99999"],
            "price": [0.25],
            "when": [-1],
            "day": [0],
            "age": [0.5],
            "label": [b"b"],
        },
        {
            "zip": [b"10000"],
            "price": [-np.inf],
            "when": [1704063600],
            "day": [19784],
            "age": [-1.0],
            "label": [b"none"],
        },
        {
            "zip": [b"01234"],
            "price": [1234.5],
            "when": [1709200800],
            "day": [-1],
            "age": [7.0],
            "label": [b"a"],
        },
    ]
    # The schema has all that the flags say, but for the names in the file and the forms of numbers.
    path = table.with_name("schema.pbtxt")
    path.write_text(schema)
    flags = {name: OPTIONS[name] for name in ("rename", "decimal", "thousands", "label")}
    table.with_name("ds").rename(table.with_name("first"))
    assert build(table, key="id", schema=str(path), **flags) == (examples, schema)


def test_select_keeps_the_label(table) -> None:
    columns = parse_schema(build(table, select="zip,age", label="id")[1], "")
    assert {column.name for column in columns} == {"zip", "age", "id"}


def test_infinity_may_be_missing(table) -> None:
    options = {"decimal": ",", "thousands": ".", "overwrite": True}
    numbers, _ = build(table, **options)
    missing, _ = build(table, infinity="missing", **options)
    assert sum("Preis" in each for each in numbers) == sum("Preis" in each for each in missing) + 1


def test_flags_equal_mappings_and_the_command_of_the_manifest(tmp_path) -> None:
    given = RowsConfig(
        "a", "b", rename={"x": "y"}, types={"d": "datetime:%b %d, %Y %H:%M", "z": "int"}
    )
    flags = RowsConfig("a", "b", rename="x:y", types="d:datetime:%b %d, %Y %H:%M,z:int")
    assert (given.rename, given.types) == (flags.rename, flags.types)
    assert "--types=d:datetime:%b %d, %Y %H:%M,z:int" in flags.command("rows")


def test_names_may_be_swapped(table) -> None:
    examples, _ = build(table, rename={"id": "age", "age": "id"}, types="age:int,id:int")
    assert sorted(each["age"] for each in examples) == [[1], [2], [3]]


NUMBERS = st.decimals(-(10**9), 10**9, places=3)


@given(
    st.lists(NUMBERS, min_size=1),
    st.sampled_from([(",", "."), (",", ""), (".", ","), (".", "'"), (",", " ")]),
)
def test_numbers_equal_those_of_pandas(numbers, marks) -> None:
    decimal, thousands = marks
    texts = [
        f"{each:,.3f}".replace(",", "T").replace(".", decimal).replace("T", thousands)
        for each in numbers
    ]
    rules = CellRules.of(None, CellOptions(decimal=decimal, thousands=thousands))
    cells = pa.array([text.encode() for text in texts]).dictionary_encode()
    typed = type_cells(Column("c", "float32"), cells, rules)
    assert typed.faults is None
    table = "c\n" + "\n".join(f'"{text}"' for text in texts)
    judge = pd.read_csv(io.StringIO(table), decimal=decimal, thousands=thousands or None)["c"]
    assert typed.values.to_pylist() == judge.astype("float32").tolist()


@pytest.mark.parametrize(
    ("marks", "texts"),
    [
        ((".", ","), ["1,00", "1,0000", ",100", "1,000,00", "1.000,000", "1,,000"]),
        ((",", ""), ["0.5", "1,2,3", "1.000"]),
        ((",", "."), ["1.00,5", "1.5", "1,000.5"]),
    ],
)
def test_other_forms_are_not_numbers(marks, texts) -> None:
    rules = CellRules.of(None, CellOptions(decimal=marks[0], thousands=marks[1]))
    faults = text_parser.parse_float64(rules.plain(pa.array([*map(str.encode, texts)]))).faults
    assert faults.tolist() == [text_parser.CellFault.CAST] * len(texts)


TIMES = st.datetimes(max_value=dt.datetime(9998, 1, 1)).filter(lambda t: t.year > 1)  # noqa: DTZ001
ZONES = st.sampled_from(["", "Z", "+01:00", "-0530"])


@given(TIMES, ZONES, st.sampled_from("T "), st.booleans())
def test_times_equal_those_of_pandas(time, zone, between, fraction) -> None:
    text = time.isoformat(between, "microseconds" if fraction else "seconds") + zone
    judge = pd.Timestamp(dt.datetime.fromisoformat(text.replace("Z", "+00:00")))
    judge = judge.tz_localize("UTC") if judge.tzinfo is None else judge
    for kind, unit in (("datetime", "s"), ("date", "D")):
        found = text_parser.parse_times(pa.array([text.encode()]), kind, "")
        assert found.faults.tolist() == [0]
        expected = judge.tz_convert("UTC").tz_localize(None).to_datetime64().astype(f"M8[{unit}]")
        assert found.values[0] == expected.astype(int)


FORMS = st.sampled_from(
    ["%d.%m.%Y", "%Y/%m/%d %H:%M:%S", "%d %b %Y %I:%M %p", "%Y-%m-%d %H:%M:%S%z", "%Y%m%d"]
)


@given(TIMES, FORMS)
def test_formats_are_those_of_python(time, form) -> None:
    year = time.year if time.year >= 1000 else time.year + 2000  # keeps leap years
    text = time.replace(year=year, tzinfo=dt.timezone.utc).strftime(form)
    found = text_parser.parse_times(pa.array([text.encode()]), "datetime", form)
    judge = dt.datetime.strptime(text, form).replace(tzinfo=dt.timezone.utc)
    assert found.values[0] == (
        judge - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    ) // dt.timedelta(seconds=1)


@pytest.mark.parametrize(
    "text",
    [
        "2023-02-30",
        "20240131",
        "2024-01-31 25:00",
        "31.01.2024",
        "x",
        "2024-01-31T",
        "\xff",
        "2024-01-31 00:00:60",
    ],
)
def test_other_texts_are_not_times(text) -> None:
    data = pa.array([text.encode("latin-1")])
    assert text_parser.parse_times(data, "datetime", "").faults.tolist() == [
        text_parser.CellFault.CAST
    ]


def test_a_time_has_one_form_in_the_schema() -> None:
    column = Column("when", "int64", time="date", time_format="%d=%m %Y")
    assert parse_schema(format_schema([column]), "") == (column,)
    for wrong in ({"kind": "bytes"}, {"zero_padded": True}, {"time_format": "%Q"}):
        with pytest.raises(UsageError):
            Column("c", **{"kind": "int64", "time": "date", **wrong})


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["Unnamed: 0", "a:b", "a b", "old"])
@pytest.mark.parametrize("renamed", [False, True])
def test_columns_are_chosen_by_any_of_their_names(tmp_path, name, renamed) -> None:
    """The name in the file works besides the new one, and it may have a colon."""
    table = make_table(tmp_path / "table.csv", [name, "other"], [["1", "2"], ["3", "4"]])
    rename = {name: "new"} if renamed and ":" not in name else {}
    for chosen in {name, *rename.values()}:
        dropped, _ = build(table, rename=rename, drop=[chosen], overwrite=True)
        assert [*dropped[0]] == ["other"]
        selected, _ = build(table, rename=rename, select=[chosen], overwrite=True)
        assert [*selected[0]] == [rename.get(name, name)]
