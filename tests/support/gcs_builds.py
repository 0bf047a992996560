"""Inputs of every kind for builds on gs://, and checks of the datasets built from them."""

import hashlib
import json
import time
import types
from pathlib import Path

import numpy as np
import pytest
from google.api_core.retry import retry_unary

from shardmill.schemas.storage import open_storage
from shardmill.schemas.storage.gcs import GcsStorage
from shardmill.transforms import Outcome
from tests.conftest import build_dataset, make_photos
from tests.support.readers import dataset_files, gzip_records
from tests.support.rows_tools import run_here

PIPELINES = ("images", "rows", "arrays")
# Transient faults: a retry succeeds.
TRANSIENT = ("503", "429", "500", "408", "drop", "reset", "lose", "truncate")
run_command = run_here
KINDS = ("upload", "download", "get", "list", "compose", "rewrite", "delete")


def make_inputs(folder: Path) -> Path:
    """Write inputs of each kind, all of them valid."""
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


# Options of a build of each kind of input that is small and has several shards.
OPTIONS: dict[str, dict] = {
    "images": {"image_size": "16", "num_shards": 2, "splits": "train:0.8,validation:0.2"},
    "rows": {"label": "word", "num_shards": 2},
    "arrays": {"num_shards": 2},
}


def build(pipeline: str, source: Path | str, output: Path | str, **options) -> Outcome:
    """Build in this process; return the outcome."""
    options = {"input": source, "output": output, **OPTIONS[pipeline], **options}
    return build_dataset(pipeline, **options)[0]


def flags_of(pipeline: str, source: Path | str, output: Path | str, **options) -> list[str]:
    """Return the command line of the same build."""
    options = {"input": source, "output": output, **OPTIONS[pipeline], **options}
    return [pipeline, *(f"--{name}={value}" for name, value in options.items())]


def upload(folder: Path, uri: str) -> str:
    """Copy a folder to a bucket; return its URI."""
    storage = open_storage(uri)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            storage.replace(f"{uri}/{path.relative_to(folder)}", path.read_bytes())
    return uri


def download(uri: str, folder: Path) -> Path:
    """Copy an object tree to disk, for independent readers."""
    for entry in GcsStorage().walk(uri):
        target = folder / entry.path[len(uri) + 1 :]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(open_storage(uri).read(entry.path))
    return folder


class Album:
    """Inputs on disk, and the datasets built from them from disk to disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = make_inputs(folder / "in")
        self._wanted: dict[tuple, dict[str, bytes]] = {}

    def upload(self, bucket: str) -> str:
        """Copy the inputs to a bucket; return their URI."""
        return upload(self.inputs, f"{bucket}/in")

    def wanted(self, pipeline: str, **options) -> dict[str, bytes]:
        """Return the files of a dataset that was built without any bucket."""
        key = pipeline, tuple(sorted(options.items()))
        if key not in self._wanted:
            output = self.folder / f"wanted{len(self._wanted)}"
            assert build(pipeline, self.inputs / pipeline, output, **options).status == "published"
            self._wanted[key] = dataset_files(output)
            assert sum("tfrecord" in name for name in self._wanted[key]) >= 2
        return self._wanted[key]

    def digests(self, folder: Path) -> list[str]:
        """Return the digests of all records of the images dataset, read by Python's gzip module."""
        found = []
        for name, data in self.wanted("images").items():
            if "tfrecord" in name:
                (folder / name).write_bytes(data)
                found += [hashlib.sha256(r).hexdigest() for r in gzip_records(folder / name)]
        assert len(found) == 24
        return sorted(found)

    def check(self, pipeline: str, output: str, folder: Path, **options) -> None:
        """Assert that a bucket has exactly the files of the local dataset, byte for byte.

        Earlier generations that the manifest names may be there too.
        """
        wanted = self.wanted(pipeline, **options)
        found = dataset_files(download(output, folder))
        assert found == wanted
        manifest = json.loads((folder / "manifest.json").read_text())
        generation, earlier = manifest["generation"], manifest.get("previous", [])
        names = [entry.path[len(output) + 1 :] for entry in GcsStorage().walk(output)]
        own = [
            name for name in names if name.split("/")[0] not in earlier and "/catalog/" not in name
        ]
        wanted_names = [f"{generation}/{name}" for name in (*wanted, "manifest.json")]
        assert sorted(own) == sorted([*wanted_names, "manifest.json"])


@pytest.fixture(scope="session")
def album(tmp_path_factory) -> Album:
    return Album(tmp_path_factory.mktemp("album"))


@pytest.fixture
def quick(monkeypatch) -> None:
    """Shorten the pauses before retries; the library still decides whether to retry."""
    clock = types.SimpleNamespace(
        monotonic=time.monotonic, sleep=lambda seconds: time.sleep(min(seconds, 0.01))
    )
    monkeypatch.setattr(retry_unary, "time", clock)
