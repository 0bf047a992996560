"""Properties of Parquet and JSON Lines files: pyarrow, polars and Python's json are the judges."""

import contextlib
import datetime as dt
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.schemas import InputRef, RejectedError, Splits
from shardmill.schemas.dataset.catalog import read_table
from shardmill.schemas.errors import InputError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.schemas.storage.local import LocalReader
from shardmill.transforms import PlaceSpec
from shardmill.transforms.sources.csv.arrow_values import convert_values, encode_cells
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.text_parser import CellFault, CellRules
from shardmill.transforms.sources.jsonl.jsonl_source import JsonLinesSource, sample_jsonl
from shardmill.transforms.sources.parquet import parquet_source
from shardmill.transforms.sources.parquet.parquet_source import (
    ParquetSource,
    measure,
    sample_parquet,
)
from shardmill.transforms.sources.python.records import read_units
from shardmill.transforms.tables.table_source import TableSpec, TypedBatch
from tests.support.typed_tools import expected, frozen

PLACE = PlaceSpec(Splits.parse(None), 0)
NULLS = CellRules(texts=frozenset())
KINDS = {"parquet": (ParquetSource, sample_parquet), "jsonl": (JsonLinesSource, sample_jsonl)}
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
VALUES = {
    "int64": (pa.int64(), INT64),
    "double": (pa.float64(), FLOATS),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), TEXTS),
}
TIMES = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))  # noqa: DTZ001
POLARS = {
    str(kind): (kind, values)
    for kind, values in (
        (pl.Int8(), st.integers(-128, 127)),
        (pl.Int64(), INT64),
        (pl.UInt32(), st.integers(0, 2**32 - 1)),
        (pl.UInt64(), st.integers(0, 2**63 - 1)),
        (pl.Float32(), st.floats(width=32)),
        (pl.Float64(), st.floats(width=32)),
        (pl.Boolean(), st.booleans()),
        (pl.String(), TEXTS),
        (pl.Binary(), st.binary(max_size=5)),
        (pl.Categorical(), TEXTS),
        (pl.Enum(["a", "b", ""]), st.sampled_from(["a", "b", ""])),
        (pl.Decimal(12, 2), st.decimals(-(10**9), 10**9, places=2)),
        (pl.Date(), TIMES.map(dt.datetime.date)),
        (pl.Datetime("us"), TIMES),
        (pl.Datetime("ms", "Europe/Zurich"), TIMES),
        (pl.Time(), st.times()),
        (pl.Duration("us"), st.timedeltas(dt.timedelta(-9999), dt.timedelta(9999))),
    )
}
JSON_TYPES = ("Boolean", "Int64", "String")  # and finite numbers: polars writes others as null
LISTED = (pl.Int64(), pl.Float64(), pl.String(), pl.Boolean(), pl.Categorical())
ONCE = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def ref_of(path: Path) -> InputRef:
    """Return a reference to a file."""
    status = path.stat()
    return InputRef(path.name, str(path), status.st_size, str(status.st_mtime_ns))


def read_file(kind: str, path: Path, **options) -> list[TypedBatch]:
    """Return the batches of a file, with its inferred schema."""
    make, sample_file = KINDS[kind]
    sample = sample_file(ref_of(path), Dialect(), NULLS, 1 << 20)
    table = TableSpec(sample.infer("", (), {}, strict=False), PLACE)
    source = make(table, Dialect(), NULLS, sample.base, profiles=sample.profiles, **options)
    item = source.inspect(ref_of(path))
    assert not item.ref.error
    batches = []
    for unit in source.units(item):
        read = [*source.read(unit)]
        assert not unit.single or len(read) == 1
        assert source.content(unit) == read[-1].content
        batches += read
    return batches


def records(batches: list[TypedBatch]) -> Counter:
    """Return the records of batches, as ``typed_tools.expected`` does."""
    return Counter(frozen(row) for batch in batches for row in rows_of(batch))


def rows_of(batch: TypedBatch) -> Iterator[dict]:
    """Yield the rows of a batch."""
    values = {column.name: column.values.to_pylist() for column in batch.columns}
    yield from (dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True))


def exact(rows: Iterable[dict]) -> list[str]:
    """Return rows as sorted texts, in which the signs of zeros differ."""
    return sorted(repr(sorted(frozen(row))) for row in rows)


@st.composite
def tables(draw) -> pa.Table:
    """Draw a table with columns of several types, lists and missing values."""
    rows = draw(st.integers(1, 30))
    columns = {}
    for number in range(draw(st.integers(1, 4))):
        kind, values = VALUES[draw(st.sampled_from(sorted(VALUES)))]
        if draw(st.booleans()):
            kind, values = pa.list_(kind), st.lists(values, max_size=3)
        cells = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[f"c{number}"] = pa.array(cells, kind)
    return pa.table(columns)


@pytest.mark.heavy
@given(tables(), st.booleans())
@ONCE
def test_a_json_lines_file_gives_its_values(tmp_path, table, bad) -> None:
    rows = [
        {name: value for name, value in row.items() if value is not None or len(row) % 2}
        for row in table.to_pylist()
    ]
    # The columns have a value of their type, or would be texts.
    first = {name: _example(table.schema.field(name).type) for name in table.column_names}
    lines = [json.dumps(row) for row in [first, *rows]]
    if bad:
        lines.insert(len(lines) // 2, "{")
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines))
    batches = read_file("jsonl", path, range_bytes=50)
    table = pa.concat_tables([pa.Table.from_pylist([first], table.schema), table])
    assert records(batches) == expected(table)
    rejects = [reject for batch in batches for reject in batch.rows.rejects()]
    assert [reject.line for reject in rejects] == [(len(lines) - 1) // 2 + 1] * bad


def _example(kind: pa.DataType):
    if pa.types.is_list(kind):
        return [_example(kind.value_type)]
    return {"int64": 1, "double": 0.5, "bool": True, "string": "a"}[str(kind)]


@st.composite
def frames(draw, kinds: dict) -> pl.DataFrame:
    """Draw a frame of polars; a column of each type may have nulls in any place, or only nulls."""
    rows, columns = draw(st.integers(1, 20)), {}
    for number, name in enumerate(draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1))[:6]):
        kind, values = kinds[name]
        if draw(st.booleans()) and kind in LISTED:
            # NaN in a list is a missing value, which rejects the row.
            values = FLOATS if kind == pl.Float64() else values
            kind, values = pl.List(kind), st.lists(values, max_size=3)
        cells = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[f"c{number}"] = pl.Series(cells, dtype=kind)
    return pl.DataFrame(columns)


@pytest.mark.heavy
@given(
    frames(POLARS),
    st.integers(1, 10),
    st.sampled_from(["zstd", "uncompressed"]),
    st.sampled_from([1, 100, 1 << 24]),
)
@ONCE
def test_polars_reads_the_values_of_a_parquet_file_too(
    tmp_path, frame, group, packed, size
) -> None:
    path = tmp_path / "t.parquet"
    frame.write_parquet(path, row_group_size=group, compression=packed)
    read = pl.read_parquet(path).with_columns(
        cs.temporal().to_physical(), (cs.categorical() | cs.enum()).cast(pl.String)
    )
    batches = read_file("parquet", path, range_bytes=size)
    found = [row for batch in batches for row in rows_of(batch)]
    assert exact(found) == exact(read.iter_rows(named=True))
    assert [row for batch in batches for row in batch.rows.ids] == [*range(len(read))]


@pytest.mark.parametrize("kind", [pl.String, pl.Binary, pl.List(pl.String)])
def test_polars_views_of_texts_have_a_size_in_each_version_of_arrow(kind) -> None:
    """Arrow 21 to 23 cannot count their bytes."""
    nulls = pl.Series([None] * 5, dtype=pl.List(kind))
    frame = pl.DataFrame({"a": nulls, "b": [["x", "y"]] * 5, "c": range(5)})
    units = read_units(frame, "", ())
    assert [row for unit in units for row in unit.to_pylist()] == frame.to_dicts()


@pytest.mark.heavy
@given(frames({**{name: POLARS[name] for name in JSON_TYPES}, "Float64": (pl.Float64(), FLOATS)}))
@ONCE
def test_polars_reads_the_values_of_a_json_lines_file_too(tmp_path, frame) -> None:
    path = tmp_path / "t.jsonl"
    frame.write_ndjson(path)
    batches = read_file("jsonl", path, range_bytes=50)
    found = [row for batch in batches for row in rows_of(batch)]
    assert exact(found) == exact(
        pl.read_ndjson(path, infer_schema_length=None).iter_rows(named=True)
    )


@given(st.data())
@ONCE
def test_a_damaged_parquet_file_gives_its_values_or_is_rejected(tmp_path, data) -> None:
    table = pa.table({"a": range(100), "s": [f"text {n}" for n in range(100)]})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=40, write_page_checksum=True)
    content = bytearray(buffer.getvalue())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "t.parquet"
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), at + 1]))])
    sample = sample_parquet(ref_of(path), Dialect(), NULLS, 0)
    if sample.ref.error:
        assert sample.ref.error in ("parquet", "other_table")
        return
    # Footers have no checksum: a damaged one may give other values, and never another error.
    with contextlib.suppress(RejectedError, InputError):
        measure(sample)
        read_file("parquet", path)


def test_a_lack_of_memory_does_not_reject_a_file(tmp_path, monkeypatch) -> None:
    """Arrow's error is a MemoryError and an ArrowException: it must fail the part, not the file."""
    pq.write_table(pa.table({"n": [1]}), tmp_path / "t.parquet")

    def fail(*_: object, **__: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 8 failed")

    for method in ("iter_batches", "read"):
        monkeypatch.setattr(pq.ParquetFile, method, fail)
    with pytest.raises(MemoryError):
        read_file("parquet", tmp_path / "t.parquet")
    with pytest.raises(MemoryError):
        read_table((tmp_path / "t.parquet").read_bytes(), ("n",))


def test_each_byte_of_a_row_group_is_read_once(tmp_path, monkeypatch) -> None:
    noise = pa.array([f"{n * 2654435761 % 2**32:x}" * 20 for n in range(60_000)])
    table = pa.table({"n": pa.array(range(60_000)), "text": noise, "unused": noise})
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, row_group_size=20_000, compression="none", use_dictionary=False)
    sizes: list[int] = []
    read_at = LocalReader.read_at

    def count(*at) -> bytes:
        data = read_at(*at)
        sizes[-1] += len(data)
        assert len(data) <= 2 << 20  # a row group may be larger than memory
        return data

    for columns in (("n", "text", "unused"), ("n",)):
        spec = TableSpec(tuple(Column(name, "bytes") for name in columns), PLACE)
        source = ParquetSource(spec, Dialect(), NULLS, range_bytes=1 << 20)
        units = [*source.units(source.inspect(ref_of(path)))]
        sizes.append(0)
        with monkeypatch.context() as patch:
            patch.setattr(LocalReader, "read_at", count)
            rows = [len(batch.rows.ids) for unit in units for batch in source.read(unit)]
        assert (sum(rows), len(rows) > len(units)) == (60_000, len(columns) > 1)
    footers = len(units) * (2 << 16)
    assert sizes[0] <= path.stat().st_size + footers < 1.05 * path.stat().st_size
    assert sizes[1] <= 60_000 * 8 * 1.1 + footers


NUMBERS = st.one_of(
    st.integers(-(10**42), 10**42),
    st.sampled_from([10**39, -(10**400)]),
    st.integers(-(2**70), 2**70),
    st.integers(2**24 - 2, 2**24 + 5),
    st.integers(2**53 - 2, 2**53 + 3),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@given(
    st.lists(st.tuples(NUMBERS, st.lists(NUMBERS, max_size=3)), min_size=1, max_size=9),
    st.booleans(),
)
@ONCE
def test_integers_of_json_are_not_rounded_in_silence(tmp_path, rows, sampled) -> None:
    """Before the end of the sample a warning, after it a reject; Python's integers are the judge."""
    first = {"x": 0.5, "y": [0.5], "s": {"z": 0.5}}
    lines = [json.dumps(first)]
    lines += [json.dumps({"x": x, "y": y, "s": {"z": x}}) for x, y in rows]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines))

    def is_rounded(number: float) -> bool:
        is_small = abs(number) < 2**127  # others are out of range
        return isinstance(number, int) and is_small and int(np.float32(number)) != number

    wrong = [is_rounded(x) or any(map(is_rounded, y)) for x, y in rows]
    sample = sample_jsonl(ref_of(path), Dialect(), NULLS, 1 << 20 if sampled else len(lines[0]))
    columns = sample.infer("", (), {}, strict=False)
    exact_names = replace(sample, complete=False).exact(columns)
    if sampled:
        expected_names = {"x", "s.z"} if any(is_rounded(x) for x, _ in rows) else set()
        expected_names |= {"y"} if any(is_rounded(each) for _, y in rows for each in y) else set()
        warned = {name for name, each in sample.profiles.items() if each.rounding}
        whole = {name for name in ("x", "y", "s.z") if name not in expected_names}
        assert expected_names <= warned  # and decimals that have no digits after the point
        assert set(exact_names) <= whole
        return
    source = JsonLinesSource(
        TableSpec(columns, PLACE), Dialect(), NULLS, sample.base, exact_names, sample.profiles
    )
    batches = [
        batch for unit in source.units(source.inspect(ref_of(path))) for batch in source.read(unit)
    ]
    rejects = [reject for batch in batches for reject in batch.rows.rejects()]
    large = {n for n, (x, y) in enumerate(rows, 2) if any(abs(each) >= 2**127 for each in (x, *y))}
    lines = [reject.line for reject in rejects if reject.line not in large]
    assert lines == [n for n, bad in enumerate(wrong, 2) if bad and n not in large]
    assert {reject.error for reject in rejects} <= {"range"}


DECIMALS = st.one_of(
    st.integers(-(2**66), 2**66),
    st.integers(2**63 - 3, 2**63 + 3),
    st.integers(-(2**63) - 3, -(2**63) + 3),
    st.integers(2**53 - 2, 2**53 + 3),
    st.decimals(-(10**19), 10**19, places=2),
)


@given(
    st.lists(st.none() | DECIMALS, min_size=1, max_size=9),
    st.sampled_from([128, 256]),
    st.booleans(),
)
@ONCE
def test_decimals_are_the_integers_that_they_are(numbers, bits, scaled) -> None:
    """Python's decimals are the judge: what fits int64 is exact, and all else is a fault."""
    make = {128: pa.decimal128, 256: pa.decimal256}[bits]
    places = 2 if scaled else 0
    decimals = [None if n is None else round(Decimal(n), places) for n in numbers]
    values = encode_cells(pa.array(decimals, make(38, places))).dictionary
    found = convert_values("int64", values)
    for value, number, fault in zip(values.to_pylist(), found.values, found.faults, strict=True):
        if value is None:
            assert fault == CellFault.MISSING
        elif not -(2**63) <= int(value) < 2**63:
            assert fault == CellFault.OVERFLOW
        else:
            assert fault == (CellFault.NONE if value == int(value) else CellFault.CAST)
            assert fault or number == int(value)


def test_inspection_reads_few_bytes_of_large_values(tmp_path, monkeypatch) -> None:
    """A file of kilobytes may have maps of gigabytes, which no feature can hold."""
    big, rows = "a" * 100_000, 50
    maps = pa.array([[("key", big)]] * rows, pa.map_(pa.string(), pa.large_string()))
    texts = pa.array([f"{row}{big}" for row in range(rows)], pa.large_string())
    small = {"id": range(rows), "s": [{"x": row, "y.z": 0.5} for row in range(rows)]}
    path = tmp_path / "t.parquet"
    pq.write_table(
        pa.table({**small, "m": maps, "t": texts}), path, compression="brotli", use_dictionary=False
    )
    ref = ref_of(path)
    whole = measure(sample_parquet(ref, Dialect(), NULLS, 0))
    read = []
    real = parquet_source.read_tables

    def spy(file, group, columns, step, size):
        read.append((columns, step))
        return real(file, group, columns, step, size)

    monkeypatch.setattr(parquet_source, "read_tables", spy)
    for limit, columns, step in (
        (5 * rows * len(big), None, 10_000),
        (3 * len(big), ["id", "s", "t"], 2),
        (len(big), ["id", "s"], rows),
        (0, [], 0),
    ):
        monkeypatch.setattr(parquet_source, "_SAMPLE_BYTES", limit)
        sample = measure(sample_parquet(ref, Dialect(), NULLS, 0))
        assert sample.profiles.keys() == whole.profiles.keys()
        assert read[-1:] == ([(columns, step)] if step else read[-1:])
        if columns is None:
            assert sample == whole
        else:
            assert sample.row_bytes >= 2 * len(big)  # as the footer says
    assert len(read) == 3
