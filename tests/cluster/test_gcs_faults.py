"""Whole builds on gs:// while calls fail: every kind of call and fault, and random faults."""

import random
import shutil
import time

import google_crc32c
import pytest

from shardmill.pipelines.cli import main
from shardmill.schemas.errors import ShardmillError
from shardmill.schemas.storage.gcs import GcsStorage
from tests.conftest import SOAK, shardmill
from tests.support.fault_proxy import Storm
from tests.support.gcs_builds import KINDS, TRANSIENT, build

pytest_plugins = ["tests.support.gcs_server", "tests.support.gcs_builds"]
pytestmark = pytest.mark.usefixtures("quick")


SEEDS = range(30) if SOAK else range(1)
# All faults of the calls of one pipeline: the others make the same calls.
FAULTS = {"images": TRANSIENT, "rows": ("503", "lose"), "arrays": ("truncate",)}
CASES = [
    (kind, how) for kind, hows in FAULTS.items() for how in (*(TRANSIENT if SOAK else hows), *SEEDS)
]


@pytest.mark.parametrize(("pipeline", "how"), CASES)
def test_builds_survive_transient_faults(pipeline, how, album, strict_bucket, front, tmp_path):
    """Build, then overwrite; each kind of call fails twice, or one random call in fourteen."""
    inputs, output = album.upload(strict_bucket), f"{strict_bucket}/out"
    storm = None if how in TRANSIENT else Storm(how, 0.07, (*TRANSIENT, "slow", "late"))
    for shards in ({}, {"num_shards": 1}):
        front.reset()
        front.storm = storm
        for number, kind in enumerate(KINDS if storm is None else ()):
            front.fail(kind, how, times=2, skip=number % 3)
        outcome = build(pipeline, f"{inputs}/{pipeline}", output, overwrite=bool(shards), **shards)
        assert outcome.status == "published", outcome
        assert front.faults_left == 0
        if storm is None:
            assert outcome.parts_reused == 0
            made = [c.name for c in front.calls if c.kind == "upload" and c.name.endswith(".part")]
            assert len(set(made)) == outcome.parts_made  # no part was made twice
        front.storm = None
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        album.check(pipeline, output, tmp_path / "out", **shards)
    assert storm is None or storm.injected  # an array takes so few calls that a storm may hit five


@pytest.mark.parametrize("seed", SEEDS)
def test_concat_of_many_objects_survives_random_faults(seed, strict_bucket, front):
    """Three levels of composes leave the joined object and its sources only."""
    storage, rng = GcsStorage(), random.Random(seed)
    pieces = [f"{strict_bucket}/piece{number:04}" for number in range(70)]
    data = [rng.randbytes(rng.randint(0, 50)) for _ in pieces]
    for path, content in zip(pieces, data, strict=True):
        storage.replace(path, content)
    front.storm = Storm(seed, 0.2, TRANSIENT)
    sources = pieces * 17  # 1,190 objects, so 38 and 2 in between
    storage.concat(sources, f"{strict_bucket}/joined")
    injected = front.storm.injected.total()
    front.storm = None
    assert injected > 3
    wanted = b"".join(data * 17)
    assert storage.read(f"{strict_bucket}/joined") == wanted
    assert storage.checksum(f"{strict_bucket}/joined") == google_crc32c.value(wanted)
    names = {entry.path for entry in storage.walk(strict_bucket)}
    assert names == {*pieces, f"{strict_bucket}/joined"}


# Permanent faults; tests/faults has denied calls of every kind.
PERMANENT = [
    ("upload", "spoil", ".part"),
    ("compose", "400", ""),
]


@pytest.mark.parametrize("fault", PERMANENT, ids="-".join)
def test_a_permanent_fault_is_one_sentence_and_the_next_run_resumes(
    fault, album, strict_bucket, front, tmp_path, capsys
):
    kind, how, ending = fault
    inputs, output = album.upload(strict_bucket), f"{strict_bucket}/out"
    assert build("rows", f"{inputs}/rows", output).status == "published"
    before = {entry.path: entry.version for entry in GcsStorage().walk(output)}
    args = [f"--input={inputs}/rows", f"--output={output}", "--label=word", "--num_shards=1"]
    front.fail(kind, how, times=10**6, name=ending)
    capsys.readouterr()
    started = time.monotonic()
    code = main(["rows", *args, "--overwrite"])
    seconds = time.monotonic() - started
    stderr = capsys.readouterr().err.splitlines()
    lines = [line for line in stderr if line.startswith("shardmill: ")]
    print(f"{kind} {how} {ending}: {seconds:.1f} s: {lines}")
    assert (code, len(lines)) == (1, 1), stderr
    assert lines[0].endswith(".")
    assert seconds < 100  # transient faults are retried for two minutes
    front.reset()
    after = {entry.path: entry.version for entry in GcsStorage().walk(output)}
    assert before.items() <= after.items()  # nothing published has changed
    outcome = build("rows", f"{inputs}/rows", output, num_shards=1, overwrite=True)
    assert outcome.status == "published", outcome
    assert outcome.parts_made == 0 or kind == "upload"
    album.check("rows", output, tmp_path / "out", num_shards=1)


def test_earlier_files_that_cannot_be_deleted_are_a_remark(
    album, strict_bucket, front, tmp_path, capsys
):
    """The dataset is published before anything is deleted, so the command succeeds."""
    inputs, output = album.upload(strict_bucket), f"{strict_bucket}/out"
    assert build("rows", f"{inputs}/rows", output).status == "published"
    front.fail("delete", "403", times=10**6)
    args = [f"--input={inputs}/rows", f"--output={output}", "--label=word", "--num_shards=1"]
    capsys.readouterr()
    assert main(["rows", *args, "--update", "--keep=0"]) == 0
    said = capsys.readouterr()
    front.reset()
    assert f"run `shardmill clean {output}`" in said.out + said.err
    assert main(["clean", output, "--older_than=0"]) == 0
    album.check("rows", output, tmp_path / "out", num_shards=1)


def test_a_corrupt_download_fails_the_build_and_rejects_no_image(
    album, strict_bucket, front, tmp_path
):
    """A corrupt byte is a fault of the network: no reject, and nothing is published."""
    inputs, output = album.upload(strict_bucket), f"{strict_bucket}/out"
    front.fail("download", "corrupt", times=10**6, name=".jpg", skip=5)
    with pytest.raises(ShardmillError, match=r"Cannot read gs://.*; run again when the service"):
        build("images", f"{inputs}/images", output)
    assert GcsStorage().stat(f"{output}/manifest.json") is None
    front.reset()
    front.fail("download", "corrupt", times=2, name=".jpg")  # each is read up to three times
    outcome = build("images", f"{inputs}/images", output)
    assert outcome.status == "published"
    assert front.faults_left == 0
    album.check("images", output, tmp_path / "out")


@pytest.mark.skipif(not SOAK, reason="waits for the last retry: make soak")
def test_a_permanently_unavailable_service(strict_bucket, front):
    front.fail("*", "503", times=10**6)
    started = time.monotonic()
    done = shardmill("verify", f"{strict_bucket}/out")
    print(time.monotonic() - started)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "run again when the service answers" in done.stderr
    assert time.monotonic() - started < 300
