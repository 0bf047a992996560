"""Rows are never lost silently: whole files, gaps, types and digits. pandas is the judge."""

import io
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from shardmill.schemas.errors import ShardmillError
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema, parse_schema
from shardmill.transforms.sources.csv import source
from tests.support.rows_tools import build_rows, published, rejects_of

TRAIN = "train:1"
SMALL = {"splits": TRAIN, "sample_bytes": "64KiB"}


def frame_of(examples: list[dict], names: list[str]) -> pd.DataFrame:
    """Return examples as a sorted table with None for missing values."""
    rows = [[example.get(name, [None])[0] for name in names] for example in examples]
    cells = [[c.decode() if isinstance(c, bytes) else c for c in row] for row in rows]
    return pd.DataFrame(cells, columns=names, dtype=object).sort_values("id", ignore_index=True)


def table(first: int, rows: int, **columns) -> pd.DataFrame:
    """Return a table of ids, prices and other columns."""
    ids = np.arange(first, first + rows)
    return pd.DataFrame({"id": ids, "price": ids / 4 + 0.5, "city": "Rome", **columns})


def schema_of(folder: Path) -> dict:
    return {
        c.name: c for c in parse_schema((folder / "current/schema.pbtxt").read_text(), "schema")
    }


def failed(**options) -> str:
    """Return the message of a build that must publish nothing."""
    before = sorted(options["output"].glob("[!.]*"))
    try:
        message = build_rows(**options)[0].check().message
    except ShardmillError as error:
        message = str(error)
    assert message
    assert "\n" not in message
    assert sorted(options["output"].glob("[!.]*")) == before
    return message


# Whole files.


@pytest.mark.parametrize(
    "names",
    [
        ("test.csv", "train.csv"),
        pytest.param(("z_test.csv", "train.csv"), marks=pytest.mark.heavy),
    ],
)
def test_files_with_fewer_columns_join(names, tmp_path) -> None:
    """Kaggle's test.csv lacks the label; no column is lost in any order of the files."""
    (tmp_path / "in").mkdir()
    test, train = table(50, 60), table(0, 50, survived=np.arange(50) % 2)
    test.to_csv(tmp_path / "in" / names[0], index=False)
    train.to_csv(tmp_path / "in" / names[1], index=False)
    options = {"input": tmp_path / "in", "splits": TRAIN}
    examples, manifest = published(**options, output=tmp_path / "ds")
    both = pd.concat([train, test]).astype(object)
    both = both.where(both.notna(), None).reset_index(drop=True)
    pd.testing.assert_frame_equal(frame_of(examples, list(both)), both)
    assert any("lack the column 'survived'" in w and names[0] in w for w in manifest.warnings)
    assert not schema_of(tmp_path / "ds")["survived"].required
    assert schema_of(tmp_path / "ds")["price"].required
    message = failed(**options, output=tmp_path / "two", label="survived")
    assert f"{names[0]}, it has no column 'survived'" in message
    # A given schema may have optional columns that no file has.
    columns = [*schema_of(tmp_path / "ds").values(), Column("other", "float32", required=False)]
    (tmp_path / "schema.pbtxt").write_text(format_schema(columns))
    _, manifest = published(**options, output=tmp_path / "3", schema=tmp_path / "schema.pbtxt")
    assert manifest.written == 110


def test_a_file_that_changes_while_a_range_is_read_fails_the_build(tmp_path, monkeypatch) -> None:
    """The change keeps the size: only the version shows it."""
    path = tmp_path / "in.csv"
    table(0, 5_000).to_csv(path, index=False)
    read_range = source.read_range

    def read_and_change(*args):
        for cells in read_range(*args):
            with path.open("r+b") as target:
                target.seek(-1, os.SEEK_END)
                target.write(b"\n")
            os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
            yield cells

    monkeypatch.setattr(source, "read_range", read_and_change)
    message = failed(
        input=tmp_path / "*.csv", output=tmp_path / "ds", splits=TRAIN, max_reject_fraction=1
    )
    assert "No input can be used" in message or "1 of 1 inputs were rejected (changed 1)" in message
    table(0, 5_000).to_csv(tmp_path / "a.csv", index=False)
    message = failed(
        input=tmp_path / "*.csv", output=tmp_path / "ds", splits=TRAIN, max_reject_fraction=1
    )
    assert "1 file is not used completely" in message
    assert "in.csv, the file changed between listing and reading" in message


# Delimiters and headers.


def test_one_column_of_sentences_is_read(tmp_path) -> None:
    lines = [f"words; {', '.join('abcdef'[: n % 5])} | and more {n}" for n in range(60)]
    pd.DataFrame({"text": lines}).to_csv(tmp_path / "in.tsv", index=False, sep="\t")
    examples, _ = published(input=tmp_path / "in.tsv", output=tmp_path / "ds", splits=TRAIN)
    assert sorted(example["text"][0].decode() for example in examples) == sorted(lines)
    table(0, 50).to_csv(tmp_path / "in.csv", index=False, sep=";")
    options = {"input": tmp_path / "in.csv", "splits": TRAIN, "columns": "line", "header": "first"}
    examples, _ = published(**options, output=tmp_path / "one")
    assert len(examples) == 50


# Rows after the sample.


@pytest.mark.heavy
def test_gaps_after_the_sample_are_missing_values(tmp_path) -> None:
    data = table(0, 20_000, late=np.arange(20_000.0), note="a note")
    data.loc[12_000:, "late"] = np.nan
    data.loc[15_000:, "note"] = None
    data.to_csv(tmp_path / "in.csv", index=False)
    examples, manifest = published(input=tmp_path / "in.csv", output=tmp_path / "ds", **SMALL)
    assert manifest.inputs.rejected == 0
    judge = pd.read_csv(io.StringIO(data.to_csv(index=False)))
    wanted = judge.astype(object).where(judge.notna(), None)
    pd.testing.assert_frame_equal(frame_of(examples, list(wanted)), wanted, check_dtype=False)
    required = {name: column.required for name, column in schema_of(tmp_path / "ds").items()}
    assert required == judge.notna().all().to_dict()


@pytest.mark.heavy
def test_values_after_the_sample_stop_the_build_after_a_handful(tmp_path) -> None:
    data = table(0, 12_000, code="7")
    data.loc[11_000:11_011, "code"] = "7b"  # 12 rows: one of a thousand
    data.to_csv(tmp_path / "in.csv", index=False)
    options = {"input": tmp_path / "in.csv", "output": tmp_path / "ds", **SMALL}
    _, manifest = published(**options)
    assert manifest.inputs.rejected_by_reason == {"cast": 12}
    assert {reject["column"] for reject in rejects_of(tmp_path / "ds")} == {"code"}
    data.loc[11_012, "code"] = "7b"
    data.to_csv(tmp_path / "in.csv", index=False)
    message = failed(**options, overwrite=True)
    assert "13 rows do not fit the type of column 'code', which was inferred" in message
    assert (
        "in.csv:11002, '7b' is not an int64: make it FLOAT or BYTES with --types or in the schema"
        in message
    )
    options |= {"sample_bytes": "16MiB", "output": tmp_path / "all"}
    _, manifest = published(**options)
    assert (manifest.written, manifest.inputs.rejected) == (12_000, 0)


# Digits.


def test_integers_that_pandas_writes_as_floats_stay_exact(tmp_path) -> None:
    ids = pd.Series(np.arange(180) * 7.0 + 123_456_001)
    data = table(0, 180, stamp=ids.where(ids.index % 50 != 0))
    data.to_csv(tmp_path / "in.csv", index=False)
    assert "123456008.0" in (tmp_path / "in.csv").read_text()
    examples, manifest = published(input=tmp_path / "in.csv", output=tmp_path / "ds", splits=TRAIN)
    stamps = frame_of(examples, ["id", "stamp"])["stamp"]
    assert stamps.nunique() == data["stamp"].nunique() == 176
    assert stamps.dropna().tolist() == data["stamp"].dropna().astype(int).tolist()
    assert not manifest.warnings


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_typed_numbers_that_become_equal_are_a_warning(form, tmp_path) -> None:
    """A few of many doubles always do, which is not worth a warning."""
    rng = np.random.default_rng(5)
    data = pd.DataFrame({"time": 1.7e9 + rng.random(2_000) * 600, "x": rng.normal(size=2_000)})
    path = tmp_path / f"in.{form}"
    if form == "parquet":
        data.to_parquet(path)
    else:
        data.to_json(path, orient="records", lines=True, double_precision=15)
    _, manifest = published(input=path, output=tmp_path / "ds", splits=TRAIN)
    (warning,) = [text for text in manifest.warnings if "float32 rounds" in text]
    assert "float32 rounds values of 'time': 1700000000." in warning
    assert "become equal; " in warning
    assert "'x'" not in warning


@pytest.mark.heavy
def test_integers_after_the_sample_are_not_rounded(tmp_path) -> None:
    data = table(0, 6_000, x=0.5)
    data.loc[5_000:, "x"] = np.arange(1_000) + 123_456_001.0
    data.to_csv(tmp_path / "in.csv", index=False)
    options = {"input": tmp_path / "in.csv", "output": tmp_path / "ds", **SMALL}
    message = failed(**options)
    rounded = sum(float(np.float32(x)) != x for x in data["x"])
    assert f"{rounded:,} rows do not fit the type of column 'x'" in message
    assert "in.csv:5002, '123456001.0' is rounded by float32: make it BYTES in the" in message
    (schema,) = (tmp_path / "ds").glob(".build-*/schema.pbtxt")
    (tmp_path / "given.pbtxt").write_text(schema.read_text())
    options |= {"schema": tmp_path / "given.pbtxt", "output": tmp_path / "given"}
    _, manifest = published(**options)
    assert manifest.written == 6_000
