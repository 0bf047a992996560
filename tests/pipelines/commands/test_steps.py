"""Steps per epoch: the command and the function, their errors, and start-up time."""

import json
import shutil
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.loaders import steps_per_epoch
from shardmill.loaders.selection import select
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.read_manifest import load_manifest, open_manifest
from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage import open_storage
from tests.conftest import cpu_seconds, shardmill
from tests.support.fault_tools import sentence_here
from tests.support.publications import numbered_body
from tests.support.rows_tools import run_here

pytest_plugins = ["tests.support.gcs_server"]

SHARDS = {"train": [5, 0, 7, 4, 1], "validation": [3, 3], "test": []}


def make(splits: dict[str, list[int]]) -> Manifest:
    return Manifest.from_json(json.dumps(numbered_body(splits)))


@pytest.fixture
def ds(tmp_path) -> Path:
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "manifest.json").write_text(json.dumps(numbered_body(SHARDS)))
    return tmp_path / "ds"


def simulate(shards: list[int], hosts: int, batch: int, *, drop: bool) -> int:
    """Simulate all hosts: assign shards round-robin, form batches, and step together."""
    queues = [[] for _ in range(hosts)]
    for number, records in enumerate(shards):
        queues[number % hosts] += [(number, record) for record in range(records)]
    steps = 0
    while True:
        taken = []
        for queue in queues:
            taken.append(queue[: batch // hosts])
            del queue[: batch // hosts]
        sizes = [len(one) for one in taken]
        full = all(size == batch // hosts for size in sizes)
        if not full and (hosts > 1 or drop or not any(sizes)):
            return steps
        steps += 1


@given(
    st.lists(st.lists(st.integers(0, 12), max_size=6), min_size=1, max_size=3),
    st.integers(1, 5),
    st.integers(1, 8),
    st.booleans(),
)
def test_steps_match_a_simulation_of_hosts(splits, hosts, share, drop):
    manifest = make({f"s{i}": records for i, records in enumerate(splits)})
    joined = [count for records in splits for count in records]
    split, batch = "+".join(manifest.splits), hosts * share
    options = {"remainder": "drop" if drop else None, "hosts": hosts}
    if hosts > max(1, len(joined)):
        with pytest.raises(UsageError, match="use fewer hosts"):
            steps_per_epoch(manifest, split, batch, whole_shards=True, **options)
    else:
        got = steps_per_epoch(manifest, split, batch, whole_shards=True, **options)
        if hosts == 1 or joined:
            assert got == simulate(joined, hosts, batch, drop=drop)
            assert type(got) is int
    equal = [sum(joined) // hosts] * hosts if hosts > 1 else [sum(joined)]
    assert steps_per_epoch(manifest, split, batch, **options) == simulate(
        equal, hosts, batch, drop=drop
    )
    padded = steps_per_epoch(manifest, split, batch, remainder="pad", hosts=hosts)
    assert (padded - 1) * batch < sum(joined) <= padded * batch


def test_order_of_joined_splits_decides_assignment() -> None:
    manifest = make({"a": [9, 1, 9], "b": [9]})
    names = [part.shard.file for part in select(manifest, "b+a").parts]
    assert names == ["b-0", "a-0", "a-1", "a-2"]
    manifest = make({"a": [10], "b": [4, 1]})
    assert steps_per_epoch(manifest, "a+b", 2, hosts=2, whole_shards=True) == 4
    assert steps_per_epoch(manifest, "b+a", 2, hosts=2, whole_shards=True) == 1


# Paths of manifests.


def test_accepts_paths_of_datasets_and_manifests(ds, monkeypatch):
    manifest = load_manifest(ds)
    for path in (ds, str(ds), f"{ds}/", ds / "manifest.json", str(ds / "manifest.json")):
        assert steps_per_epoch(path, "train", 4) == 5
        assert load_manifest(path) == manifest
    monkeypatch.chdir(ds)
    for path in (".", "manifest.json", "../ds"):
        assert steps_per_epoch(path, "train", 4) == 5
    shutil.copy("manifest.json", "other.json")
    assert steps_per_epoch("other.json", "train", 4) == 5
    assert open_manifest("other.json")[:2] == ("", "other.json")
    for path, message in (
        ("", "is empty"),
        (Path("gs://bucket/ds"), "is not a URI: give gs://... as a str"),
        (Path("s3://bucket/ds"), "is not a URI: give s3://... as a str"),
    ):
        with pytest.raises(UsageError, match=message):
            steps_per_epoch(path, "train", 4)


def test_reads_a_manifest_in_a_bucket(bucket, capsys):
    uri = f"{bucket}/a/ds"
    open_storage(uri).replace(f"{uri}/manifest.json", json.dumps(numbered_body(SHARDS)).encode())
    for path in (uri, f"{uri}/", f"{uri}/manifest.json"):
        assert steps_per_epoch(path, "train", 4) == 5
        assert run_here(capsys, "steps", path, "--batch_size=4") == (0, "5\n", "")
    said = sentence_here(capsys, "steps", f"{bucket}/a", "--batch_size=4", code=1)
    assert "a/manifest.json does not exist" in said


# Start-up.


def test_starts_fast(ds):
    steps = "-m", "shardmill.pipelines.cli", "steps", str(ds), "--batch_size=4"
    pairs = [(cpu_seconds(*steps), cpu_seconds("-c", "pass")) for _ in range(5)]
    assert statistics.median(a - b for a, b in pairs) < 0.3
    assert shardmill(*steps[2:]).stdout == "5\n"
