"""Builds of Parquet and JSON Lines: reads, resumption, counts, TensorFlow Transform, gs://."""

import json
import os

import pandas as pd
import pytest

from shardmill.schemas.errors import ShardmillError, StorageError
from shardmill.transforms.tables import transform
from tests.conftest import build_dataset
from tests.support.gcs_builds import upload
from tests.support.readers import dataset_files
from tests.support.rows_tools import build_rows, published, run_here

pytest_plugins = ["tests.support.gcs_server"]
KINDS = ("parquet", "jsonl")
PREPROCESSING = """
import tensorflow as tf
import tensorflow_transform as tft

def preprocessing_fn(inputs):
    return {
        "x": tft.scale_to_z_score(inputs["x"]),
        "word": tft.compute_and_apply_vocabulary(inputs["word"]),
        "n": inputs["n"],
    }
"""


def make_file(folder, kind: str, rows: int = 3_000):
    """Write a table as a file of several units; return its path."""
    folder.mkdir(exist_ok=True)
    frame = pd.DataFrame({"n": range(rows), "x": [n / 8 for n in range(rows)]})
    frame["word"] = [f"word {n % 7}" for n in range(rows)]
    path = folder / f"t.{kind}"
    if kind == "parquet":
        frame.to_parquet(path, row_group_size=1_000)
    elif kind == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
    return path


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_finished_runs_are_reused(tmp_path, monkeypatch, kind) -> None:
    paths = [make_file(tmp_path / str(number), kind, 500 + number) for number in range(4)]
    for number, path in enumerate(paths):
        path.rename(tmp_path / f"{number}.{kind}")
    options = {"input": tmp_path / f"*.{kind}", "output": tmp_path / "ds", "threads": 1}
    make_run, calls = transform.make_run, []

    def fail(*args):
        calls.append(args)
        if len(calls) > 2:
            raise StorageError("Cannot write x: y; z.")
        return make_run(*args)

    monkeypatch.setattr(transform, "make_run", fail)
    with pytest.raises(ShardmillError):
        build_rows(**options)
    calls.clear()
    monkeypatch.setattr(transform, "make_run", lambda *args: calls.append(args) or make_run(*args))
    examples, _ = published(**options)
    assert len(calls) == 2
    monkeypatch.setattr(transform, "make_run", make_run)
    assert examples == published(**{**options, "output": tmp_path / "other"})[0]


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["csv", *KINDS])
def test_counts_equal_the_manifest_and_updates_compare_content(tmp_path, capsys, kind) -> None:
    path, output = make_file(tmp_path, kind), tmp_path / "ds"
    _, manifest = published(input=path, output=output, label="word")
    assert (
        run_here(capsys, "count", f"--input={output / 'current'}", f"--manifest={tmp_path / 'm'}")[
            0
        ]
        == 0
    )
    found = json.loads((tmp_path / "m").read_text())["splits"]
    assert sum(each["num_examples"] for each in found.values()) == manifest.written == 3_000
    assert run_here(capsys, "verify", output)[0] == 0
    status = path.stat()
    path.write_bytes(path.read_bytes())  # the same content and times
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    outcome, _ = build_rows(input=path, output=output, label="word", update="content")
    assert outcome.status == "up_to_date", outcome
    make_file(tmp_path, kind, 3_001)
    outcome, again = build_rows(input=path, output=output, label="word", update="content")
    assert (outcome.status, again.written) == ("published", 3_001)


@pytest.mark.nightly
def test_preprocessing_gives_each_kind_the_same_records(tmp_path) -> None:
    code = tmp_path / "pre.py"
    code.write_text(PREPROCESSING)
    found = []
    for kind in ("csv", *KINDS):
        path, output = make_file(tmp_path, kind, 400), tmp_path / f"ds_{kind}"
        published_ = build_dataset("rows", input=path, output=output, key="n", preprocessing=code)
        assert published_[0].status == "published", published_
        files = dataset_files(output)
        found.append({name: data for name, data in files.items() if "tfrecord" in name})
    assert found[0] == found[1] == found[2]


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_objects_give_the_records_of_files(tmp_path, bucket, kind) -> None:
    make_file(tmp_path / "in", kind)
    _, local = build_rows(input=tmp_path / "in", output=tmp_path / "ds", label="word")
    uri = upload(tmp_path / "in", f"{bucket}/{kind}")
    _, remote = build_rows(input=uri, output=tmp_path / "remote", label="word")
    assert {name: split.shards for name, split in remote.splits.items()} == {
        name: split.shards for name, split in local.splits.items()
    }
