"""Options of rows: schemas, files, splits, keys, shards and determinism."""

import bz2
import gzip
import hashlib
import lzma
import random
import re
from functools import partial
from pathlib import Path

import pytest
import zstandard

from shardmill.pipelines.rows_config import RowsConfig
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.refs import InputRef
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.transforms.sink.census import MAX_FILES, Census
from shardmill.transforms.sources.csv.source import CsvSource
from shardmill.transforms.tables.table import count_file
from shardmill.transforms.tables.table_source import TableInput
from tests.support.readers import dataset_files, dataset_splits, gzip_records, tf_example
from tests.support.rows_tools import (
    build_rows,
    by_split,
    check_dataset,
    counted,
    frozen,
    make_mixed_tables,
    make_table,
    published,
    rejects_of,
)

TRAIN = "train:1"


# Schemas.

PEOPLE = ["name", "age", "score", "tags", "member", "code", "grade"]
PEOPLE_ROWS = [
    ["Ann", "31", "1.5", "a|b", "yes", "007", "A"],
    ["Bob", "", "2.5", "", "no", "010", "B"],
    ["Cem", "44", "", "c", "yes", "100", "A"],
    ["", "17", "-3", "a|b|c", "no", "001", "B"],
]


EDITED = format_schema(
    [
        Column("name", "bytes", required=False),
        Column("age", "float32", default="-1"),
        Column("tags", "bytes", separator="|", required=False),
        Column("member", "int64", booleans=("yes", "no")),
        Column("code", "int64", zero_padded=True),
        Column("grade", "bytes", values=("A", "B")),
    ]
)


def people(folder: Path, rows: list[list[str]] = PEOPLE_ROWS) -> Path:
    return make_table(folder / "people.csv", PEOPLE, rows)


def test_passing_the_inferred_schema_is_up_to_date(tmp_path) -> None:
    options = {"input": people(tmp_path), "output": tmp_path / "ds", "splits": TRAIN}
    published(**options)
    before = dataset_files(tmp_path / "ds")
    schema = tmp_path / "ds/current/schema.pbtxt"
    assert build_rows(**options, schema=schema)[0].status == "up_to_date"
    assert dataset_files(tmp_path / "ds") == before
    text = schema.read_text().replace("\n", " \n# a comment\n")
    (tmp_path / "same.pbtxt").write_text(text)
    assert build_rows(**options, schema=tmp_path / "same.pbtxt")[0].status == "up_to_date"
    (tmp_path / "other.pbtxt").write_text(EDITED)
    outcome, _ = build_rows(**options, schema=tmp_path / "other.pbtxt")
    assert outcome.status == "failed"
    assert "add --update" in outcome.message
    assert dataset_files(tmp_path / "ds") == before


def test_applies_an_edited_schema(tmp_path) -> None:
    """It leaves out a column and sets a type, a default, presence, a separator and domains."""
    (tmp_path / "schema.pbtxt").write_text(EDITED)
    examples, manifest = published(
        input=people(tmp_path),
        output=tmp_path / "ds",
        schema=tmp_path / "schema.pbtxt",
        label="grade",
        splits=TRAIN,
    )
    wanted = []
    for name, age, _, tags, member, code, grade in PEOPLE_ROWS:
        example = {
            "name": [name.encode()],
            "age": [float(age or -1)],
            "tags": [piece.encode() for piece in tags.split("|")] if tags else [],
            "member": [int(member == "yes")],
            "code": [int(code)],
            "grade": [grade.encode()],
        }
        if not name:
            del example["name"]
        wanted.append(example)
    # Readers do not distinguish an absent list from an empty one.
    assert counted([{"tags": [], **example} for example in examples]) == counted(wanted)
    assert any("'score'" in w or " score" in w for w in manifest.warnings)
    assert manifest.labels == ("A", "B")


# Files.

TABLE = 'id,città,x\n1,Zürich,0.5\n2,"a,\nb",1.5\n3,,2.5\n'
PACKERS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


def test_reads_a_folder_of_mixed_line_breaks_and_compressions(tmp_path) -> None:
    """Hidden files and files with other suffixes are skipped."""
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    plain = TABLE.replace("a,\nb", "a,b").encode()
    files = {
        "lf.csv": plain,
        "crlf.csv": plain.replace(b"\n", b"\r\n"),
        "deep/cr.CSV": plain.replace(b"\n", b"\r"),
    }
    files |= {f"packed.csv.{suffix}": pack(plain) for suffix, pack in PACKERS.items()}
    files |= {
        "no end.csv": plain.rstrip(b"\n"),
        "bom.csv": b"\xef\xbb\xbf" + plain,
        "a b+c#d%20 [1]*? é.csv": plain,
        "tabs.tsv": plain.replace(b'"a,b"', b"a;b").replace(b",", b"\t").replace(b";", b","),
        "order.csv": "x,id,città\n9.5,9,z\n".encode(),
    }
    junk = {"notes.md": b"a,b\n", ".hidden.csv": b"a\n1\n", "deep/Thumbs.db": b"x"}
    for name, data in (files | junk).items():
        (folder / name).write_bytes(data)
    examples, manifest = published(input=folder, output=tmp_path / "ds", splits=TRAIN)
    one = [
        {"id": [1], "città": ["Zürich".encode()], "x": [0.5]},
        {"id": [2], "città": [b"a,b"], "x": [1.5]},
        {"id": [3], "x": [2.5]},
    ]
    other = {"id": [9], "città": [b"z"], "x": [9.5]}
    assert counted(examples) == counted(one * (len(files) - 1) + [other])
    assert manifest.inputs.skipped == len(junk)
    assert manifest.inputs.rejected == 0


def test_rejects_whole_files_that_do_not_fit(tmp_path) -> None:
    folder = tmp_path / "in"
    for number_ in range(30):
        make_table(folder / f"{number_:02d}.csv", ["a", "b"], [[number_, "x"], [number_, "y"]])
    make_table(folder / "00.csv", ["other", "names"], [[1, 2]])
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("b,a\n")
    (folder / "picture.csv").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99))
    examples, manifest = published(
        input=folder,
        output=tmp_path / "ds",
        splits=TRAIN,
        max_reject_fraction=0.1,
        max_rejected_files=2,
    )
    assert len(examples) == 58
    assert manifest.inputs.matched == 61
    found = {
        reject["key"]: (reject["error"], reject["message"])
        for reject in rejects_of(tmp_path / "ds")
    }
    assert {key: error for key, (error, _) in found.items()} == {
        "00.csv": "columns",
        "empty.csv": "empty",
        "picture.csv": "not_csv",
    }
    assert "it has no column 'a', 'b', but 'other', 'names'" in found["00.csv"][1]
    # Schema and key fit the other files, though not the first one.
    outcome, _ = build_rows(
        input=folder,
        output=tmp_path / "ds2",
        schema=tmp_path / "ds/current/schema.pbtxt",
        key="b",
        splits=TRAIN,
        max_reject_fraction=1.0,
        max_rejected_files=2,
    )
    assert outcome.status == "published"


def test_reads_a_listing(tmp_path) -> None:
    for name in ("a", "b"):
        make_table(tmp_path / f"{name}.csv", ["n"], [[name], [name * 2]])
    (tmp_path / "list.txt").write_text("b.csv\na.csv\nmissing.csv\n\nb.csv\n")
    examples, manifest = published(
        input=tmp_path / "list.txt", output=tmp_path / "ds", splits=TRAIN, max_rejected_files=1
    )
    assert counted(examples) == counted([{"n": [n]} for n in (b"a", b"aa", b"b", b"bb")])
    inputs = manifest.inputs
    assert (inputs.matched, inputs.duplicates, inputs.rejected_by_reason) == (
        6,
        1,
        {"not_found": 1},
    )
    (reject,) = rejects_of(tmp_path / "ds")
    assert reject["key"] == "missing.csv"


# Splits, groups and keys.


def records_of(folder: Path, manifest: Manifest) -> dict[str, set[tuple]]:
    """Return the records of each split."""
    return {
        name: {frozen(example) for example in examples}
        for name, examples in by_split(folder, manifest).items()
    }


def test_rows_keep_their_split_when_files_or_rows_are_added(tmp_path) -> None:
    folder = tmp_path / "in"
    make_table(folder / "m.csv", ["n", "t"], [[n, f"m{n}"] for n in range(300)])
    options = {"splits": "train:0.6,validation:0.25,test:0.15"}
    _, before = build_rows(input=folder, output=tmp_path / "one", **options)
    make_table(folder / "a.csv", ["t", "n"], [[f"a{n}", n] for n in range(200)])
    make_table(folder / "z.csv", ["n", "t"], [[n, f"z{n}"] for n in range(100)])
    _, after = build_rows(input=folder, output=tmp_path / "two", **options)
    old, new = records_of(tmp_path / "one", before), records_of(tmp_path / "two", after)
    assert {name: len(rows) > 30 for name, rows in old.items()} == dict.fromkeys(old, True)
    for name, rows in old.items():
        assert rows < new[name]
    assert sum(map(len, new.values())) == 600
    # Appended rows do not move other rows either.
    with (folder / "m.csv").open("a") as target:
        target.write("".join(f"{n},m{n}\n" for n in range(300, 350)))
    _, more = build_rows(input=folder, output=tmp_path / "three", **options)
    for name, rows in records_of(tmp_path / "three", more).items():
        assert new[name] < rows


def test_an_update_names_the_files_that_changed(tmp_path) -> None:
    """Rows have no catalog: the manifest lists their files, as long as these are few."""
    folder, ds = tmp_path / "in", tmp_path / "ds"
    for name in "abc":
        make_table(folder / f"{name}.csv", ["n"], [[1], [2]])
    assert build_rows(input=folder, output=ds)[0].changes == ()
    make_table(folder / "b.csv", ["n"], [[1], [2], [3]])
    make_table(folder / "sub" / "d.csv", ["n"], [[4]])
    (folder / "a.csv").unlink()
    message = build_rows(input=folder, output=ds)[0].message
    assert "(files: 1 new, 1 changed, 1 removed): add --update" in message
    changes = ("1 changed: b.csv", "1 new: sub/d.csv", "1 removed: a.csv")
    assert build_rows(input=folder, output=ds, update=True, dry_run=True)[0].changes == changes
    outcome, manifest = build_rows(input=folder, output=ds, update=True, seed=1)
    assert outcome.changes == ("seed was 0, now 1", *changes)
    assert [*manifest.build.files] == ["b.csv", "c.csv", "sub/d.csv"]
    census = Census()
    for number_ in range(MAX_FILES + 1):
        other = Census()
        count_file(other, TableInput(InputRef(f"{number_}", "")))
        census.merge(other)
        assert len(census.file_ids) == (0 if number_ == MAX_FILES else number_ + 1)


def test_groups_stay_in_one_split_across_files(tmp_path) -> None:
    rng = random.Random(2)
    rows = [[f"p{n % 40}", n] for n in range(400)]
    rows += [["", n] for n in range(400, 440)]  # a row without a group is placed alone
    rng.shuffle(rows)
    make_table(tmp_path / "in" / "a.csv", ["patient", "n"], rows[:200])
    make_table(tmp_path / "in" / "b.csv", ["patient", "n"], rows[200:])
    _, manifest = build_rows(
        input=tmp_path / "in",
        output=tmp_path / "ds",
        group_by="patient",
        splits="train:0.5,validation:0.5",
    )
    sides: dict[bytes, set[str]] = {}
    alone = set()
    for split, examples in by_split(tmp_path / "ds", manifest).items():
        for example in examples:
            if "patient" in example:
                sides.setdefault(example["patient"][0], set()).add(split)
            else:
                alone.add(split)
    assert len(sides) == 40
    assert all(len(side) == 1 for side in sides.values())
    assert {next(iter(side)) for side in sides.values()} == alone == {"train", "validation"}


def test_split_by_column(tmp_path) -> None:
    words = ["train", "TRAIN", " Training ", "val", "valid", "dev", "validation", "test", "holdout"]
    rows = [[n, word] for n, word in enumerate(words)] + [[90, ""], [91, "a/b"]]
    path = make_table(tmp_path / "in.csv", ["n", "part"], rows)
    _, manifest = build_rows(
        input=path, output=tmp_path / "ds", split_by="part", max_reject_fraction=0.5
    )
    examples = check_dataset(tmp_path / "ds", manifest)
    assert all(set(example) == {"n"} for example in examples)
    found = {
        name: sorted(example["n"][0] for example in examples)
        for name, examples in by_split(tmp_path / "ds", manifest).items()
    }
    assert found["validation"] == [3, 4, 5, 6]
    assert found["train"][:2] == [0, 1]
    assert found["test"] == [7]
    assert found["holdout"] == [8]
    assert {reject["key"]: reject["error"] for reject in rejects_of(tmp_path / "ds")} == {
        "in.csv:11": "no_split",
        "in.csv:12": "no_split",
    }


def test_key_finds_duplicates_and_conflicts(tmp_path) -> None:
    rows = [[f"k{n}" + "x" * (500 if n == 9 else 0), n] for n in range(60)]
    make_table(tmp_path / "in" / "a.csv", ["key", "n"], rows)
    others = [["k7", 7], ["k8", 8], [rows[9][0], 900], ["new", 1], ["", 2]]
    make_table(tmp_path / "in" / "b.csv", ["key", "n"], others)
    options = {"input": tmp_path / "in", "key": "key", "splits": TRAIN, "max_reject_fraction": 0.1}
    examples, manifest = published(output=tmp_path / "ds", **options)
    assert counted(examples) == counted(
        [{"key": [key.encode()], "n": [n]} for key, n in [*rows, others[3]]]
    )
    assert manifest.inputs.duplicates == 2
    assert manifest.inputs.rejected_by_reason == {"key_conflict": 1, "missing": 1}
    conflict = next(r for r in rejects_of(tmp_path / "ds") if r["error"] == "key_conflict")
    assert conflict["key"].startswith("b.csv")
    assert re.search("the --key key='k9x{80,} of another row in a.csv, but", conflict["message"])
    assert len(conflict["message"]) < 300
    # The position depends on the key only, not on file, line or column order.
    moved = make_table(tmp_path / "moved.csv", ["n", "key"], [[n, key] for key, n in rows[::-1]])
    build_rows(**{**options, "input": tmp_path / "in" / "a.csv"}, output=tmp_path / "one")
    build_rows(**{**options, "input": moved}, output=tmp_path / "two")
    name = "train-00000-of-00001.tfrecord.gz"
    one, two = (tmp_path / each / "current" / name for each in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("finished", ["runs", pytest.param("parts", marks=pytest.mark.heavy)])
def test_a_resumed_build_of_moved_files_names_their_new_paths(tmp_path, finished) -> None:
    """Finished runs and parts hold rejects; none of them stores the path of the input."""
    rows = [[f"k{n}", n] for n in range(60)]
    make_table(tmp_path / "in" / "a.csv", ["key", "n"], [*rows, ["k61", ""]])
    make_table(tmp_path / "in" / "b.csv", ["key", "n"], [["k1", 7], ["", 2]])
    options = {"key": "key", "label": "n", "splits": TRAIN}
    failed, _ = build_rows(
        input=tmp_path / "in", output=tmp_path / "ds", max_reject_fraction=0, **options
    )
    assert failed.status == "failed"
    if finished == "runs":
        for path in (tmp_path / "ds").glob(".build-*/parts/*"):
            path.unlink()
    moved = (tmp_path / "in").rename(tmp_path / "moved")
    options |= {"input": moved, "max_reject_fraction": 0.1}
    resumed, _ = build_rows(output=tmp_path / "ds", **options)
    assert (resumed.status, resumed.parts_reused > 0) == ("published", finished == "parts")
    build_rows(output=tmp_path / "scratch", **options)
    assert dataset_files(tmp_path / "ds") == dataset_files(tmp_path / "scratch")
    paths = {reject["error"]: reject["uri"] for reject in rejects_of(tmp_path / "ds")}
    assert set(paths) == {"missing", "key_conflict"}
    assert set(paths.values()) <= {str(moved / "a.csv"), str(moved / "b.csv")}


# Shards.


def test_number_size_and_names_of_shards(tmp_path) -> None:
    rng = random.Random(1)
    rows = [[n, rng.randbytes(40).hex()] for n in range(3_000)]
    path = make_table(tmp_path / "in.csv", ["n", "t"], rows)

    def shards(name: str, **options) -> list[tuple[str, int]]:
        _, manifest = build_rows(input=path, output=tmp_path / name, **options)
        assert len(check_dataset(tmp_path / name, manifest)) == 3_000
        return [(s.file, s.records) for split in manifest.splits.values() for s in split.shards]

    exact = shards("exact", num_shards=3, shard_name="{split}-{index}-of-{total}-{records}.gz")
    assert [name.split("-")[:-1] for name, _ in exact] == [
        [split, str(n), "of", "3"] for split in ("train", "validation") for n in range(3)
    ]
    assert all(name.endswith(f"-{records}.gz") for name, records in exact)
    for split in ("train", "validation"):
        counts = [records for name, records in exact if name.startswith(split)]
        assert min(counts) > 50
        assert max(counts) - min(counts) <= 1
    about = shards("about", shard_examples=250, splits=TRAIN)
    assert 8 <= len(about) <= 18
    assert all(120 < records < 400 for _, records in about)
    small = shards("small", shard_bytes="40KiB", splits=TRAIN, compression="none")
    assert len(small) > 4
    assert all(name.endswith(".tfrecord") for name, _ in small)
    sizes = [(tmp_path / "small/current" / name).stat().st_size for name, _ in small]
    assert max(sizes) < 120_000


# Determinism.

GOLDEN = "a,b,c,d\n" + "".join(
    f"{n},{n / 8},t{n % 3},{'yes' if n % 2 else 'no'}\n" for n in range(40)
)


def test_golden_shard_bytes(tmp_path) -> None:
    """Pins records, order, framing, gzip members and member index."""
    (tmp_path / "golden.csv").write_text(GOLDEN)
    found = {}
    for compression in ("gzip", "none"):
        _, manifest = build_rows(
            input=tmp_path / "golden.csv",
            output=tmp_path / compression,
            splits=TRAIN,
            compression=compression,
        )
        (name,) = manifest.files
        found[compression] = tmp_path / compression / "current" / name
    records = [{"a": n, "b": n / 8, "c": b"t%d" % (n % 3), "d": n % 2} for n in range(40)]
    wanted = [tf_example(record).SerializeToString(deterministic=True) for record in records]
    payloads = gzip_records(found["gzip"])
    assert sorted(payloads) == sorted(wanted)
    # Written once with the deflate version of constraints.txt; must never change.
    assert {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()
    } == {
        "gzip": "97cd97cac3afcb73c1e9e509a769c3226f42d90a2f60ba24973867de58067c7f",
        "none": "1c3cbd56df12bb1f7d60dac68f6aa4c7f067a23b5243631a26b4fe9cc35bd74c",
    }


@pytest.mark.heavy
@pytest.mark.parametrize("key", ["n", ""])
def test_limit_takes_a_random_sample_of_rows(key, tmp_path, monkeypatch) -> None:
    """Exactly N rows, rejects included, in the splits that they have in the whole table; a larger
    sample contains a smaller one; neither threads nor ranges decide."""
    folder = tmp_path / "in"
    make_table(folder / "a.csv", ["n", "t"], [[n, f"m{n}"] for n in range(3_000)])
    rows = [[n, "x", "ragged"] if n % 4 == 0 else [n, "x"] for n in range(3_000, 4_000)]
    make_table(folder / "b.csv", ["n", "t"], rows)
    options = {"input": folder, "max_reject_fraction": 1, "num_shards": 2, "key": key}
    _, manifest = build_rows(output=tmp_path / "all", **options)
    samples = [records_of(tmp_path / "all", manifest)]
    small = partial(CsvSource, range_bytes=500)
    for limit, made in ((400, CsvSource), (400, small), (40, small), (9_999, CsvSource)):
        monkeypatch.setattr("shardmill.pipelines.rows.CsvSource", made)
        output = tmp_path / f"{len(samples)}"
        _, manifest = build_rows(output=output, limit=limit, **options)
        check_dataset(output, manifest)
        assert manifest.inputs.matched == min(limit, 4_000)
        assert manifest.build.config["limit"] == limit
        samples.append(records_of(output, manifest))
    whole, first, again, tiny, every = samples
    assert dataset_files(tmp_path / "1") == dataset_files(tmp_path / "2")
    assert whole == every
    assert 5 < len(rejects_of(tmp_path / "1")) < 60  # 250 of 4,000 rows are bad: 25 of 400
    for name in ("train", "validation"):
        assert tiny[name] < again[name] == first[name] < whole[name]
    assert build_rows(output=tmp_path / "1", limit=400, **options)[0].status == "up_to_date"


@pytest.mark.heavy
def test_bytes_do_not_depend_on_threads_or_ranges(tmp_path, monkeypatch) -> None:
    folder = make_mixed_tables(tmp_path / "in")
    options = {
        "input": folder,
        "schema": folder / "schema.pbtxt",
        "label": "class",
        "num_shards": 3,
    }
    _, manifest = build_rows(output=tmp_path / "0", **options)
    check_dataset(tmp_path / "0", manifest, "class")
    first = dataset_files(tmp_path / "0")
    assert len(first) == 9
    assert b"two.csv:" in first["rejects.jsonl"]
    splits = dataset_splits(tmp_path / "0")
    for number_, (threads, size) in enumerate(((1, 0), (2, 1_500), (2, 40)), 1):
        if size:
            small = partial(CsvSource, range_bytes=size)
            monkeypatch.setattr("shardmill.pipelines.rows.CsvSource", small)
        build_rows(output=tmp_path / f"{number_}", threads=threads, **options)
        assert dataset_files(tmp_path / f"{number_}") == first, (threads, size)
        assert dataset_splits(tmp_path / f"{number_}") == splits, (threads, size)


def test_config_id_depends_on_options_that_change_bytes(tmp_path) -> None:
    path = make_table(tmp_path / "in.csv", ["a", "b"], [[1, "x"], [2, "y"]])
    from shardmill.pipelines.rows import resolve

    def build_id(**options) -> str:
        config = RowsConfig(input=str(path), output=str(tmp_path / "ds"), **options)
        return resolve(config).spec.sink.config_id

    plain = build_id()
    same = [
        {"threads": 3},
        {"overwrite": True},
        {"max_reject_fraction": 0.5},
        {"sample_bytes": "1KiB"},
        {"max_rejected_files": 2},
    ]
    other = [
        {"seed": 1},
        {"splits": TRAIN},
        {"num_shards": 2},
        {"label": "b"},
        {"key": "a"},
        {"group_by": "b"},
        {"null_values": "x"},
        {"strip": True},
        {"compression": "none"},
        {"columns": "a,b", "header": "first"},
        {"quote": "'"},
        {"encoding": "latin-1"},
        {"split_by": "b"},
        {"skip_lines": 1},
        {"header": "none"},
        {"limit": 2},
    ]
    assert {build_id(**options) for options in same} == {plain}
    ids = {build_id(**options) for options in other}
    assert len(ids) == len(other)
    assert plain not in ids
