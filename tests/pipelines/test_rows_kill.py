"""Killed, raced and damaged builds of rows come out as if nothing had happened."""

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
from shardmill.transforms.rows.planning import CountFiles, plan_rows
from shardmill.transforms.rows.probe import inspect_file
from shardmill.transforms.rows.transform import write_runs
from tests.conftest import shardmill
from tests.support.fault_tools import (
    JOURNAL,
    SOAK,
    Ended,
    Watched,
    build_folder,
    check_dataset,
    zygote,
)

pytestmark = pytest.mark.heavy

FEW = ("--label=word", "--shard_examples=800", "--max_reject_fraction=0.2")
RUNS = 8  # one a file
STEPS = 210  # changes to the file system that a whole build makes, roughly


def make_tables(folder: Path) -> Path:
    """Writes eight tables, two of them compressed; two of the rows will be rejects."""
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
    (folder / "README.md").write_text("no table")
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
    """What an undisturbed build writes."""
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
    """How many files that end so came to their names."""
    lines = log.read_text().splitlines()
    return sum(" os.rename " in f" {line}" and line.endswith(ending) for line in lines)


def finished(output: Path, folder: str) -> int:
    return len(list(output.glob(f".build-*/{folder}/*.json")))


def resume(source: Path, output: Path, wanted: dict[str, bytes], tmp_path: Path) -> Ended:
    """Runs a killed build again: it makes what is missing and nothing else."""
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
def test_killed_between_steps(source, wanted, tmp_path, seed):
    output, rng = tmp_path / "out", random.Random(seed)
    for _ in range(1 + seed % 2 * rng.randint(1, 3)):
        at = rng.randint(2, STEPS)
        ended = zygote().run(*rows(source, output), watch=Watched(output, at=(at,)))
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL
    resume(source, output, wanted, tmp_path)


# (what is about to be changed, the how manyth change from there)
MOMENTS = [("/runs/", 3), ("/runs/", 20), ("/parts/", 9), ("/shards/", 2), (JOURNAL, 4)]
SIGNALS = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: -signal.SIGTERM, signal.SIGINT: 130}


@pytest.mark.parametrize(
    ("moment", "number"),
    [(m, n) for m in MOMENTS for n in SIGNALS]
    if SOAK
    else list(zip(MOMENTS[::2], SIGNALS, strict=True)),
)
def test_ended_at_a_known_moment(source, wanted, tmp_path, moment, number):
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
        assert ended.stderr == "shardmill: interrupted; run again to resume.\n"
    if moment[0] in ("/runs/", "/parts/"):
        assert finished(output, "runs") > 0 or moment[1] < 6
    resume(source, output, wanted, tmp_path)


@pytest.mark.parametrize("offset", [0.02 * n for n in range(40)] if SOAK else [0.1])
def test_two_builders_at_once(source, wanted, tmp_path, offset):
    output = tmp_path / "out"
    commands = []
    for _ in range(2):
        commands.append(zygote().start(*rows(source, output)))
        time.sleep(offset)  # how far one is ahead of the other
    ended = [command.wait() for command in commands]
    assert [one.code for one in ended] == [0, 0], ended
    assert sum("Published" in one.stdout for one in ended) == 1
    assert check_dataset(output) == wanted


def test_what_is_published_outlives_builds_that_fail(source, wanted, tmp_path):
    """Killed, refused, or without enough good rows: the old dataset stays, byte by byte."""
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


def test_clean_knows_the_folders_of_rows(source, tmp_path):
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


def another(path: Path) -> None:
    shutil.copy(next(p for p in sorted(path.parent.glob("*.json")) if p != path), path)


DAMAGES = {
    "empty sidecar": lambda path: path.write_bytes(b""),
    "truncated sidecar": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "garbage sidecar": lambda path: path.write_bytes(b"\x00\xff" * 40),
    "sidecar of another type": lambda path: path.write_text("[1, 2]"),
    "sidecar with a flipped bit": flip,
    "sidecar of another run": another,
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
    """A build whose runs, parts and shards are there, that failed on its rejects."""
    output = tmp_path_factory.mktemp("rows_kill") / "out"
    flags = [flag for flag in rows(source, output) if "max_reject" not in flag]
    assert zygote().run(*flags, "--max_reject_fraction=0").code == 1
    return output


@pytest.mark.parametrize(
    "damages", [[name] for name in DAMAGES] if SOAK else [list(DAMAGES)[::2], list(DAMAGES)[1::2]]
)
def test_damaged_runs_are_made_anew(source, wanted, unpublished, tmp_path, damages):
    """Each damage to a run of its own; exactly those runs are made again."""
    output = tmp_path / "out"
    shutil.copytree(unpublished, output)
    for damage, sidecar in zip(damages, sidecars(output), strict=False):
        DAMAGES[damage](sidecar)
    assert resume_with(source, output, wanted, tmp_path) == len(damages)


DAMAGED_LATE = {"flipped": flip, "truncated": lambda path: os.truncate(path, 60)}


@pytest.mark.parametrize("damage", DAMAGED_LATE)
def test_a_run_damaged_before_it_is_merged_is_one_sentence(source, wanted, tmp_path, damage):
    """The build stands still before its first part, a run is damaged; the next command mends it."""
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


def test_a_run_gone_before_it_is_merged_is_made_again(source, wanted, tmp_path):
    """As when another command cleaned: the same command begins anew by itself."""
    output = tmp_path / "out"
    watch = Watched(output, since="/parts", at=(1,), number=signal.SIGSTOP)
    command = zygote().start(*rows(source, output), watch=watch)
    assert command.wait_stopped()
    payload_of(sidecars(output)[2]).unlink()
    command.send(signal.SIGCONT)
    assert command.wait().code == 0
    assert check_dataset(output) == wanted


def resume_with(source: Path, output: Path, wanted: dict[str, bytes], tmp_path: Path) -> int:
    """Builds on and returns the number of runs that were made."""
    log = tmp_path / "mended"
    built(source, output, watch=Watched(output, log=log))
    assert check_dataset(output) == wanted
    return written(log, ".run")


# Work that is done twice.


def tasks_of(source: Path, output: Path):
    """A job's parts as the pipeline hands them to its workers."""
    schema = str(source / "schema.pbtxt")
    job = resolve(
        RowsConfig(str(source), str(output), schema=schema, label="word", max_reject_fraction=0.2)
    )
    files = [file for ref in match_now(job.match)[0] for file in inspect_file(ref, job.spec.runs)]
    count = CountFiles(job.spec.sink.place)
    census = Census()
    for file in files:
        census = count.add_input(census, file)
    plan = plan_rows(job.spec.plan, census)
    tasks = [
        (tuple(file.ref), file.columns, tuple(part))
        for file in files
        if not file.ref.error
        for part in split_ranges(file.ref.uri, job.spec.runs.dialect)
    ]
    return job.spec, plan, tasks


def test_each_range_made_many_times_at_once_has_one_winner(source, tmp_path):
    """A bundle that Beam runs again, or twice at a time, tells of the same segments."""
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
def test_a_process_as_users_start_it(source, wanted, tmp_path):
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


@pytest.mark.skipif(not SOAK, reason="TensorFlow takes long to start")
@pytest.mark.parametrize("moment", [("/transforms/", 2), ("/transforms/", 30), ("/runs/", 9)])
def test_killed_around_the_analysis(source, tmp_path, moment):
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
