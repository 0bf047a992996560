"""Options of rows: schemas, files, splits, keys, shards and determinism."""

from functools import partial
from pathlib import Path

import pytest

from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.refs import InputRef
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.transforms.sink.census import MAX_FILES, Census
from shardmill.transforms.sources.csv.source import CsvSource
from shardmill.transforms.tables.table import count_file
from shardmill.transforms.tables.table_source import TableInput
from tests.support.readers import dataset_files, dataset_splits
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


@pytest.mark.heavy
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


@pytest.mark.heavy
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


@pytest.mark.heavy
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


# Determinism.


@pytest.mark.sweep
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


@pytest.mark.nightly
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
