"""Parquet files end to end: every value, as pyarrow reads it, is in the records."""

import datetime as dt
from decimal import Decimal
from functools import partial

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.schemas.errors import InputError
from tests.conftest import build_dataset
from tests.support.rows_tools import build_rows, published, rejects_of
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


def test_fields_that_a_file_declares_required_are_missing_in_a_missing_struct(tmp_path) -> None:
    needed = partial(pa.field, nullable=False)
    struct = pa.struct([needed("n", pa.int32()), needed("s", pa.string())])
    schema = pa.schema([pa.field("of", struct), needed("id", pa.int64())])
    values = [{"n": 1, "s": ""}, None, {"n": 3, "s": "x"}]
    table = pa.table([pa.array(values, struct), [7, 8, 9]], schema=schema)
    path = write(tmp_path / "t.parquet", table, row_group_size=2)
    examples, _ = published(input=path, output=tmp_path / "ds", splits="train:1")
    assert sorted(examples, key=lambda each: each["id"]) == [
        {"id": [7], "of.n": [1], "of.s": [b""]},
        {"id": [8]},
        {"id": [9], "of.n": [3], "of.s": [b"x"]},
    ]


def test_a_value_that_its_feature_cannot_hold_rejects_its_row(tmp_path) -> None:
    table = pa.table(
        {
            "large": pa.array([1, 2**63, 3, 4], pa.uint64()),
            "wide": [1.0, 2.0, 1e300, 4.0],
            "list": [[1], [2], [3], [4, None]],
        }
    )
    path = write(tmp_path / "t.parquet", table)
    outcome, manifest = build_rows(input=path, output=tmp_path / "ds", max_reject_fraction=1.0)
    assert (outcome.status, manifest.written) == ("published", 1)
    found = [(each["key"], each["column"], each["error"]) for each in rejects_of(tmp_path / "ds")]
    assert found == [
        ("t.parquet:2", "large", "range"),
        ("t.parquet:3", "wide", "range"),
        ("t.parquet:4", "list", "missing"),
    ]
    assert "fill it in, or use --drop=list" in rejects_of(tmp_path / "ds")[-1]["message"]


DUCKDB = {
    "UTINYINT": "i % 200",
    "UBIGINT": "i",
    "HUGEINT": "i",
    "DECIMAL(12, 2)": "i / 8",
    "DECIMAL(38, 0)": "i",
    "FLOAT": "i / 7",
    "DOUBLE": "i / 7",
    "BOOLEAN": "i % 2",
    "VARCHAR": "'é' || i",
    "BLOB": "encode('é' || i)",
    "ENUM('a', 'b', '')": "['a', 'b', ''][1 + i % 3]",
    "INTEGER[]": "[i, 3]",
    "VARCHAR[]": "['a' || i, '']",
    "STRUCT(a BIGINT, b VARCHAR)": "{'a': i, 'b': ''}",
    **dict.fromkeys(
        ("TIMESTAMP", "TIMESTAMP_MS", "TIMESTAMPTZ"),
        "TIMESTAMP '1960-01-01' + INTERVAL (i * 12345) SECOND",
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("value", ["to_seconds(i)", "[to_seconds(i)]", "{'b': to_seconds(i)}"])
def test_intervals_of_duckdb_are_rejected(value, tmp_path) -> None:
    """Arrow reads them as 12 bytes."""
    path = tmp_path / "t.parquet"
    with duckdb.connect() as database:
        database.sql(f"COPY (SELECT i, {value} AS a FROM range(3) r(i)) TO '{path}'")
    with pytest.raises(
        InputError, match=r"column 'a' has the type .*, which a feature cannot hold"
    ):
        build_dataset("rows", input=path, output=tmp_path / "ds")
    outcome, _ = build_dataset("rows", input=path, output=tmp_path / "ds", drop="a")
    assert outcome.status == "published"


@pytest.mark.heavy
def test_duckdb_reads_the_values_of_its_files_too(tmp_path) -> None:
    """Its own types, with missing values."""
    fields, judged = [], []
    for number, (kind, value) in enumerate(DUCKDB.items()):
        name = f"c{number}"
        fields.append(f"CASE WHEN i % 7 <> {number % 7} THEN CAST({value} AS {kind}) END AS {name}")
        if kind.startswith("STRUCT"):
            judged += [f'{name}.{each} AS "{name}.{each}"' for each in "ab"]
        elif kind.startswith("TIME"):
            judged.append(f"epoch_{'ms' if kind.endswith('MS') else 'us'}({name}) AS {name}")
        else:
            judged.append(name)
    path = tmp_path / "t.parquet"
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        query = f"SELECT {', '.join(fields)} FROM range(5000) t(i)"
        database.execute(f"COPY ({query}) TO '{path}' (ROW_GROUP_SIZE 2048)")
        found = database.sql(f"SELECT {', '.join(judged)} FROM '{path}'")
        rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
    examples, manifest = published(input=path, output=tmp_path / "ds")
    assert counted(examples) == counted(rows)
    assert manifest.written == 5000


def test_row_groups_without_rows_are_nothing(tmp_path) -> None:
    table = pa.table({"n": [1, None, 3]})
    with pq.ParquetWriter(tmp_path / "t.parquet", table.schema) as writer:
        for part in (table[:0], table[:1], table[:0], table[1:], table[:0]):
            writer.write_table(part)
    assert pq.ParquetFile(tmp_path / "t.parquet").num_row_groups == 5
    examples, manifest = published(input=tmp_path / "t.parquet", output=tmp_path / "ds")
    assert (counted(examples), manifest.written) == (expected(table), 3)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("unit", "zone"), [("ms", None), ("us", "Europe/Berlin"), ("ns", None), ("ns", "Europe/Berlin")]
)
def test_types_of_times_decide_their_unit(tmp_path, unit, zone) -> None:
    """pandas judges; also before 1970, where fractions of a second are cut towards the past."""
    texts = ["1969-12-31 23:59:58.5", "2020-02-29 12:00:00.25", "2262-01-01 00:00:00"]
    local = pd.Series(pd.to_datetime(texts, format="ISO8601")).dt.as_unit(unit)
    times = local.dt.tz_localize(zone) if zone else local
    frame = pd.DataFrame({"when": times, "day": local, "raw": times})
    frame.to_parquet(tmp_path / "t.parquet")
    types = ("when:datetime", "day:date")
    examples, _ = published(input=tmp_path / "t.parquet", output=tmp_path / "ds", types=types)
    utc = times.dt.tz_convert("UTC").dt.tz_localize(None) if zone else local
    for column, known, each in (
        ("when", utc, "1s"),
        ("day", local, "1D"),
        ("raw", utc, f"1{unit}"),
    ):
        judged = (known - pd.Timestamp(0)) // pd.Timedelta(each)
        assert sorted(row[column][0] for row in examples) == sorted(judged.tolist()), column


def test_a_folder_of_spark_is_one_table(tmp_path) -> None:
    folder = tmp_path / "out.parquet"
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    frames = [pa.table({"n": [part * 2, part * 2 + 1], "t": ["a", None]}) for part in range(3)]
    for part, table in enumerate(frames):
        name = f"part-{part:05d}-c000.snappy.parquet"
        pq.write_table(table, folder / name, compression="snappy")
        (folder / f".{name}.crc").write_bytes(b"crc\0")
    pq.write_metadata(frames[0].schema, folder / "_metadata")
    pq.write_metadata(frames[0].schema, folder / "_common_metadata")
    examples, manifest = published(input=folder, output=tmp_path / "ds")
    assert counted(examples) == expected(pa.concat_tables(frames))
    assert (manifest.inputs.accepted, manifest.inputs.skipped) == (6, 6)


def test_a_schema_joins_files_of_different_types(tmp_path) -> None:
    write(tmp_path / "a.parquet", pa.table({"n": [1, 2]}))
    write(tmp_path / "b.parquet", pa.table({"n": [1.5, None]}))
    write(tmp_path / "c.parquet", pa.table({"n": ["7", "-1e2"]}))
    schema = tmp_path / "s.pbtxt"
    schema.write_text('feature { name: "n" type: FLOAT presence { min_fraction: 0 } }')
    examples, _ = published(input=tmp_path / "*.parquet", output=tmp_path / "ds", schema=schema)
    assert counted(examples) == counted({"n": n} for n in (1.0, 2.0, 1.5, None, 7.0, -100.0))


@pytest.mark.parametrize("end", [4, -20])
def test_a_file_that_is_cut_short_is_one_sentence(tmp_path, end) -> None:
    path = write(tmp_path / "b.parquet", pa.table({"n": [1, 2]}))
    path.write_bytes(path.read_bytes()[:end])
    write(tmp_path / "a.parquet", pa.table({"n": [1, 2]}))
    with pytest.raises(InputError, match=r"b.parquet, its Parquet data is damaged"):
        build_rows(input=tmp_path / "*.parquet", output=tmp_path / "ds")
    assert not (tmp_path / "ds" / "manifest.json").exists()
