"""Inputs of builds on gs://, and the comparison with builds on a local disk."""

from __future__ import annotations

import time
import types
from pathlib import Path

import numpy as np
import pytest
from google.api_core.retry import retry_unary

from shardmill.schemas.storage.gcs import GcsStorage
from shardmill.transforms.build.outcome import Outcome
from tests.conftest import make_photos
from tests.pipelines.test_images_gcs import download, run, upload
from tests.support.array_tools import job_of, run_job
from tests.support.readers import dataset_files
from tests.support.rows_tools import build_rows

PIPELINES = ("images", "rows", "arrays")
# Transient faults: a retry succeeds.
TRANSIENT = ("503", "429", "500", "408", "drop", "reset", "lose", "truncate")
KINDS = ("upload", "download", "get", "list", "compose", "rewrite", "delete")


def make_inputs(folder: Path) -> Path:
    """Write the inputs of all three pipelines; all of them are accepted."""
    make_photos(folder / "images", {"cat": 14, "dog": 10}, size=(40, 30))
    (folder / "rows").mkdir(parents=True)
    for number in range(3):
        rows = "".join(f"{number}{row},{row / 8},word {row % 3}\n" for row in range(120))
        (folder / "rows" / f"{number}.csv").write_text(f"id,value,word\n{rows}")
    (folder / "arrays").mkdir()
    rng = np.random.default_rng(0)
    np.save(folder / "arrays" / "x.npy", rng.integers(0, 9, (60, 7)))
    np.save(folder / "arrays" / "y.npy", np.array([["cat", "dog"][n % 2] for n in range(60)]))
    return folder


def build(pipeline: str, source: Path | str, output: Path | str, **options) -> Outcome:
    """Build in this process and return the outcome."""
    if pipeline == "images":
        return run(source, output, **{"image_size": "16", "num_shards": 2, **options})
    if pipeline == "rows":
        return build_rows(
            input=source, output=output, label="word", **{"num_shards": 2, **options}
        )[0]
    return run_job(job_of(input=source, output=output, **{"num_shards": 2, **options}))


class Album:
    """Inputs on disk and in a bucket, and the datasets that local builds make of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = make_inputs(folder / "in")
        self._wanted: dict[tuple, dict[str, bytes]] = {}

    def upload(self, bucket: str) -> str:
        """Copy the inputs to a bucket."""
        return upload(self.inputs, f"{bucket}/in")

    def wanted(self, pipeline: str, **options) -> dict[str, bytes]:
        """Return the files of a dataset that was built without a bucket."""
        key = pipeline, tuple(sorted(options.items()))
        if key not in self._wanted:
            output = self.folder / f"wanted{len(self._wanted)}"
            assert build(pipeline, self.inputs / pipeline, output, **options).status == "published"
            self._wanted[key] = dataset_files(output)
            assert sum("tfrecord" in name for name in self._wanted[key]) >= 2
        return self._wanted[key]

    def check(self, pipeline: str, output: str, folder: Path, **options) -> None:
        """Assert that a folder has exactly the files of the local dataset."""
        wanted = self.wanted(pipeline, **options)
        found = dataset_files(download(output, folder))
        assert found == wanted
        names = [entry.path[len(output) + 1 :] for entry in GcsStorage().walk(output)]
        assert sorted(names) == sorted([*wanted, "manifest.json"])


@pytest.fixture(scope="session")
def album(tmp_path_factory) -> Album:
    return Album(tmp_path_factory.mktemp("album"))


@pytest.fixture
def quick(monkeypatch) -> None:
    """Shorten the pauses before retries; the library still decides about retries."""
    clock = types.SimpleNamespace(
        monotonic=time.monotonic, sleep=lambda seconds: time.sleep(min(seconds, 0.01))
    )
    monkeypatch.setattr(retry_unary, "time", clock)
