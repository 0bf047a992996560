"""Builds of arrays from, to and between buckets, on an emulator of gs://."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shardmill.schemas.storage import open_storage
from shardmill.schemas.storage.gcs import GcsStorage
from shardmill.transforms.arrays import row_reader
from tests.support.array_tools import job_of, run_job
from tests.support.readers import dataset_files

pytest_plugins = ["tests.support.gcs_server"]
pytestmark = pytest.mark.heavy

ROWS = 30


@pytest.fixture
def inputs(tmp_path) -> Path:
    """Arrays with small and with large rows, as a .npy, a folder and two kinds of .npz."""
    folder = tmp_path / "in"
    (folder / "many").mkdir(parents=True)
    rng = np.random.default_rng(0)
    small, large = rng.integers(0, 9, (ROWS, 7)), rng.integers(0, 9, (ROWS, 70_001), dtype=np.uint8)
    labels = np.array([["dog", "cat"][row % 2] for row in range(ROWS)])
    np.save(folder / "many/small.npy", np.asarray(small, order="F"))
    np.save(folder / "many/large.npy", large)
    np.save(folder / "many/y.npy", labels)
    np.savez(folder / "stored.npz", small=small, large=large, y=labels)
    np.savez_compressed(folder / "deflated.npz", small=small, large=large, y=labels)
    return folder


def upload(folder: Path, uri: str) -> None:
    for path in sorted(folder.rglob("*.np?")):
        open_storage(uri).replace(f"{uri}/{path.relative_to(folder)}", path.read_bytes())


def download(uri: str, folder: Path) -> Path:
    for entry in GcsStorage().walk(uri):
        target = folder / entry.path[len(uri) + 1 :]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(open_storage(uri).read(entry.path))
    return folder


def test_arrays_in_a_bucket_give_the_same_bytes(inputs, bucket, tmp_path) -> None:
    upload(inputs, f"{bucket}/in")
    for name in ("many", "deflated.npz"):
        local, remote = tmp_path / f"local {name}", f"{bucket}/out/{name}"
        assert (
            run_job(job_of(input=inputs / name, output=local, num_shards=2)).status == "published"
        )
        options = {"input": f"{bucket}/in/{name}", "output": remote, "num_shards": 2}
        assert run_job(job_of(**options)).status == "published"
        assert dataset_files(download(remote, tmp_path / f"remote {name}")) == dataset_files(local)
        assert run_job(job_of(**options)).status == "up_to_date"


def test_reads_large_rows_by_range_and_other_arrays_once(
    inputs, strict_bucket, front, tmp_path, monkeypatch
) -> None:
    upload(inputs, f"{strict_bucket}/in")

    def downloads(**options) -> Counter:
        job = job_of(input=f"{strict_bucket}/in/many", shard_examples=4, **options)
        front.calls.clear()
        outcome = run_job(job)
        assert (outcome.status, outcome.parts_made > 10) == ("published", True)
        calls = (call for call in front.calls if call.kind == "download")
        return Counter(call.name.rpartition("/")[2] for call in calls)

    whole = downloads(output=tmp_path / "whole")
    assert whole == {"large.npy": 1, "small.npy": 1, "y.npy": 1}
    monkeypatch.setattr(row_reader, "_LARGE_ARRAY", 0)
    by_row = downloads(output=tmp_path / "by row")
    assert by_row == {"large.npy": ROWS}  # the scratch files of the other arrays are reused
    assert dataset_files(tmp_path / "by row") == dataset_files(tmp_path / "whole")


def test_rejects_object_that_is_replaced_during_the_build(inputs, bucket, tmp_path) -> None:
    upload(inputs, f"{bucket}/in")
    job = job_of(input=f"{bucket}/in/stored.npz", output=tmp_path / "ds")
    path = f"{bucket}/in/stored.npz"
    open_storage(path).replace(path, open_storage(path).read(path))
    outcome = run_job(job)  # compares the checksums of members first
    assert outcome.status == "failed"
    assert "changed while it was read" in outcome.message
    assert not (tmp_path / "ds/manifest.json").exists()
