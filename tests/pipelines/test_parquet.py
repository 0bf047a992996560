"""Parquet files end to end: every value, as pyarrow reads it, is in the records."""

import datetime as dt
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.schemas.errors import InputError
from shardmill.transforms.sources.parquet.parquet_source import ParquetSource
from tests.support.rows_tools import build_rows, published, rejects_of, run_here
from tests.support.typed_tools import counted, expected

NAN, INFINITE = float("nan"), float("inf")
COLUMNS = {
    "int8": pa.array([1, None, -3], pa.int8()),
    "uint64": pa.array([1, None, 2**63 - 1], pa.uint64()),
    "int64": pa.array([2**63 - 1, None, -(2**63)], pa.int64()),
    "bool": pa.array([True, None, False]),
    "half": pa.array([1.5, None, -2.0], pa.float16()),
    "float": pa.array([0.1, None, NAN], pa.float32()),
    "double": pa.array([0.1, INFINITE, NAN]),
    "decimal": pa.array([Decimal("1.25"), None, Decimal("-3.10")], pa.decimal128(10, 2)),
    "big_decimal": pa.array([Decimal(10**18), None, Decimal(-7)], pa.decimal128(30, 0)),
    "text": pa.array(["Zürich", None, ""]),
    "large_text": pa.array(["a", None, "b"], pa.large_string()),
    "bytes": pa.array([b"\xff\0", None, b""], pa.binary()),
    "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "category": pa.array(["x", None, "x"]).dictionary_encode(),
    "number_category": pa.array([5, None, 5]).dictionary_encode(),
    "time_us": pa.array([10**12, None, -1], pa.timestamp("us")),
    "time_zone": pa.array([10**9, None, -1], pa.timestamp("ms", "Europe/Zurich")),
    "date": pa.array([dt.date(2020, 1, 2), None, dt.date(1969, 12, 31)]),
    "clock": pa.array([dt.time(1, 2, 3), None, dt.time(0)]),
    "duration": pa.array([dt.timedelta(seconds=5), None, dt.timedelta(0)]),
    "null": pa.nulls(3),
    "ints": pa.array([[1, 2, 3], None, []], pa.list_(pa.int32())),
    "floats": pa.array([[0.5], [1.5, -2.5], None], pa.large_list(pa.float64())),
    "texts": pa.array([["a", ""], [], None]),
    "fixed_list": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
    "struct": pa.array([{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}]),
}


def write(path, table: pa.Table, **options):
    """Write a table as Parquet; return its path."""
    pq.write_table(table, path, **options)
    return path


def test_each_type_follows_its_rule(tmp_path) -> None:
    table = pa.table(COLUMNS)
    path = write(tmp_path / "t.parquet", table, row_group_size=2)
    examples, manifest = published(input=path, output=tmp_path / "ds")
    assert counted(examples) == expected(pq.read_table(path))
    assert manifest.written == 3
    names = {feature["name"] for feature in manifest.features}
    assert {"struct.a", "struct.b.c"} <= names


def test_a_value_that_its_feature_cannot_hold_rejects_its_row(tmp_path) -> None:
    table = pa.table({
        "large": pa.array([1, 2**63, 3, 4], pa.uint64()),
        "wide": [1.0, 2.0, 1e300, 4.0],
        "list": [[1], [2], [3], [4, None]],
    })  # fmt: skip
    path = write(tmp_path / "t.parquet", table)
    outcome, manifest = build_rows(input=path, output=tmp_path / "ds", max_reject_fraction=1.0)
    assert (outcome.status, manifest.written) == ("published", 1)
    found = [(each["key"], each["column"], each["error"]) for each in rejects_of(tmp_path / "ds")]
    assert found == [
        ("t.parquet:2", "large", "range"),
        ("t.parquet:3", "wide", "range"),
        ("t.parquet:4", "list", "missing"),
    ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[[1]]]),
        pa.array([[{"a": 1}]]),
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([{"b": [[1]]}]),
    ],
    ids=["lists", "structs", "map", "in_struct"],
)
def test_a_type_that_no_feature_can_hold_is_one_sentence_with_its_path(tmp_path, column) -> None:
    path = write(tmp_path / "t.parquet", pa.table({"a": column, "n": [1]}))
    name = "a.b" if pa.types.is_struct(column.type) else "a"
    with pytest.raises(InputError, match=f"The column '{name}' has the type .*--schema"):
        build_rows(input=path, output=tmp_path / "ds")
    schema = tmp_path / "s.pbtxt"
    schema.write_text('feature { name: "n" type: INT }')
    examples, _ = published(input=path, output=tmp_path / "ds", schema=schema)
    assert examples == [{"n": [1]}]


def test_a_large_row_group_is_read_in_several_batches(tmp_path, monkeypatch) -> None:
    frame = pd.DataFrame({"n": range(50_000), "s": [f"text {n % 977}" for n in range(50_000)]})
    frame.to_parquet(tmp_path / "t.parquet")
    one, _ = published(input=tmp_path / "t.parquet", output=tmp_path / "one")

    class Small(ParquetSource):
        """Reads small batches."""

        def __post_init__(self) -> None:
            object.__setattr__(self, "range_bytes", 100_000)

    monkeypatch.setattr("shardmill.pipelines.rows.ParquetSource", Small)
    monkeypatch.setitem(globals(), "Small", Small)
    Small.__qualname__ = "Small"
    many, manifest = published(input=tmp_path / "t.parquet", output=tmp_path / "many")
    assert len([*(tmp_path / "many").rglob("*.run")]) == 0
    assert one == many
    assert manifest.written == 50_000


def test_the_label_is_counted_and_the_dataset_verifies(tmp_path, capsys) -> None:
    frame = pd.DataFrame({"x": [0.5] * 30, "label": pd.Categorical(["cat", "dog", "cat"] * 10)})
    frame.to_parquet(tmp_path / "t.parquet")
    _, manifest = published(input=tmp_path / "t.parquet", output=tmp_path / "ds", label="label")
    assert manifest.labels == ("cat", "dog")
    assert run_here(capsys, "verify", tmp_path / "ds")[0] == 0
