"""``shardmill diff``: what it counts is what pandas finds with an outer merge."""

import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.pipelines.report import compare
from shardmill.pipelines.report.compare import compare_datasets
from tests.conftest import build_dataset, make_image, make_photos
from tests.support.gcs_builds import upload
from tests.support.publications import numbered_body
from tests.support.rows_tools import run_here

pytest_plugins = ["tests.support.gcs_server"]
IMAGES = {
    "image_hash": "image",
    "content_hash": "input",
    "label": "label",
    "split": "split",
    "values_digest": "values",
}


def judge(before: pd.DataFrame, after: pd.DataFrame, columns: dict[str, str]) -> dict:
    """Return the numbers of a diff by pandas."""
    both = before.merge(after, "outer", "key", suffixes=("", "_after"), indicator="side")
    inner = both[both.side == "both"]
    differs = {}
    for column, name in columns.items():
        one, two = inner[column], inner[f"{column}_after"]
        differs[name] = (one != two) & ~(one.isna() & two.isna())
    anything = pd.DataFrame(differs).any(axis=1)
    return {
        "added": int((both.side == "right_only").sum()),
        "removed": int((both.side == "left_only").sum()),
        "changed": {"all": int(anything.sum()), **{k: int(v.sum()) for k, v in differs.items()}},
        "same": int((~anything).sum()),
    }


def numbers(found: dict) -> dict:
    return {name: found["records"][name] for name in ("added", "removed", "changed", "same")}


def write_version(folder: Path, rows: pd.DataFrame) -> Path:
    """Write a manifest and catalogs of at most 7 rows."""
    (folder / "catalog").mkdir(parents=True)
    shards = {"train": [], "validation": []}
    for split, found in rows.groupby("split", sort=False):
        for start in range(0, len(found), 7):
            table = pa.Table.from_pandas(found[start : start + 7], preserve_index=False)
            name = f"catalog/{split}-{start}.parquet"
            pq.write_table(table.drop(["split"]), folder / name)
            crc = f"{hash(str(table.to_pydict())) & 0xFFFFFFFF:08x}"
            catalog = {"file": name, "bytes": (folder / name).stat().st_size, "crc32c": crc}
            shards[split].append(
                {
                    "file": f"{split}-{start}",
                    "records": len(table),
                    "bytes": 9,
                    "crc32c": "00000000",
                    "catalog": catalog,
                }
            )
    manifest = numbered_body({name: [] for name in shards})
    for name, found in shards.items():
        size = sum(each["records"] for each in found)
        manifest["splits"][name] |= {"shards": found, "num_examples": size}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def edited(rows: pd.DataFrame, chance: random.Random) -> pd.DataFrame:
    """Return the rows with random edits, additions and removals, perhaps in another order."""
    rows = rows.copy()
    for column, values in (
        ("image_hash", "0123"),
        ("content_hash", "0123"),
        ("split", ["train", "validation"]),
        ("label", ["cat", "dog", None]),
        ("values_digest", ["0", "1", None]),
    ):
        chosen = np.array([chance.random() < 0.1 for _ in range(len(rows))], bool)
        rows.loc[chosen, column] = [chance.choice(values) for _ in range(chosen.sum())]
    rows = rows[np.array([chance.random() < 0.9 for _ in range(len(rows))], bool)].copy()
    renamed = np.array([chance.random() < 0.1 for _ in range(len(rows))], bool)
    rows.loc[renamed, "key"] += "é"
    if chance.random() < 0.5:
        rows = rows.sample(frac=1, random_state=chance.randrange(100))
    return rows


@pytest.mark.parametrize("seed", range(12))
def test_records_of_catalogs_are_compared_as_by_pandas(seed, tmp_path):
    chance = random.Random(seed)
    size = chance.choice([0, 1, 30, 60])
    names = {"image_hash": "i", "content_hash": "c", "key": "k/"}
    rows = pd.DataFrame({c: [f"{p}{n}" for n in range(size)] for c, p in names.items()}, dtype=str)
    rows["label"] = [chance.choice(["cat", "dog", None]) for _ in range(size)]
    rows["values_digest"] = [chance.choice(["0", "1", None]) for _ in range(size)]
    rows["split"] = [chance.choice(["train", "validation"]) for _ in range(size)]
    tables = [rows, edited(rows, chance)]
    if seed % 3 == 0:  # records without an image
        tables = [table.assign(image_hash=None) for table in tables]
    paths = [str(write_version(tmp_path / f"{n}", t)) for n, t in enumerate(tables)]
    found = compare_datasets(*paths, 1000)
    expected = judge(*tables, IMAGES)
    assert numbers(found) == expected
    differs = expected["added"] or expected["removed"] or expected["changed"]["all"]
    assert found["status"] == ("different" if differs else "same")
    listed, keys = found["records"]["examples"], [set(table.key) for table in tables]
    assert {each["key"] for each in listed["added"]} == keys[1] - keys[0]
    assert {each["key"] for each in listed["removed"]} == keys[0] - keys[1]
    for each in listed["changed"]:
        for side, table in zip(("before", "after"), tables, strict=True):
            place = each[side]
            row = table.set_index("key").loc[place["key"]]
            label = None if pd.isna(row.label) else row.label
            assert (place["split"], place["label"]) == (row.split, label)
            start = int(place["shard"].rpartition("-")[2]) + place["record"]
            assert table[table.split == row.split].key.iloc[start] == place["key"]
    gone, come = (t[~t.key.isin(other)] for t, other in zip(tables, keys[::-1], strict=True))
    assert found["records"]["renamed"] == len(set(gone.content_hash) & set(come.content_hash))
    again = compare_datasets(paths[1], paths[1], 5)
    assert again["status"] == "same"
    assert again["records"]["same"] == len(tables[1])


@pytest.mark.heavy
def test_an_update_and_diff_say_what_changed(tmp_path, capsys, monkeypatch):
    """Versions of one dataset, by their folders and by the summary of the build that made one."""
    photos = make_photos(tmp_path / "photos", {"cat": 12, "dog": 9})
    build = ("images", photos, tmp_path / "ds", "--image_size=16", "--update")
    assert run_here(capsys, *build)[0] == 0
    (photos / "cat/000.jpg").unlink()
    (photos / "cat/001.jpg").rename(photos / "dog/moved.jpg")
    make_image(99).save(photos / "dog/002.jpg")
    make_image(98).save(photos / "dog/new.jpg")
    _, out, _ = run_here(capsys, *build)
    assert "records: 2 added, 2 removed, 1 renamed, 18 same, 1 changed (1 image, 1 input)" in out
    new = (tmp_path / "ds/current").resolve()
    (old,) = (each for each in (tmp_path / "ds").glob("gen-*") if each != new)
    code, out, _ = run_here(capsys, "diff", old, tmp_path / "ds", "--json")
    found = json.loads(out)
    assert (code, found["status"], found["options"], found["codecs"]) == (0, "different", [], [])
    tables = []
    for folder in (old, new):
        parts = [
            (pd.read_parquet(path), path.name.partition("-")[0])
            for path in (folder / "catalog").iterdir()
        ]
        tables.append(pd.concat([part.assign(split=split) for part, split in parts]))
    assert numbers(found) == judge(*tables, IMAGES)
    renamed = found["records"]["examples"]["renamed"][0]
    assert (renamed["before"]["key"], renamed["after"]["key"]) == ("cat/001.jpg", "dog/moved.jpg")
    counts = [table.groupby(["split", "label"]).size() for table in tables]
    listed = {
        tuple(each["path"]): (each["before"] or 0, each["after"] or 0) for each in found["labels"]
    }
    both = pd.concat(counts, axis=1).fillna(0).astype(int)
    assert listed == {key: (one, two) for key, one, two in both.itertuples() if one != two}
    text = run_here(capsys, "diff", old, tmp_path / "ds", "--examples=1")[1]
    assert "renamed    cat/001.jpg -> dog/moved.jpg" in text
    assert "changed    dog/002.jpg  image, input" in text
    # The summary must not exhaust the memory of an update that is published.
    monkeypatch.setattr(compare, "_MAX_RECORDS", 20)
    make_image(97).save(photos / "dog/newer.jpg")
    code, out, _ = run_here(capsys, *build)
    assert (code, "records:" in out, "labels: " in out) == (0, False, True)
    assert "not compared: over" in out
    assert run_here(capsys, "diff", new, tmp_path / "ds")[1].count("1 added, 0 removed") == 1


@pytest.mark.nightly
def test_rows_with_a_key_are_read_and_others_are_counted(tmp_path, capsys):
    generator = np.random.default_rng(0)
    one = pd.DataFrame(
        {
            "key": [f"r{n}" for n in range(80)],
            "x": generator.normal(size=80).round(3),
            "y": generator.integers(0, 3, 80).astype(str),
            "z": generator.choice(["u", "v"], 80),
        }
    )
    two = one.drop(index=range(5)).reset_index(drop=True)
    two.loc[3:9, "x"] += 1
    two.loc[8:14, "y"] = "2"
    two.loc[20, "key"] = "renamed"
    for label in ("y", "x"):  # texts are numbers of classes; real numbers are not counted
        tables = []
        for name, table in (("a", one), ("b", two)):
            table.to_csv(tmp_path / f"{name}.csv", index=False)
            output = tmp_path / f"{name}{label}"
            build_dataset(
                "rows",
                input=tmp_path / f"{name}.csv",
                output=output,
                key="key",
                label=label,
                types="y:bytes",
                num_shards=60,
                splits="train:0.5,validation:0.5",
            )
            tables.append(
                table.assign(
                    content=table.drop(columns=["key", label]).astype(str).agg(" ".join, axis=1),
                    split=0,
                )
            )
        found = compare_datasets(str(tmp_path / f"a{label}"), str(tmp_path / f"b{label}"), 0)
        expected = judge(*tables, {"content": "content", label: "label", "split": "split"})
        assert numbers(found) == expected
        assert found["records"]["renamed"] == 1
    build_dataset("rows", input=tmp_path / "b.csv", output=tmp_path / "c")
    _, out, _ = run_here(capsys, "diff", tmp_path / "ax", tmp_path / "c")
    assert "not compared records of rows and arrays need a column of --key" in out
    assert "matched  80 -> 75" in out


@pytest.mark.heavy
def test_versions_on_an_object_store(dataset, strict_bucket, front, tmp_path):
    """Of equal versions, manifests are read alone; of others, each catalog that differs, once."""
    for name, path in (("a", dataset), ("b", tmp_path / "b")):
        if name == "b":
            photos = make_photos(tmp_path / "p", {"cat": 3})
            build_dataset(input=photos, output=path, image_size=32, splits="train:1")
        upload(path, f"{strict_bucket}/{name}")
    front.calls.clear()
    found = compare_datasets(str(dataset), f"{strict_bucket}/a", 5)
    assert (found["status"], found["records"]["same"]) == ("same", 21)
    assert not [call for call in front.calls if "/catalog/" in call.name]
    found = compare_datasets(str(dataset), f"{strict_bucket}/b", 5)
    assert found["records"]["removed"] == 18
    assert len([call for call in front.calls if "/catalog/" in call.name]) == 1
    assert not [call for call in front.calls if ".tfrecord" in call.name]
