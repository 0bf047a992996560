"""Killed, concurrent and damaged builds of rows publish the same bytes as an undisturbed one."""

import bz2
import gzip
import json
import os
import random
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardmill.pipelines.rows import resolve
from shardmill.pipelines.rows_config import RowsConfig
from shardmill.transforms.build.census import Census
from shardmill.transforms.match.transform import match_now
from shardmill.transforms.rows.csv.row_ranges import split_ranges
from shardmill.transforms.rows.planning import count_file, plan_rows
from shardmill.transforms.rows.probe import inspect_file
from shardmill.transforms.rows.transform import write_runs
from tests.conftest import shardmill
from tests.support.fault_tools import (
    JOURNAL,
    PROGRESS,
    SOAK,
    Ended,
    Watched,
    build_folder,
    check_dataset,
    zygote,
)

pytestmark = pytest.mark.heavy

FEW = ("--label=word", "--shard_examples=800", "--max_reject_fraction=0.2")
RUNS = 8  # one per file
STEPS = 210  # approximate number of file-system changes of a whole build


def make_tables(folder: Path) -> Path:
    """Write eight tables, two of them compressed, with two bad rows."""
    folder.mkdir(parents=True)
    for number in range(RUNS):
        rows = "".join(
            f"{number * 1000 + row},{row / 7:.7g},word {row % 5}\n" for row in range(250)
        )
        data = f"id,value,word\n{rows}".encode()
        if number == 3:
            data += b"1,2\n4,many,word 1\n"
        name, packed = f"{number}.csv", data
        if number == 1:
            name, packed = "1.csv.gz", gzip.compress(data, mtime=0)
        if number == 2:
            name, packed = "2.csv.bz2", bz2.compress(data)
        (folder / name).write_bytes(packed)
    (folder / "README.md").write_text("not a table")
    schema = folder / "schema.pbtxt"
    schema.write_text(
        'feature { name: "id" type: INT presence { min_fraction: 1 } }\n'
        'feature { name: "value" type: FLOAT presence { min_fraction: 1 } }\n'
        'feature { name: "word" type: BYTES presence { min_fraction: 1 } }\n'
    )
    return folder


def rows(source: Path, output: Path, *flags: object) -> list[str]:
    schema = f"--schema={source / 'schema.pbtxt'}"
    return ["rows", f"--input={source}", f"--output={output}", schema, *FEW, *map(str, flags)]


def built(source: Path, output: Path, *flags: object, watch: Watched | None = None) -> Ended:
    ended = zygote().run(*rows(source, output, *flags), watch=watch)
    assert ended.code == 0, ended.stderr
    return ended


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return make_tables(tmp_path_factory.mktemp("rows_kill") / "tables")


@pytest.fixture(scope="module")
def wanted(source, tmp_path_factory) -> dict[str, bytes]:
    """Return the files of an undisturbed build."""
    folder = tmp_path_factory.mktemp("rows_kill")
    ended = built(source, folder / "out", watch=Watched(folder / "out", log=folder / "log"))
    assert ended.parts()[0] >= 16
    log = (folder / "log").read_text()
    assert len(log.splitlines()) > STEPS
    assert written(folder / "log", ".run") == RUNS
    files = check_dataset(folder / "out")  # with no build folder left
    lines = files["rejects.jsonl"].splitlines()
    assert sorted(json.loads(line)["error"] for line in lines) == ["cast", "ragged"]
    assert json.loads((folder / "out" / "manifest.json").read_text())["written"] == RUNS * 250
    return files


def written(log: Path, ending: str) -> int:
    """Return the number of files with this ending that were renamed to their final name."""
    lines = log.read_text().splitlines()
    return sum(" os.rename " in f" {line}" and line.endswith(ending) for line in lines)


def finished(output: Path, folder: str) -> int:
    return len(list(output.glob(f".build-*/{folder}/*.json")))


def resume(source: Path, output: Path, wanted: dict[str, bytes], tmp_path: Path) -> Ended:
    """Run a killed build again; it must write only what is missing."""
    runs, parts = finished(output, "runs"), finished(output, "parts")
    over = (output / JOURNAL).exists() or (output / "manifest.json").exists()
    log = tmp_path / "resumed"
    ended = built(source, output, watch=Watched(output, log=log))
    assert check_dataset(output) == wanted
    if over:
        assert "up to date" in ended.stdout
        assert not written(log, ".run") + written(log, ".part")
    else:
        assert ended.parts()[1] == parts
        assert written(log, ".run") == RUNS - runs
    return ended


@pytest.mark.parametrize("seed", range(40 if SOAK else 2))
def test_resumes_after_being_killed_at_random_steps(source, wanted, tmp_path, seed):
    output, rng = tmp_path / "out", random.Random(seed)
    for _ in range(1 + seed % 2 * rng.randint(1, 3)):
        at = rng.randint(2, STEPS)
        ended = zygote().run(*rows(source, output), watch=Watched(output, at=(at,)))
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL
    resume(source, output, wanted, tmp_path)


# (path that is about to be changed, number of changes from there)
MOMENTS = [("/runs/", 3), ("/runs/", 20), ("/parts/", 9), ("/shards/", 2), (JOURNAL, 4)]
SIGNALS = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: -signal.SIGTERM, signal.SIGINT: 130}


@pytest.mark.parametrize(
    ("moment", "number"),
    [(m, n) for m in MOMENTS for n in SIGNALS]
    if SOAK
    else list(zip(MOMENTS[::2], SIGNALS, strict=True)),
)
def test_resumes_after_a_signal_at_a_known_moment(source, wanted, tmp_path, moment, number):
    output = tmp_path / "out"
    watch = Watched(output, since=moment[0], at=(moment[1],), number=signal.SIGSTOP)
    command = zygote().start(*rows(source, output), watch=watch)
    assert command.wait_stopped()
    command.send(number)
    command.send(signal.SIGCONT)
    ended = command.wait()
    assert ended.code == SIGNALS[number]
    assert ended.stdout == ""
    if number == signal.SIGINT:
        assert PROGRESS.sub("", ended.stderr) == "shardmill: interrupted; run again to resume.\n"
    if moment[0] in ("/runs/", "/parts/"):
        assert finished(output, "runs") > 0 or moment[1] < 6
    resume(source, output, wanted, tmp_path)


@pytest.mark.parametrize("offset", [0.02 * n for n in range(40)] if SOAK else [0.1])
def test_one_of_two_concurrent_builders_publishes(source, wanted, tmp_path, offset):
    output = tmp_path / "out"
    commands = []
    for _ in range(2):
        commands.append(zygote().start(*rows(source, output)))
        time.sleep(offset)  # the second builder starts later
    ended = [command.wait() for command in commands]
    assert [one.code for one in ended] == [0, 0], ended
    assert sum("Published" in one.stdout for one in ended) == 1
    assert check_dataset(output) == wanted


def test_failing_builds_do_not_change_the_published_dataset(source, wanted, tmp_path):
    """Builds that are killed, lack --overwrite or have too many rejects."""
    output = tmp_path / "out"
    built(source, output)
    manifest = (output / "manifest.json").read_bytes()
    ended = zygote().run(*rows(source, output, "--seed=1"))
    assert ended.code == 1
    assert "--overwrite" in ended.sentence
    watch = Watched(output, since="/parts/", at=(5,))
    ended = zygote().run(*rows(source, output, "--seed=1", "--overwrite"), watch=watch)
    assert ended.code == -signal.SIGKILL
    strict = [
        flag for flag in rows(source, output, "--overwrite", "--seed=2") if "max_" not in flag
    ]
    ended = zygote().run(*strict, "--max_reject_fraction=0")
    assert ended.code == 1
    assert "2 of 2,002 inputs were rejected" in ended.sentence
    left = [path.name for path in output.glob(".build-*")]
    assert len(left) == 2
    assert check_dataset(output, left) == wanted
    assert (output / "manifest.json").read_bytes() == manifest
    ended = zygote().run("clean", output, "--older_than=0s")
    assert ended.code == 0, ended.stderr
    assert check_dataset(output) == wanted


def test_clean_deletes_the_build_folder_of_rows(source, tmp_path):
    output = tmp_path / "out"
    watch = Watched(output, since="/parts/", at=(5,))
    assert zygote().run(*rows(source, output), watch=watch).code == -signal.SIGKILL
    build = build_folder(output)
    (build / "transforms" / "x").mkdir(parents=True)
    (build / f"transform-{'0' * 32}.json").write_text("{}")
    assert {path.name for path in build.iterdir()} >= {"runs", "parts", "transforms"}
    ended = zygote().run("clean", output, "--older_than=0s")
    assert ended.code == 0, ended.stderr
    assert not list(output.iterdir()) if output.exists() else True


# Damaged runs.


def sidecars(output: Path) -> list[Path]:
    return sorted(build_folder(output).glob("runs/*.json"))


def payload_of(sidecar: Path) -> Path:
    return sidecar.parent / json.loads(sidecar.read_text())["payload"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def copy_other_sidecar(path: Path) -> None:
    shutil.copy(next(p for p in sorted(path.parent.glob("*.json")) if p != path), path)


DAMAGES = {
    "empty sidecar": lambda path: path.write_bytes(b""),
    "truncated sidecar": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "garbage sidecar": lambda path: path.write_bytes(b"\x00\xff" * 40),
    "sidecar of another type": lambda path: path.write_text("[1, 2]"),
    "sidecar with a flipped bit": flip,
    "sidecar of another run": copy_other_sidecar,
    "sidecar of a part": lambda path: shutil.copy(
        next((path.parent.parent / "parts").glob("*.json")), path
    ),
    "missing sidecar": Path.unlink,
    "missing payload": lambda path: payload_of(path).unlink(),
    "truncated payload": lambda path: os.truncate(payload_of(path), 50),
    "payload with a flipped bit": lambda path: flip(payload_of(path)),
}


@pytest.fixture(scope="module")
def unpublished(source, tmp_path_factory) -> Path:
    """Return a build with runs, parts and shards that failed because of its rejects."""
    output = tmp_path_factory.mktemp("rows_kill") / "out"
    flags = [flag for flag in rows(source, output) if "max_reject" not in flag]
    assert zygote().run(*flags, "--max_reject_fraction=0").code == 1
    return output


@pytest.mark.parametrize(
    "damages", [[name] for name in DAMAGES] if SOAK else [list(DAMAGES)[::2], list(DAMAGES)[1::2]]
)
def test_writes_only_damaged_runs_again(source, wanted, unpublished, tmp_path, damages):
    """Each damage affects a different run."""
    output = tmp_path / "out"
    shutil.copytree(unpublished, output)
    for damage, sidecar in zip(damages, sidecars(output), strict=False):
        DAMAGES[damage](sidecar)
    assert resume_with(source, output, wanted, tmp_path) == len(damages)


DAMAGED_LATE = {"flipped": flip, "truncated": lambda path: os.truncate(path, 60)}


@pytest.mark.parametrize("damage", DAMAGED_LATE)
def test_fails_in_one_sentence_if_a_run_is_damaged_before_the_merge(
    source, wanted, tmp_path, damage
):
    """The run is damaged while the build is stopped before its first part; a rerun repairs it."""
    output = tmp_path / "out"
    watch = Watched(output, since="/parts", at=(1,), number=signal.SIGSTOP)
    command = zygote().start(*rows(source, output), watch=watch)
    assert command.wait_stopped()
    DAMAGED_LATE[damage](payload_of(sidecars(output)[2]))
    command.send(signal.SIGCONT)
    ended = command.wait()
    assert ended.code == 1
    assert "is damaged" in ended.sentence
    assert "run again" in ended.sentence
    assert resume_with(source, output, wanted, tmp_path) == 1


def test_starts_again_if_a_run_is_deleted_before_the_merge(source, wanted, tmp_path):
    """As if `clean` ran during the build: the command starts the job again by itself."""
    output = tmp_path / "out"
    watch = Watched(output, since="/parts", at=(1,), number=signal.SIGSTOP)
    command = zygote().start(*rows(source, output), watch=watch)
    assert command.wait_stopped()
    payload_of(sidecars(output)[2]).unlink()
    command.send(signal.SIGCONT)
    assert command.wait().code == 0
    assert check_dataset(output) == wanted


def resume_with(source: Path, output: Path, wanted: dict[str, bytes], tmp_path: Path) -> int:
    """Resume a build and return the number of runs that were written."""
    log = tmp_path / "resumed"
    built(source, output, watch=Watched(output, log=log))
    assert check_dataset(output) == wanted
    return written(log, ".run")


# Work that is done more than once.


def tasks_of(source: Path, output: Path):
    """Return spec, plan and ranges of a job, as its workers receive them."""
    schema = str(source / "schema.pbtxt")
    job = resolve(
        RowsConfig(str(source), str(output), schema=schema, label="word", max_reject_fraction=0.2)
    )
    files = [file for ref in match_now(job.match)[0] for file in inspect_file(ref, job.spec.runs)]
    census = Census()
    for file in files:
        count_file(census, file)
    plan = plan_rows(job.spec.plan, census)
    tasks = [
        (tuple(file.ref), file.columns, tuple(part))
        for file in files
        if not file.ref.error
        for part in split_ranges(file.ref.uri, job.spec.runs.dialect)
    ]
    return job.spec, plan, tasks


def test_concurrent_attempts_at_a_range_return_the_same_segments(source, tmp_path):
    """Beam may run a bundle again, or twice concurrently."""
    spec, plan, tasks = tasks_of(source, tmp_path / "out")
    assert len(tasks) == RUNS

    def once(task) -> list[str]:
        return [repr(item) for item in write_runs(task, spec, plan) if isinstance(item, tuple)]

    with ThreadPoolExecutor(8) as threads:
        for task in tasks:
            found = list(threads.map(once, [task] * 8))
            assert found[0]
            assert found == [found[0]] * 8
    folder = build_folder(tmp_path / "out") / "runs"
    assert len(list(folder.iterdir())) == 2 * RUNS  # a sidecar and its payload each
    payloads = {payload_of(path) for path in folder.glob("*.json")}
    assert payloads == set(folder.glob("*.run"))


@pytest.mark.skipif(not SOAK, reason="a real process was killed in test_kill: make soak")
def test_builds_in_a_fresh_process(source, wanted, tmp_path):
    output = tmp_path / "out"
    done = shardmill(*rows(source, output))
    assert (done.returncode, done.stderr) == (0, "")
    assert check_dataset(output) == wanted
    again = shardmill(*rows(source, output))
    assert "up to date: nothing was written" in again.stdout


# TensorFlow Transform.

PREPROCESSING = """
import tensorflow_transform as tft

def preprocessing_fn(inputs):
    return {"value": tft.scale_to_z_score(inputs["value"]), "id": inputs["id"]}
"""


@pytest.mark.skipif(not SOAK, reason="TensorFlow starts slowly")
@pytest.mark.parametrize("moment", [("/transforms/", 2), ("/transforms/", 30), ("/runs/", 9)])
def test_resumes_after_being_killed_during_the_analysis(source, tmp_path, moment):
    (tmp_path / "fn.py").write_text(PREPROCESSING)
    command = [flag for flag in rows(source, "OUT") if not flag.startswith(("--label", "--output"))]
    command.append(f"--preprocessing={tmp_path / 'fn.py'}")
    whole, output = tmp_path / "whole", tmp_path / "out"
    assert zygote().run(*command, f"--output={whole}").code == 0
    watch = Watched(output, since=moment[0], at=(moment[1],))
    ended = zygote().run(*command, f"--output={output}", watch=watch)
    assert ended.code == -signal.SIGKILL
    ended = zygote().run(*command, f"--output={output}")
    assert ended.code == 0, ended.stderr

    def files(folder: Path) -> dict[str, bytes]:
        found = folder.rglob("*.gz"), folder.rglob("schema.pbtxt")
        return {str(p.relative_to(folder)): p.read_bytes() for each in found for p in each}

    assert files(output) == files(whole)
    assert len(files(whole)) > 2
    assert not list(output.glob(".build-*"))
