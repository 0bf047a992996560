"""What each source of tables promises: CSV, JSON Lines, Parquet, Python, elements and arrays.

``tests/support/table_sources.py`` writes one table in all forms, and lists what a source cannot say.
"""

import bz2
import gzip
import lzma
import math
import random
from collections import Counter
from collections.abc import Iterable
from itertools import chain

import numpy as np
import pytest
import zstandard
from _pytest.mark import ParameterSet

import shardmill
from shardmill.pipelines import python_source
from tests.conftest import build_dataset
from tests.support.readers import tf_records
from tests.support.rows_tools import counted, frozen, run_json_here
from tests.support.table_sources import (
    BUILDS,
    FILES,
    KINDS,
    UNSAID,
    WRITERS,
    Rows,
    build_files,
    column_names,
    expected_example,
    kind_of,
    read_dataset,
    schema_text,
    sources,
)

LARGEST = float(np.finfo(np.float32).max)


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """``shardmill.write`` builds in this process."""
    monkeypatch.setattr(python_source, "run", run_json_here)


def quickly(*names: str, promises: Iterable[str] = ()) -> list[ParameterSet]:
    """Return sources that can say something; all but the named ones are heavy."""
    heavy = {name: [pytest.mark.heavy] * (name not in names) for name in sources(*promises)}
    return [pytest.param(name, marks=marks) for name, marks in heavy.items()]


# Each row has every kind of value; the second has few, so that columns are optional.
VALUES: Rows = [
    {
        "id": "k1",
        "integer": 2**63 - 1,
        "whole": 7,
        "float": 0.1,
        "text": 'say "hi", you|',
        "bytes": b"\xff\0",
        "boolean": True,
        "integers": [1, -2, 3],
        "floats": [0.5, -2.25],
        "texts": ["a b", "Zürich"],
        "a b.c/é": "NULL",
        "struct": {"x": 1, "y": {"z": "a"}},
    },
    {"id": "k2", "whole": -1, "float": None, "integers": [], "texts": None},
    {
        "id": "k3",
        "integer": -(2**63),
        "whole": 0,
        "float": -math.inf,
        "text": "漢字 🙂\nline two\r\n\ttab",
        "bytes": b"plain",
        "boolean": False,
        "integers": [2**63 - 1],
        "floats": [1e-3],
        "texts": ["one"],
        "a b.c/é": " padded ",
    },
    {
        "id": "k4",
        "integer": 0,
        "whole": 10**15,
        "float": LARGEST,
        "text": "01234",
        "struct": {"x": 5},
    },
    {"id": "k5", "whole": 1, "float": -0.5, "text": "nan", "floats": [LARGEST, -1e-45]},
]


def table_of(source: str, rows: Rows = VALUES) -> Rows:
    """Return rows without the columns that a source cannot say."""
    names = [name for name in column_names(rows) if kind_of(rows, name) not in UNSAID[source]]
    return [{name: row.get(name) for name in names} for row in rows]


@pytest.mark.sweep
@pytest.mark.parametrize("source", BUILDS)
def test_records_types_and_presence_are_those_of_the_values(tmp_path, source) -> None:
    rows = table_of(source)
    dataset = BUILDS[source](tmp_path, {"t": rows}, splits="train:1", key="id")
    assert counted(dataset.examples) == counted(map(expected_example, rows))
    types = {feature["name"]: feature["type"] for feature in dataset.manifest["features"]}
    kinds = {name: kind_of(rows, name) for name in column_names(rows)}
    if kinds.pop("struct", ""):
        kinds |= {"struct.x": "integer", "struct.y.z": "text"}
    assert types == {name: KINDS[kind][1] for name, kind in kinds.items()}
    inputs = dataset.manifest["inputs"]
    assert (inputs["matched"], inputs["rejected"], inputs["duplicates"]) == (5, 0, 0)
    if source in sources("inference"):
        required = {n for n, feature in dataset.schema.items() if feature.presence.min_fraction}
        assert required == {"id", "whole"}


@pytest.mark.sweep
@pytest.mark.parametrize("source", sources("empty text"))
def test_an_empty_text_is_not_a_missing_one(tmp_path, source) -> None:
    rows = [{"t": "", "l": ["", "a"]}, {"t": None}, {"t": "x", "l": [""]}]
    dataset = BUILDS[source](tmp_path, {"t": rows}, splits="train:1")
    assert counted(dataset.examples) == counted(map(expected_example, rows))


@pytest.mark.parametrize("source", quickly("csv", "write", promises=["missing NaN"]))
def test_nan_is_missing(tmp_path, source) -> None:
    rows = [{"n": n, "x": math.nan if n % 2 else n + 0.5} for n in range(9)]
    dataset = BUILDS[source](tmp_path, {"t": rows}, splits="train:1")
    assert counted(dataset.examples) == counted(map(expected_example, rows))


def numbered(count: int, first: int = 0) -> list[dict]:
    """Return rows with a key, numbers, texts and lists."""
    return [
        {"id": f"k{n}", "n": n, "x": n / 4 + 0.1, "word": f"w{n % 3}", "l": [n, 1][: n % 3]}
        for n in range(first, first + count)
    ]


@pytest.mark.heavy
def test_a_key_gives_all_sources_the_same_bytes(tmp_path) -> None:
    """Neither the form nor the order of rows, or the division into files, matters."""
    rows = numbered(200)
    options = {"key": "id", "label": "word", "num_shards": 2, "seed": 5}
    datasets = []
    for source, build in BUILDS.items():
        random.Random(source).shuffle(rows)
        tables = {"a": rows[:120], "b": rows[120:]}
        datasets.append(build(tmp_path / source, tables, **options))
        assert list(datasets[-1].manifest["labels"]) == ["w0", "w1", "w2"]
        for name, examples in datasets[-1].splits.items():
            labels = Counter(example["word"][0].decode() for example in examples)
            assert datasets[-1].manifest["splits"][name]["label_counts"] == labels
    first, *others = (dataset.shards for dataset in datasets)
    assert len(first) == 4
    assert all(shards == first for shards in others)
    assert counted(datasets[0].examples) == counted(map(expected_example, rows))


@pytest.mark.heavy
def test_tensorflow_reads_the_same_records(tmp_path) -> None:
    """``tf.data`` and ``tf.io.parse_example`` with the feature spec of the dataset."""
    import tensorflow as tf

    rows = table_of("jsonl")
    dataset = build_files("jsonl", tmp_path, {"t": rows}, splits="train:1", key="id")
    spec = shardmill.feature_spec(dataset.folder)
    records = [
        tf.io.parse_single_example(payload, spec)
        for shard in dataset.folder.glob("current/*.gz")
        for payload in tf_records(shard)
    ]
    features = [
        {
            name: (tf.sparse.to_dense(v) if isinstance(v, tf.SparseTensor) else v).numpy()
            for name, v in record.items()
        }
        for record in records
    ]
    examples = [{name: np.ravel(v).tolist() for name, v in row.items()} for row in features]
    present = [{name: v for name, v in example.items() if v} for example in examples]
    assert counted(present) == counted(map(expected_example, rows))


@pytest.mark.sweep
@pytest.mark.parametrize("source", BUILDS)
def test_a_column_names_the_split(tmp_path, source) -> None:
    words = ["train", "TRAIN", " Training ", "val", "valid", "dev", "validation", "test", "holdout"]
    rows = [{"n": n, "part": word} for n, word in enumerate([*words, None, "a/b"])]
    dataset = BUILDS[source](tmp_path, {"t": rows}, split_by="part", max_reject_fraction=0.5)
    numbers = {name: {e["n"][0] for e in split} for name, split in dataset.splits.items()}
    assert numbers == {"train": {0, 1, 2}, "validation": {3, 4, 5, 6}, "test": {7}, "holdout": {8}}
    if source != "elements":
        assert not any("part" in example for example in dataset.examples)
    assert [reject["error"] for reject in dataset.rejects] == ["no_split", "no_split"]


@pytest.mark.sweep
@pytest.mark.parametrize("source", BUILDS)
def test_equal_keys_are_copies_or_conflicts(tmp_path, source) -> None:
    """Of copies one is kept; another row with the key is a reject, and so is a row without one."""
    rows = [*numbered(40), numbered(1, 5)[0], {**numbered(1, 9)[0], "n": -1, "word": "z" * 500}]
    rows.append({"id": None, "n": 1})
    options = {"key": "id", "splits": "train:1", "max_reject_fraction": 0.2}
    dataset = BUILDS[source](tmp_path, {"t": rows}, **options)
    inputs = dataset.manifest["inputs"]
    assert (inputs["matched"], inputs["accepted"], inputs["duplicates"]) == (43, 40, 1)
    assert inputs["rejected_by_reason"] == {"key_conflict": 1, "missing": 1}
    keys = [example["id"][0].decode() for example in dataset.examples]
    assert sorted(keys) == sorted(row["id"] for row in numbered(40))
    assert all(len(reject["message"]) < 400 for reject in dataset.rejects)


@pytest.mark.sweep
@pytest.mark.parametrize("source", BUILDS)
def test_rows_without_a_label_are_rejects_up_to_a_fraction(tmp_path, source) -> None:
    rows = [{"id": f"{n}", "y": n % 2 if n % 15 else None} for n in range(100)]
    options = {"key": "id", "label": "y", "splits": "train:1"}
    with pytest.raises(Exception, match=r"7 of 100 .*max_reject_fraction"):
        BUILDS[source](tmp_path, {"t": rows}, **options)
    assert not (tmp_path / "ds" / "manifest.json").exists()
    dataset = BUILDS[source](tmp_path, {"t": rows}, **options, max_reject_fraction=0.07)
    assert dataset.manifest["inputs"]["rejected_by_reason"] == {"missing": 7}
    assert {reject["error"] for reject in dataset.rejects} == {"missing"}
    assert len(dataset.examples) == 93


@pytest.mark.sweep
@pytest.mark.parametrize("source", sources("another type"))
def test_a_value_of_another_type_rejects_its_row(tmp_path, source) -> None:
    rows = [{"id": f"{n}", "n": n, "x": n / 4} for n in range(30)]
    schema = schema_text(rows, required=["id"])
    if source != "elements":
        (tmp_path / "s.pbtxt").write_text(schema)
        schema = str(tmp_path / "s.pbtxt")
    bad = [{"n": "text"}, {"n": 1.5}, {"n": 2**63}, {"x": "text"}, {"x": 1e300}]
    rows[20:25] = [row | change for row, change in zip(rows[20:25], bad, strict=True)]
    options = {"key": "id", "schema": schema, "splits": "train:1", "max_reject_fraction": 0.5}
    dataset = BUILDS[source](tmp_path, {"t": rows}, **options)
    assert {e["id"][0] for e in dataset.examples} == {
        f"{n}".encode() for n in range(30) if not 20 <= n < 25
    }
    columns = [reject.get("column") for reject in dataset.rejects]
    assert sorted(columns) == ["n", "n", "n", "x", "x"]
    assert {reject["error"] for reject in dataset.rejects} <= {"cast", "range"}


@pytest.mark.sweep
@pytest.mark.parametrize("source", BUILDS)
def test_a_schema_decides_presence_and_types(tmp_path, source) -> None:
    """It makes integers floats, leaves out a column, and requires another one."""
    rows = [{"id": f"{n}", "n": n, "extra": "x", "t": "a" if n % 4 else None} for n in range(20)]
    schema = schema_text([{"id": "", "n": 0.5, "t": ""}], required=["id", "t"])
    if source != "elements":
        (tmp_path / "s.pbtxt").write_text(schema)
        schema = str(tmp_path / "s.pbtxt")
    else:  # which must not have other fields
        rows = [{name: v for name, v in row.items() if name != "extra"} for row in rows]
    options = {"key": "id", "splits": "train:1", "max_reject_fraction": 0.3}
    dataset = BUILDS[source](tmp_path, {"t": rows}, schema=schema, **options)
    kept = [{**row, "n": float(row["n"])} for row in rows if row["t"]]
    assert counted(dataset.examples) == counted(expected_example(r, ["extra"]) for r in kept)
    assert dataset.manifest["inputs"]["rejected_by_reason"] == {"missing": 5}


@pytest.mark.sweep
@pytest.mark.parametrize("source", sources("select", "rename", "defaults"))
def test_options_choose_name_and_fill_columns(tmp_path, source) -> None:
    lists = ([1, 2], None, [])
    rows = [{"a": n, "b": None if n % 2 else "x", "c": 0.5, "l": lists[n % 3]} for n in range(20)]
    options = {"select": ["A", "b", "l"], "rename": ["a:A"], "defaults": ["b:none", "l:7"]}
    dataset = BUILDS[source](tmp_path, {"t": rows}, splits="train:1", **options)
    missing = (None,) if source in sources("empty list") else (None, [])
    filled = [
        {"A": r["a"], "b": r["b"] or "none", "l": [7] if r["l"] in missing else r["l"]}
        for r in rows
    ]
    assert counted(dataset.examples) == counted(map(expected_example, filled))
    dropped = BUILDS[source](tmp_path / "2", {"t": rows}, splits="train:1", drop=["b", "c", "l"])
    assert counted(dropped.examples) == counted({"a": [n]} for n in range(20))


@pytest.mark.sweep
@pytest.mark.parametrize("source", sources("null_values"))
def test_texts_may_mean_missing(tmp_path, source) -> None:
    rows = [{"t": text, "n": n} for n, text in ((1, "NA"), (-9, "x"), (3, "-"), (4, "y"))]
    options = {"splits": "train:1", "null_values": ["-", "NA", "-9"]}
    dataset = BUILDS[source](tmp_path, {"t": rows}, **options)
    missing = ["NA", "-"] if source in sources("number as text") else ["NA", "-", -9]
    values = [{name: v for name, v in row.items() if v not in missing} for row in rows]
    assert counted(dataset.examples) == counted(map(expected_example, values))


@pytest.mark.parametrize("source", quickly("jsonl", promises=["group_by"]))
def test_groups_stay_in_one_split(tmp_path, source) -> None:
    rows = [{"p": f"p{n % 40}" if n < 400 else None, "n": n} for n in range(440)]
    random.Random(2).shuffle(rows)
    tables = {"a": rows[:200], "b": rows[200:]}
    options = {"group_by": "p", "splits": "train:0.5,validation:0.5"}
    dataset = BUILDS[source](tmp_path, tables, **options)
    groups = {
        name: {example["p"][0] for example in split if "p" in example}
        for name, split in dataset.splits.items()
    }
    assert not groups["train"] & groups["validation"]
    assert len(groups["train"] | groups["validation"]) == 40
    # Rows without a group are placed alone.
    alone = [sum("p" not in example for example in split) for split in dataset.splits.values()]
    assert min(alone) > 5


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("source", quickly("parquet", promises=["limit"]))
def test_a_limit_takes_a_sample_with_the_splits_of_all_rows(tmp_path, source) -> None:
    rows = [{"n": n} for n in range(300)]
    samples = []
    for number, limit in enumerate((40, None)):
        options = {} if limit is None else {"limit": limit}
        dataset = BUILDS[source](tmp_path / f"{number}", {"t": rows}, **options)
        assert dataset.manifest["inputs"]["matched"] == (limit or 300)
        samples.append({name: {*map(frozen, split)} for name, split in dataset.splits.items()})
    sample, whole = samples
    assert all(examples < whole[name] for name, examples in sample.items())


@pytest.mark.sweep
@pytest.mark.parametrize("source", quickly("write", "elements"))
def test_only_an_update_replaces_a_dataset(tmp_path, source) -> None:
    rows, options = numbered(50), {"key": "id", "label": "word"}
    build = BUILDS[source]
    shards = build(tmp_path, {"t": rows}, **options).shards
    manifest = (tmp_path / "ds" / "manifest.json").read_bytes()
    build(tmp_path, {"t": rows}, **options)
    assert (tmp_path / "ds" / "manifest.json").read_bytes() == manifest
    rows[7] |= {"n": 70}
    rows.append(numbered(1, 900)[0])
    for tables, more in (({"t": rows}, {}), ({"t": numbered(50)}, {"seed": 1})):
        with pytest.raises(Exception, match="update"):
            build(tmp_path, tables, **options, **more)
        assert (tmp_path / "ds" / "manifest.json").read_bytes() == manifest
    updated = build(tmp_path, {"t": rows}, update=True, **options)
    assert updated.shards == build(tmp_path / "scratch", {"t": rows}, **options).shards
    assert updated.shards != shards
    assert counted(updated.examples) == counted(map(expected_example, rows))


@pytest.mark.parametrize("source", BUILDS)
def test_a_table_without_rows_is_one_sentence(tmp_path, source) -> None:
    options = {"schema": schema_text([{"id": ""}]), "key": "id"} if source == "elements" else {}
    with pytest.raises(Exception, match=r"no (rows|records|elements)|no bytes|cannot be used"):
        BUILDS[source](tmp_path, {"t": []}, **options)
    assert not (tmp_path / "ds" / "manifest.json").exists()


# Files.


@pytest.mark.sweep
@pytest.mark.parametrize("kind", FILES)
def test_files_may_lack_columns_but_not_have_others(tmp_path, kind) -> None:
    tables = {
        "a": [{"n": 1, "t": "x", "x": 0.5}],
        "b": [{"n": 3, "t": "c"}],
        "c": [{"x": 2.5, "n": 4}],
    }
    dataset = build_files(kind, tmp_path, tables)
    assert counted(dataset.examples) == counted(map(expected_example, chain(*tables.values())))
    warnings = "\n".join(dataset.manifest["warnings"])
    if kind != "jsonl":
        assert "some files lack the column 't', 'x'" in warnings
    tables["b"] = [{"N": 3, "t": "c", "x": 0.5}]
    with pytest.raises(Exception, match=r"'N' differs from 'n' only in|key 'N'"):
        build_files(kind, tmp_path / "2", tables)
    assert not (tmp_path / "2" / "ds" / "manifest.json").exists()


@pytest.mark.parametrize("kind", quickly("parquet", promises=["files"]))
def test_folders_may_be_columns(tmp_path, kind) -> None:
    rows = []
    for year, place in ((2020, "a b"), (2021, None)):
        folder = f"year={year}/place={place or '__HIVE_DEFAULT_PARTITION__'}".replace(" ", "%20")
        (tmp_path / "in" / folder).mkdir(parents=True)
        WRITERS[kind](tmp_path / "in" / folder / f"part.{kind}", [{"n": year}, {"n": year + 1}])
        rows += [{"n": n, "year": year, "place": place} for n in (year, year + 1)]
    build = {"input": tmp_path / "in", "splits": "train:1"}
    build_dataset("rows", output=tmp_path / "ds", partitions=True, label="year", **build)
    dataset = read_dataset(tmp_path / "ds")
    assert counted(dataset.examples) == counted(map(expected_example, rows))
    assert dataset.manifest["splits"]["train"]["label_counts"] == {"2020": 2, "2021": 2}
    build_dataset("rows", output=tmp_path / "plain", **build)
    plain = read_dataset(tmp_path / "plain").examples
    assert counted(plain) == counted({"n": [row["n"]]} for row in rows)


PACKERS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_texts_may_be_compressed_and_have_other_line_breaks(tmp_path, kind) -> None:
    """In folders, with other files, which are skipped; names may have any characters."""
    rows = [{"id": 1, "città": "Zürich", "x": 0.5}, {"id": 2, "x": 1.5}]
    WRITERS[kind](tmp_path / "plain", rows)
    plain = (tmp_path / "plain").read_bytes().replace(b"\r\n", b"\n")
    files = {f"packed.{kind}.{suffix}": pack(plain) for suffix, pack in PACKERS.items()}
    files |= {
        f"lf.{kind}": plain,
        f"deep/crlf.{kind.upper()}": plain.replace(b"\n", b"\r\n"),
        f"no end.{kind}": plain.rstrip(b"\n"),
        f"bom.{kind}": b"\xef\xbb\xbf" + plain,
        f"a b+c#d%20 [1]*? é.{kind}": plain,
    }
    if kind == "csv":
        files |= {"cr.csv": plain.replace(b"\n", b"\r"), "tabs.tsv": plain.replace(b",", b"\t")}
    skipped = {"notes.md": b"a,b\n", f".hidden.{kind}": plain, "deep/Thumbs.db": b"x"}
    for name, data in (files | skipped).items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    build_dataset("rows", input=tmp_path / "in", output=tmp_path / "ds", splits="train:1")
    dataset = read_dataset(tmp_path / "ds")
    assert counted(dataset.examples) == counted(map(expected_example, rows * len(files)))
    assert dataset.manifest["inputs"]["skipped"] == len(skipped)


# Arrays: a record has the bytes of a row, and a label its number.


def test_arrays_give_the_values_of_tables(tmp_path) -> None:
    """Readers decode the rows of arrays; labels are counted as those of tables."""
    rng = np.random.default_rng(3)
    columns = {"x": rng.normal(size=50).astype("f4"), "l": rng.integers(-9, 9, (50, 3))}
    labels = np.arange(50) % 3
    np.savez(tmp_path / "a.npz", y=labels, **columns)
    rows = [
        {"x": float(columns["x"][n]), "l": columns["l"][n].tolist(), "y": n % 3} for n in range(50)
    ]
    build_dataset("arrays", input=tmp_path / "a.npz", output=tmp_path / "ds", splits="train:1")
    shardmill.write(rows, tmp_path / "rows", label="y", splits="train:1")
    arrays, table = (shardmill.open_dataset(tmp_path / name) for name in ("ds", "rows"))
    values = [
        Counter((float(r["x"]), tuple(r["l"].tolist()), int(r["y"])) for r in records)
        for records in (arrays, table)
    ]
    assert values[0] == values[1]
    counts = [r.manifest.splits["train"].label_counts for r in (arrays, table)]
    assert counts[0] == counts[1] == {"0": 17, "1": 17, "2": 16}
