"""Builds of rows from and to buckets of an emulator."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from shardmill.schemas.storage import open_storage
from shardmill.schemas.storage.gcs import GcsStorage
from tests.support.fault_tools import SOAK
from tests.support.readers import dataset_files
from tests.support.rows_tools import build_rows

pytest_plugins = ["tests.support.gcs_server"]
pytestmark = pytest.mark.heavy

ROWS, FILES = 400, 5
OPTIONS = {"label": "word", "num_shards": 2}


def upload(folder: Path, uri: str) -> str:
    storage = open_storage(uri)
    for path in sorted(folder.iterdir()):
        storage.replace(f"{uri}/{path.name}", path.read_bytes())
    return uri


def download(uri: str, folder: Path) -> Path:
    """Copy an object tree to disk, for independent readers."""
    for entry in GcsStorage().walk(uri):
        target = folder / entry.path[len(uri) + 1 :]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(open_storage(uri).read(entry.path))
    return folder


@pytest.fixture
def tables(tmp_path) -> Path:
    """Write five tables: one gzipped, one with two bad rows, one with a name that URLs escape."""
    folder = tmp_path / "tables"
    folder.mkdir()
    for number, name in enumerate(("a.csv", "b.csv.gz", "c.csv", "d #1 100% ü?.csv", "e.csv")):
        rows = "".join(f"{number * ROWS + row},{row / 8},word {row % 5}\n" for row in range(ROWS))
        data = f"id,value,word\n{rows}".encode() + (b"1,2\n1,2,3,4\n" if name == "c.csv" else b"")
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


@pytest.fixture
def local(tables, tmp_path) -> dict[str, bytes]:
    """Return the files of the dataset built from disk to disk."""
    outcome, manifest = build_rows(input=tables, output=tmp_path / "local", **OPTIONS)
    assert outcome.status == "published"
    assert (manifest.written, manifest.inputs.rejected) == (ROWS * FILES, 2)
    return comparable(tmp_path / "local")


def comparable(folder: Path) -> dict[str, bytes]:
    """Return the files of a dataset, without the URIs of rejects."""
    files = dict(dataset_files(folder))
    lines = [json.loads(line) for line in files.pop("rejects.jsonl").splitlines()]
    files["rejects"] = repr([{**line, "uri": ""} for line in lines]).encode()
    return files


def check_bucket(output: str, folder: Path, local: dict[str, bytes]) -> None:
    """Check that a bucket contains exactly the local dataset."""
    assert comparable(download(output, folder)) == local
    names = {entry.path.rsplit("/", 1)[1] for entry in GcsStorage().walk(output)}
    assert names == {*(set(local) - {"rejects"}), "rejects.jsonl", "manifest.json"}


def test_storages_do_not_change_bytes(tables, local, bucket, tmp_path):
    remote = upload(tables, f"{bucket}/in/tables #1")
    for name, source in (("from disk", str(tables)), ("from bucket", remote)):
        outcome, _ = build_rows(input=source, output=f"{bucket}/out/{name}", **OPTIONS)
        assert outcome.status == "published"
        check_bucket(f"{bucket}/out/{name}", tmp_path / name, local)
    build_rows(input=remote, output=tmp_path / "to disk", **OPTIONS)
    assert comparable(tmp_path / "to disk") == local
    again, _ = build_rows(input=remote, output=f"{bucket}/out/from bucket", **OPTIONS)
    assert again.status == "up_to_date"


def run_calls(front) -> list:
    return [call for call in front.calls if "/runs/" in call.name]


def test_number_of_calls_per_run_and_segment(tables, local, strict_bucket, front, tmp_path):
    remote, output = upload(tables, f"{strict_bucket}/in"), f"{strict_bucket}/out"
    front.calls.clear()
    outcome, _ = build_rows(input=remote, output=output, **OPTIONS)
    assert outcome.status == "published"
    calls = run_calls(front)
    counts = Counter((call.kind, call.name.rpartition(".")[2]) for call in calls)
    segments = outcome.parts_made * FILES
    assert counts["upload", "run"] == counts["upload", "json"] == FILES
    # The sidecar is looked up before a run is written, and before and after reading a range whose
    # number of runs is not known.
    assert counts["download", "json"] + counts["get", "json"] <= 3 * FILES + 2
    assert counts["download", "run"] <= segments
    assert counts["get", "run"] <= segments
    inputs = [call for call in front.calls if f"{call.name}".startswith("in/")]
    print("calls for runs:", dict(counts), "segments at most:", segments)
    print("calls for inputs:", dict(Counter(call.kind for call in inputs)), "files:", FILES)
    check_bucket(output, tmp_path / "out", local)


class Stop:
    """Blocks calls that change objects, from the n-th upload with an ending on."""

    def __init__(self, front, number: int, ending: str) -> None:
        self.reached, self.release = threading.Event(), threading.Event()
        self.left, self.ending = number, ending
        front.hook = self

    def __call__(self, call) -> None:
        if call.kind == "upload" and call.name.endswith(self.ending):
            self.left -= 1
            if self.left <= 0:
                self.reached.set()
        if self.reached.is_set() and call.kind not in ("get", "download", "list"):
            self.release.wait(60)


@pytest.mark.parametrize(
    ("number", "ending"), [(4, ".run"), (2, ".part")] if SOAK else [(4, ".run")]
)
def test_resumes_a_killed_build_from_its_runs(
    tables, local, strict_bucket, front, tmp_path, number, ending
):
    remote, output = upload(tables, f"{strict_bucket}/in"), f"{strict_bucket}/out"
    stop = Stop(front, number, ending)
    args = [f"--input={remote}", f"--output={output}", "--label=word", "--num_shards=2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "shardmill.pipelines.cli", "rows", *args, "--threads=1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ),
    )  # fmt: skip
    try:
        assert stop.reached.wait(60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        stop.release.set()
    time.sleep(0.2)  # blocked calls complete after the kill, as in a slow network
    made = [e for e in GcsStorage().walk(output) if "/runs/" in e.path and e.path.endswith(".json")]
    assert len(made) == (3 if ending == ".run" else FILES)
    front.reset()
    outcome, _ = build_rows(input=remote, output=output, **OPTIONS)
    assert outcome.status == "published"
    assert sum(
        c.kind == "upload" and c.name.endswith(".run") for c in run_calls(front)
    ) == FILES - len(made)
    check_bucket(output, tmp_path / "out", local)


def test_rejects_tables_replaced_or_deleted_after_the_match(tables, strict_bucket, front, tmp_path):
    remote = upload(tables, f"{strict_bucket}/in")
    lock, done = threading.Lock(), []

    def change_inputs(call) -> None:
        with lock:
            first = call.kind == "upload" and call.name.endswith(".run") and not done
            done.extend([1] if first else [])
        if first:
            storage = GcsStorage()
            storage.replace(f"{remote}/e.csv", b"id,value,word\n1,2,other\n")
            storage.delete(f"{remote}/d #1 100% ü?.csv")

    front.hook = change_inputs
    outcome, manifest = build_rows(
        input=remote, output=f"{strict_bucket}/out", max_reject_fraction=0.5, threads=1, **OPTIONS
    )
    assert outcome.status == "published", outcome.message
    found = dict(manifest.inputs.rejected_by_reason)
    assert found.pop("ragged", 0) == 2
    # The next file may have been read before.
    assert 1 <= sum(found.values()) <= 2
    assert set(found) <= {"changed", "not_found"}
    assert manifest.written == ROWS * (FILES - sum(found.values()))
