"""shardmill.write: every type of every library that makes tables; what the library reads judges."""

import datetime as dt
import io
import random
from collections import Counter
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from PIL import Image

import shardmill
from shardmill.pipelines import python_source
from shardmill.schemas.errors import InputError
from shardmill.transforms.sources.python import records
from tests.support.rows_tools import check_dataset, run_json_here
from tests.support.typed_tools import counted, frozen

ROWS, UNIT = 150, 64
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - as libraries read times without a zone
UTC = dt.timezone.utc
TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Builds run in this process, and units are small."""
    monkeypatch.setattr(python_source, "run", run_json_here)
    monkeypatch.setattr(records, "UNIT_ROWS", UNIT)
    monkeypatch.setattr(records, "_STEP", 16)


def make_values(rng: random.Random) -> dict[str, list]:
    """Return columns of random values with missing ones; some have none in the first unit."""
    day = dt.date(1950, 1, 1)

    def times():
        return EPOCH + dt.timedelta(
            days=rng.randrange(-9999, 9999), milliseconds=rng.randrange(9**8)
        )

    def text():
        return "".join(rng.choice("aé€𝄞 \0") for _ in range(rng.choice((0, 1, 5, 40))))

    def lists(make):
        return [make() for _ in range(rng.randrange(4))]

    def integer():
        return rng.randrange(-100, 100)

    makers = {
        "integer": integer,
        "float": lambda: rng.randrange(-99, 99) / 4,
        "boolean": lambda: rng.random() < 0.5,
        "text": text,
        "bytes": lambda: rng.randbytes(rng.choice((0, 3, 30))),
        "date": lambda: day + dt.timedelta(days=rng.randrange(40_000)),
        "datetime": times,
        "aware": lambda: times().replace(tzinfo=UTC),
        "time": lambda: dt.time(rng.randrange(24), 5, 7, 1000 * rng.randrange(1000)),
        "duration": lambda: dt.timedelta(milliseconds=rng.randrange(-(10**9), 10**9)),
        "decimal": lambda: Decimal(rng.randrange(-9999, 9999)) / 100,
        "integers": lambda: lists(integer),
        "texts": lambda: lists(text),
        "binaries": lambda: lists(lambda: rng.randbytes(3)),
        "struct": lambda: {"a": text(), "b": integer()},
    }
    columns = {}
    for name, make in makers.items():
        values = [make() if rng.random() < 0.6 else None for _ in range(ROWS)]
        columns[name] = values
        columns[f"late {name}"] = [None] * UNIT + values[UNIT:]
    return columns


def ticks(delta: dt.timedelta, unit: str) -> int:
    """Return a duration in a unit."""
    micros = delta // dt.timedelta(microseconds=1)
    return micros * TICKS[unit] // 10**6


def judge(value, unit: str):
    """Return a value that a library reads as a record has it."""
    if value is None or value is pd.NaT or value is pd.NA:
        return None
    if isinstance(value, dt.datetime):
        return ticks(value.replace(tzinfo=None) - EPOCH, unit)
    if isinstance(value, dt.date):
        return (value - EPOCH.date()).days
    if isinstance(value, dt.time):
        return ticks(dt.datetime.combine(EPOCH.date(), value) - EPOCH, unit)
    if isinstance(value, dt.timedelta):
        return ticks(value, unit)
    if isinstance(value, list | np.ndarray):
        return [judge(each, unit) for each in value]
    return value


def check(tmp_path, source, read: dict[str, list], units: dict[str, str]) -> None:
    """Compare the dataset of a source with what its library reads."""
    built = shardmill.write(source, tmp_path / "ds")
    columns = {}
    for name, values in read.items():
        kind = name.removeprefix("late ")
        if kind == "struct":
            for part in "ab":
                columns[f"{name}.{part}"] = [each and each[part] for each in values]
        else:
            columns[name] = [judge(each, units.get(kind, "us")) for each in values]
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    assert counted(check_dataset(tmp_path / "ds", built.manifest)) == Counter(map(frozen, rows))


def polars_types(kind: str) -> list[tuple[pl.DataType, str]]:
    """Return the types of Polars that have some values, and their units."""
    texts = [pl.String, pl.Categorical]
    return {
        "integer": [(each, "") for each in (pl.Int8, pl.Int16, pl.Int32, pl.Int64)],
        "float": [(each, "") for each in (pl.Float32, pl.Float64)],
        "text": [(each, "") for each in texts],
        "datetime": [(pl.Datetime(unit), unit) for unit in ("ms", "us", "ns")],
        "aware": [(pl.Datetime(unit, "UTC"), unit) for unit in ("ms", "us", "ns")],
        "time": [(pl.Time, "ns")],
        "duration": [(pl.Duration(unit), unit) for unit in ("ms", "us", "ns")],
        "decimal": [(pl.Decimal(9, 2), "")],
        "texts": [(pl.List(each), "") for each in texts],
        "binaries": [(pl.List(pl.Binary), "")],
    }.get(kind, [(None, "")])


def arrow_types(kind: str) -> list[tuple[pa.DataType, str]]:
    """Return the types of Arrow that have some values, and their units."""
    texts = [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ]
    binaries = [pa.binary(), pa.large_binary(), pa.binary_view()]
    lists = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]
    signed = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    decimals = [pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256]
    shorter = [each for each in texts if not pa.types.is_dictionary(each)]
    return {
        "integer": [(each, "") for each in signed],
        "float": [(each, "") for each in (pa.float16(), pa.float32(), pa.float64())],
        "text": [(each, "") for each in texts],
        "bytes": [(each, "") for each in binaries],
        "date": [(pa.date32(), "")],
        "datetime": [(pa.timestamp(unit), unit) for unit in ("ms", "us", "ns")],
        "aware": [(pa.timestamp(unit, "UTC"), unit) for unit in ("ms", "us", "ns")],
        "time": [(pa.time32("ms"), "ms"), (pa.time64("us"), "us"), (pa.time64("ns"), "ns")],
        "duration": [(pa.duration(unit), unit) for unit in ("ms", "us", "ns")],
        "decimal": [(each(9, 2), "") for each in decimals],
        "integers": [(each(pa.int32()), "") for each in lists],
        "texts": [(make(each), "") for make in lists for each in shorter],
        "binaries": [(make(each), "") for make in lists for each in binaries],
        "struct": [(pa.struct([("a", each), ("b", pa.int8())]), "") for each in shorter],
    }.get(kind, [(None, "")])


def variants(types) -> tuple[list[dict], dict]:
    """Return for each variant the type and unit of each kind of values, and all values."""
    values = make_values(random.Random(1))
    kinds = [name for name in values if not name.startswith("late ")]
    number = max(len(types(kind)) for kind in kinds)
    chosen = [{kind: types(kind)[n % len(types(kind))] for kind in kinds} for n in range(number)]
    return chosen, values


NUM_POLARS, NUM_ARROW = len(variants(polars_types)[0]), len(variants(arrow_types)[0])


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.heavy) for n in range(1, NUM_POLARS))]
)
def test_polars(tmp_path, number):
    chosen, values = variants(polars_types)
    series = {
        name: pl.Series(values[name], dtype=chosen[number][name.removeprefix("late ")][0])
        for name in values
    }
    frame = pl.DataFrame(series)
    units = {kind: unit for kind, (_, unit) in chosen[number].items()}
    check(tmp_path, frame, frame.to_dict(as_series=False), units)


@pytest.mark.parametrize(
    "number", [6, *(pytest.param(n, marks=pytest.mark.heavy) for n in range(NUM_ARROW) if n != 6)]
)
def test_arrow(tmp_path, number):
    chosen, values = variants(arrow_types)
    columns = {
        name: pa.array(values[name], chosen[number][name.removeprefix("late ")][0])
        for name in values
    }
    units = {kind: unit for kind, (_, unit) in chosen[number].items()}
    table = pa.table(columns)
    check(tmp_path, table, values, units)


@pytest.mark.heavy
def test_pandas(tmp_path):
    values = make_values(random.Random(2))
    frame = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in values.items()})
    for name in ("integer", "float", "text", "datetime", "duration", "boolean"):
        types = {"integer": "Int16", "text": "string", "boolean": "boolean"}
        frame[f"typed {name}"] = (
            frame[name].astype(types.get(name)) if name in types else (pd.Series(values[name]))
        )
    read = {name: frame[name].tolist() for name in frame}
    check(tmp_path, frame, read, {})


@pytest.mark.heavy
def test_duckdb(tmp_path):
    import duckdb

    values = make_values(random.Random(3))
    for kind in ("aware", "duration"):  # DuckDB needs pytz to read the one, and makes intervals
        del values[kind], values[f"late {kind}"]
    table = pa.table({name: pa.array(column) for name, column in values.items()})
    connection = duckdb.connect()
    connection.register("source", table)
    for view in (False, True):
        connection.execute(f"SET produce_arrow_string_view = {view}")
        query = "SELECT * FROM source ORDER BY integer"
        rows = connection.sql(query).fetchall()
        read = dict(zip(values, map(list, zip(*rows, strict=True)), strict=True))
        check(tmp_path / str(view), connection.sql(query), read, {})


@pytest.mark.heavy
def test_hugging_face(tmp_path):
    from datasets import Dataset

    values = make_values(random.Random(4))
    source = Dataset(pa.table({name: pa.array(column) for name, column in values.items()}))
    check(tmp_path / "memory", source, source[:], {})
    # Fields of dicts must be known from the first unit on.
    streamed = source.remove_columns("late struct").to_iterable_dataset()
    rows = list(streamed)
    read = {name: [row[name] for row in rows] for name in rows[0]}
    check(tmp_path / "stream", streamed, read, {})


@pytest.mark.heavy
def test_formats_of_hugging_face(tmp_path):
    """What source[index] gives is written."""
    from datasets import Dataset

    source = Dataset.from_dict({"a": [*range(100)], "b": [n / 4 for n in range(100)]})
    formats = {
        "columns": source.with_format("numpy", columns=["b"]),
        "all columns": source.with_format("numpy", columns=["b"], output_all_columns=True),
        "function": source.with_transform(lambda batch: {"c": [n * 10 for n in batch["a"]]}),
        "options": source.with_format("numpy", dtype=np.float16),
        "torch": source.with_format("torch"),
    }
    for name, formatted in formats.items():
        built = shardmill.write(formatted, tmp_path / name)
        rows = (formatted[n] for n in range(100))
        plain = ({field: np.asarray(each).item() for field, each in row.items()} for row in rows)
        examples = check_dataset(tmp_path / name, built.manifest)
        assert counted(examples) == Counter(map(frozen, plain)), name


def test_datasets_of_releases_that_ignored_formats_are_not_up_to_date():
    from datasets import Dataset

    source = Dataset.from_dict({"a": [1], "b": [2]})
    plain = source.with_format("numpy")
    for each in (source, plain):
        assert records.find_version(each, ()) == each._fingerprint
        assert records.find_version(each, ("a", "b", "")) == each._fingerprint
        assert records.find_version(each, ("a", "")) != each._fingerprint
    for each in (source.with_format("numpy", columns=["b"]), source.with_transform(dict)):
        assert records.find_version(each, ()) != each._fingerprint
    assert records.find_version([{"a": 1}], ()) is None


def unsupported_tables() -> dict[str, object]:
    """Return tables whose column x has a type that a dataset cannot hold, by its name."""
    import duckdb

    tables: dict[str, object] = {}
    small = pa.array([1, 2])
    codes = pa.array([0, 1], pa.int8())
    arrays = [
        pa.array([pa.MonthDayNano([1, 2, 3])] * 2),
        pa.UnionArray.from_sparse(codes, [small, pa.array(["a", "b"])]),
        pa.array([Decimal(100)] * 2, pa.decimal128(20, -2)),
        pa.array([b"a"] * 2, pa.opaque(pa.binary(), "t", "v")),
    ]
    for array in arrays:
        lists = pa.ListArray.from_arrays([0, 1, 2], array)
        struct = pa.StructArray.from_arrays([array], ["y"])
        tables |= {str(each.type): pa.table({"x": each}) for each in (array, lists, struct)}
    kinds = (pl.Int128, pl.UInt128)
    nested = [make for kind in kinds for make in (kind, pl.List(kind), pl.Struct({"y": kind}))]
    values = {pl.List: [1], pl.Struct: {"y": 1}}
    for kind in nested:
        series = pl.Series("x", [values.get(type(kind), 1), None], dtype=kind)
        tables[str(kind)] = series.to_frame()
    tables["Object"] = pl.DataFrame({"x": pl.Series([object()], dtype=pl.Object)})
    columns = [
        pd.Series(pd.arrays.SparseArray([0, 1])),
        pd.Series([1j, 2]),
        pd.Series([1.5], dtype=np.longdouble),
        pd.Series(pd.cut([1, 2, 3], 2)),
        pd.Series(pd.Categorical([1, "a"])),
    ]
    tables |= {f"{column.dtype} {n}": column.to_frame("x") for n, column in enumerate(columns)}
    for value, kind in {
        "'101'::BIT": "BIT",
        "['101'::BIT]": "BIT[]",
        "{'y': '101'::BIT}": "STRUCT(y BIT)",
        "'01:02:03+01'::TIMETZ": "TIME WITH TIME ZONE",
        "INTERVAL 1 DAY": "INTERVAL",
        "[INTERVAL 1 DAY]": "INTERVAL[]",
        "union_value(y := 2)": "UNION(y INTEGER)",
        "1::BIGNUM": "BIGNUM",
    }.items():
        tables[kind] = duckdb.sql(f"SELECT 1 AS k, {value} AS x")
    return tables


def test_types_that_a_dataset_cannot_hold(tmp_path):
    """Each is one sentence with the column, its type and what to do; nothing is written."""
    tables = unsupported_tables()
    assert len(tables) == 32
    for name, table in tables.items():
        with pytest.raises(InputError) as caught:
            shardmill.write(table, tmp_path / "ds")
        kind = name.rpartition(" ")[0] if isinstance(table, pd.DataFrame) else name
        sentence = f"The column 'x' of the source has the type {kind}, which a dataset cannot hold"
        assert str(caught.value).startswith(sentence)
        assert "convert it to" in str(caught.value)
    assert not [*tmp_path.glob("ds/*")]


DAY, NOON = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 12)  # noqa: DTZ001
AWARE = NOON.replace(tzinfo=UTC)
# Values that Arrow changes in silence, and the rule that the last one breaks.
CHANGED = [
    ([DAY, NOON], "a date as those before it"),
    ([1.5, True], "a number as those before it"),
    ([NOON, 5], "a time without a time zone as those before it"),
    ([NOON, AWARE], "a time without a time zone as those before it"),
    ([AWARE, NOON], "a time with a time zone as those before it"),
    ([dt.timedelta(1), 5], "a duration as those before it"),
    ([dt.time(1, tzinfo=UTC)], "a time of day without a time zone"),
]
OF_PANDAS = [
    ([{"a", "b"}], "a list, whose order is the same in each run"),
    ([pd.Timestamp(5)], "one without nanoseconds"),
    ([pd.Timedelta(5)], "one without nanoseconds"),
]
NESTED = {
    "values": lambda values: values,
    "lists of one": lambda values: [[value] for value in values],
    "one list": lambda values: [values],
    "dicts": lambda values: [{"y": value} for value in values],
    "lists in dicts": lambda values: [{"y": [value]} for value in values],
}


@pytest.mark.sweep
@pytest.mark.parametrize("nested", NESTED)
def test_values_that_arrow_changes_are_errors(tmp_path, nested):
    """In records of Python and in objects of pandas, with the index of the first one."""
    for values, rule in CHANGED + OF_PANDAS:
        column = NESTED[nested](values)
        last = len(column) - 1
        records_ = [{"x": value} for value in column]
        sources = [pd.DataFrame({"x": pd.Series([None, *column], dtype=object)})]
        sources += [records_] if (values, rule) in CHANGED else []
        for source in sources:
            index = last + (len(source) > len(column))
            with pytest.raises(InputError) as caught:
                shardmill.write(source, tmp_path / "ds")
            assert str(caught.value).startswith(f"Record {index}: the field 'x' is ")
            assert f", not {rule}" in str(caught.value)
    assert not [*tmp_path.glob("ds/*/*/*")]


@pytest.mark.heavy
def test_names_of_columns_of_pandas(tmp_path):
    """Names that are not texts become texts, and none is taken for the first row of a file."""
    values = np.arange(40).reshape(20, 2)
    days = [*pd.date_range("2020-01-01", periods=2)]
    for number, names in enumerate([[0, 1], [1.5, 2.5], [("a", "x"), ("a", "y")], days]):
        frame = pd.DataFrame(values, columns=pd.Index(names, tupleize_cols=number == 2))
        frame.index = pd.RangeIndex(20, name="row")
        built = shardmill.write(frame, tmp_path / f"{number}", splits="train:1")
        assert built.manifest.warnings == ()
        rows = ({"row": n, str(names[0]): 2 * n, str(names[1]): 2 * n + 1} for n in range(20))
        examples = check_dataset(tmp_path / f"{number}", built.manifest)
        assert counted(examples) == Counter(map(frozen, rows))


def test_values_that_python_does_not_have(tmp_path):
    """Infinite dates of DuckDB, and dictionaries with a missing value."""
    days = pa.array([2**31 - 1, None, 5], pa.int32())
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["x", None]))
    runs = pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["x", None], pa.string_view()))
    table = pa.table({"d": days.view(pa.date32()), "w": words, "r": runs})
    built = shardmill.write(table, tmp_path / "ds")
    rows = [{"d": 2**31 - 1, "w": "x", "r": "x"}, {"r": "x"}, {"d": 5}]
    examples = check_dataset(tmp_path / "ds", built.manifest)
    assert counted(examples) == Counter(map(frozen, rows))


@pytest.mark.heavy
def test_other_columns_of_images(tmp_path):
    """All values of all types, also where their first ones come late."""
    values = make_values(random.Random(5))
    png = io.BytesIO()
    Image.new("L", (2, 2)).save(png, "PNG")
    values |= {"number": [*range(ROWS)], "height": [1] * ROWS, "matrix": [[[1]]] * ROWS}
    frame = pl.DataFrame({**values, "x": [png.getvalue()] * ROWS})
    options = {"image": "x", "image_size": 2, "splits": "train:1"}
    built = shardmill.write(frame, tmp_path / "ds", **options)
    rows = {}
    for example in check_dataset(tmp_path / "ds", built.manifest):
        number = example.pop("image/key")[0].decode()
        assert example.pop("image/height")[0] == 2
        for name in ("image/encoded", "image/format", "image/width"):
            del example[name]
        rows[number] = {name.removeprefix("image/"): each for name, each in example.items()}
    del values["height"], values["matrix"]
    columns = {}
    for name, column in values.items():
        if name.endswith("struct"):
            for part in "ab":
                columns[f"{name}.{part}"] = [each and each[part] for each in column]
        else:
            unit = "ns" if name.endswith("time") and not name.endswith("datetime") else "us"
            columns[name] = [judge(each, unit) for each in column]
    for number in range(ROWS):
        row = {name: column[number] for name, column in columns.items()}
        assert frozen(rows[f"record:{number}"]) == frozen(row)
    changed = frame.with_columns(number=pl.col("number").replace(7, -7))
    updated = shardmill.write(changed, tmp_path / "ds", update=True, **options)
    assert updated.manifest.written == ROWS
    assert Counter(row["image/number"] for row in updated.open(features=["image/number"])) == {
        -7 if n == 7 else n: 1 for n in range(ROWS)
    }
    chosen = shardmill.write(
        frame, tmp_path / "chosen", features="image=image/encoded,n=image/number", **options
    )
    assert {*chosen.open()[0]} == {"image", "n"}


def test_numbers_in_other_columns_of_images_are_rounded_with_a_warning(tmp_path, capsys):
    png = io.BytesIO()
    Image.new("L", (2, 2)).save(png, "PNG")
    rows = [{"x": png.getvalue(), "a": value} for value in (0.1, 16777217.0)]
    shardmill.write(rows, tmp_path / "rounded", image="x", image_size=2, splits="train:1")
    sentence = "float32 rounds values of the field 'a': 16777217 becomes 16777216."
    assert sentence in capsys.readouterr().err
