"""Steps per epoch: the command and the function, their errors, and start-up time."""

import contextlib
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
from shardmill.schemas.errors import FormatError, InputError, UsageError
from shardmill.schemas.storage import open_storage
from tests.conftest import cpu_seconds, shardmill
from tests.support.fault_tools import sentence_here
from tests.support.publications import manifest_body
from tests.support.rows_tools import run_here

pytest_plugins = ["tests.support.gcs_server"]

SHARDS = {"train": [5, 0, 7, 4, 1], "validation": [3, 3], "test": []}


def body(splits: dict[str, list[int]]) -> dict:
    """Return the JSON of a manifest whose shards have these numbers of records."""
    return manifest_body(
        {
            name: {
                "num_examples": sum(records),
                "num_bytes": 0,
                "label_counts": {},
                "shards": [
                    {"file": f"{name}-{i}", "records": count, "bytes": 0, "crc32c": "00000000"}
                    for i, count in enumerate(records)
                ],
            }
            for name, records in splits.items()
        }
    )


def make(splits: dict[str, list[int]]) -> Manifest:
    return Manifest.from_json(json.dumps(body(splits)))


@pytest.fixture
def ds(tmp_path) -> Path:
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "manifest.json").write_text(json.dumps(body(SHARDS)))
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


@pytest.mark.parametrize(
    ("split", "flags", "wanted"),
    [
        ("train", ["--batch_size=4"], 5),
        ("train", ["--batch_size=4", "--drop_remainder"], 4),
        ("train", ["--batch_size=17"], 1),
        ("train+validation", ["--batch_size=4"], 6),
        ("validation+train", ["--batch_size=4", "--drop_remainder"], 5),
        (" train + validation ", ["--batch_size=23"], 1),
        ("train+test", ["--batch_size=4"], 5),
        ("train", ["--batch_size=4", "--hosts=2"], 4),
        ("train", ["--batch_size=4", "--hosts=2", "--whole_shards"], 2),
        # In the order named: host 0 gets 5+7+1+3 and 3+5+7+1, host 1 the rest.
        ("train+validation", ["--batch_size=2", "--hosts=2", "--whole_shards"], 7),
        ("validation+test", ["--batch_size=2", "--hosts=2"], 3),
        ("train[:50%]", ["--batch_size=4"], 2),
        ("train[:50%]+train[50%:]", ["--batch_size=4"], 5),
        ("train[5:9] + validation[-2:]", ["--batch_size=2"], 3),
        ("train[-100:100]", ["--batch_size=4"], 5),
    ],
)
def test_joins_splits(split, flags, wanted, ds, capsys):
    assert run_here(capsys, "steps", ds, f"--split={split}", *flags) == (0, f"{wanted}\n", "")


def test_order_of_joined_splits_decides_assignment() -> None:
    manifest = make({"a": [9, 1, 9], "b": [9]})
    names = [part.shard.file for part in select(manifest, "b+a").parts]
    assert names == ["b-0", "a-0", "a-1", "a-2"]
    manifest = make({"a": [10], "b": [4, 1]})
    assert steps_per_epoch(manifest, "a+b", 2, hosts=2, whole_shards=True) == 4
    assert steps_per_epoch(manifest, "b+a", 2, hosts=2, whole_shards=True) == 1


MISTAKES = [
    (["--split=train[:180%]"], "'180%' is neither a number nor a percentage up to 100%"),
    (["--split=train+validation+ train"], "has some examples twice"),
    (
        ["--split=train,validation"],
        "'train,validation' (did you mean train+validation?): it has train, validation",
    ),
    (["--batch_size=0"], "--batch_size=0 must be 1 or more"),
    (["--hosts=0"], "--hosts=0 must be 1 or more"),
    (["--batch_size=5", "--hosts=2"], "use a multiple of 2, such as 6"),
    (["--batch_size=4.0"], "is not a whole number"),
    (["--batch_size=6", "--hosts=6", "--whole_shards"], "train has 5 shards, fewer than 6 hosts"),
    (["--batch_size=6", "--hosts=6", "--whole_shards"], "build with --num_shards=6 or a multiple"),
    (["--split=test", "--hosts=2", "--whole_shards"], "test has 0 shards"),
    (["--replica=2"], "The flag --replica is unknown"),
]


@pytest.mark.parametrize("numbers", [(32.5, 1), ("32", 1), (32, 0.5)], ids=str)
def test_rejects_numbers_that_are_not_integers(ds, numbers):
    with pytest.raises(UsageError, match="must be an integer, 1 or more"):
        steps_per_epoch(ds, "train", numbers[0], hosts=numbers[1])


@pytest.mark.parametrize(("flags", "message"), MISTAKES, ids=lambda value: str(value)[:40])
def test_rejects_flags_in_one_sentence(flags, message, ds, capsys):
    assert message in sentence_here(capsys, "steps", ds, "--batch_size=4", *flags)


def test_prints_json(ds, capsys):
    code, out, err = run_here(
        capsys, "steps", ds, "--split=train+validation", "--batch_size=4", "--hosts=2", "--json"
    )
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "status": "ok",
        "examples": 23,
        "steps": 5,
        "split": "train+validation",
        "batch_size": 4,
        "drop_remainder": False,
        "hosts": 2,
        "whole_shards": False,
        "manifest": f"{ds}/manifest.json",
    }


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--batch_size=18", "--drop_remainder"], "0 steps: train does not fill a batch"),
        (["--batch_size=20", "--hosts=5"], "0 steps: the share of a host"),
        (["--batch_size=4", "--split=test"], "0 steps: test is empty."),
    ],
)
def test_warns_about_zero_steps(flags, why, ds, capsys):
    for more in ([], ["--json"]):
        code, out, err = run_here(capsys, "steps", ds, *flags, *more)
        assert code == 0
        assert json.loads(out) == 0 or json.loads(out)["steps"] == 0
        assert err.startswith(f"shardmill: {why}")
        assert err.count("\n") == 1


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


DAMAGE = {
    "": "is not a Shardmill manifest",
    "{": "is not a Shardmill manifest",
    "[]": "is not a Shardmill manifest",
    "[" * 100_000: "is not a Shardmill manifest",
    "\x00\xff": "is not a Shardmill manifest",
    '{"version": 3}': "manifest version 3 is not 2: use the Shardmill that wrote it",
    '{"version": 1}': "manifest version 1 is not 2: build the dataset again",
    '{"version": 2}': "a field of the manifest is missing",
}
CHANGES = [
    (("num_examples",), "17", "is not a number"),
    (("num_examples",), -1, "is not a number"),
    (("num_examples",), True, "is not a number"),
    (("num_examples",), 16, "it states 16 examples for the split 'train', but its shards have 17"),
    (("shards", 0, "records"), None, "is not a number"),
    (("shards", 0, "records"), 5.0, "is not a number"),
    (("num_bytes",), "x", "num_bytes is not a number"),
    (("label_counts",), {"cat": -1}, "label_counts is not a number"),
    (("shards", 0, "bytes"), None, "is not a number"),
    (("shards", 0, "file"), "../x", "outside its folder"),
    (("label_counts",), ["abc"], "missing or malformed"),
    (("shards",), {"a": 1}, "missing or malformed"),
]


def with_field(where, value) -> str:
    """Return the text of a manifest with another value in its first split."""
    changed = body(SHARDS)
    place = changed["splits"]["train"]
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    return json.dumps(changed)


DAMAGE |= {with_field(where, value): message for where, value, message in CHANGES}


@pytest.mark.parametrize("number", range(len(DAMAGE)))
def test_rejects_a_damaged_manifest(number, ds, capsys):
    text, message = [*DAMAGE.items()][number]
    (ds / "manifest.json").write_text(text, encoding="latin-1")
    for path in (ds, ds / "manifest.json"):
        said = sentence_here(capsys, "steps", path, "--batch_size=4", code=1)
        assert message in said
        assert said.startswith(f"shardmill: {ds}/manifest.json cannot be read: ")
        with pytest.raises(InputError, match=r"manifest\.json cannot be read"):
            steps_per_epoch(path, "train", 4)
    # Builds and counts over it have other messages, and no traceback.
    with contextlib.suppress(FormatError):
        Manifest.from_json((ds / "manifest.json").read_bytes())


def test_reports_a_missing_manifest(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder" / "manifest.json").mkdir(parents=True)
    (tmp_path / ".publish.json").write_text("{")  # does not affect other folders
    for path in ("empty", "nowhere", "nowhere/manifest.json"):
        said = sentence_here(capsys, "steps", path, "--batch_size=4", code=1)
        assert "manifest.json does not exist" in said or "nowhere does not exist" in said
        assert "give a dataset or its manifest.json, or count" in said
    sentence_here(capsys, "steps", "folder", "--batch_size=4", code=1)
    assert "ftp:// is not supported" in sentence_here(
        capsys, "steps", "ftp://b/x", "--batch_size=4"
    )


def test_reads_a_manifest_in_a_bucket(bucket, capsys):
    uri = f"{bucket}/a/ds"
    open_storage(uri).replace(f"{uri}/manifest.json", json.dumps(body(SHARDS)).encode())
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
    check = "-m", "shardmill.pipelines.cli", "check", str(ds)
    pairs = [(cpu_seconds(*check), cpu_seconds(*steps)) for _ in range(5)]
    assert statistics.median(a - b for a, b in pairs) < 0.1
