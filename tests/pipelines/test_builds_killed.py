"""Killed, interrupted and damaged builds publish the same bytes as an undisturbed one."""

import bz2
import gzip
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardmill.pipelines.report.terminal import delayed_signals
from shardmill.pipelines.rows import resolve
from shardmill.pipelines.rows_config import RowsConfig
from shardmill.transforms.match.inputs import match_now
from shardmill.transforms.sink.census import Census
from shardmill.transforms.tables.table import count_file, plan_rows
from shardmill.transforms.tables.transform import write_runs
from tests.conftest import TEMPORARY, start_shardmill
from tests.support.fault_tools import (
    SOAK,
    Command,
    Ended,
    Watched,
    build_folder,
    check_dataset,
    flip,
    images,
    make_source,
    miscount,
    payload_of,
    zygote,
)

pytestmark = pytest.mark.heavy

RUNS = 8  # one per table


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
    kinds = {"id": "INT", "value": "FLOAT", "word": "BYTES"}
    (folder / "schema.pbtxt").write_text(
        "".join(
            f'feature {{ name: "{name}" type: {kind} presence {{ min_fraction: 1 }} }}\n'
            for name, kind in kinds.items()
        )
    )
    return folder


def rows(source: Path, output: Path, *flags: object) -> list[str]:
    """Return the arguments of a small build of rows."""
    common = ["--label=word", "--shard_examples=800", "--max_reject_fraction=0.2"]
    schema = f"--schema={source / 'schema.pbtxt'}"
    return ["rows", f"--input={source}", f"--output={output}", schema, *common, *map(str, flags)]


@dataclass(frozen=True)
class Kind:
    """A kind of input and what the first stage of its build writes.

    Attributes:
        make: Writes the input to a folder.
        argv: Returns the command line for an input, an output and further flags.
        stage: Folder of the files that a resumed build reuses.
        written: Suffix of their payloads.
        rejects: Reasons of the rejects.
    """

    make: Callable[[Path], Path]
    argv: Callable[..., list[str]]
    stage: str
    written: str
    rejects: list[str]


KINDS = {
    "images": Kind(make_source, images, "parts", ".part", ["empty", "not_an_image"]),
    "rows": Kind(make_tables, rows, "runs", ".run", ["cast", "ragged"]),
}


@dataclass(frozen=True)
class Case:
    """An input, and the files of the dataset that an undisturbed build makes of it."""

    kind: Kind
    source: Path
    wanted: dict[str, bytes]

    def start(self, output: Path, *flags: object, **watch: object) -> Command:
        watched = Watched(output, **watch) if watch else None
        return zygote().start(*self.kind.argv(self.source, output, *flags), watch=watched)

    def run(self, output: Path, *flags: object, **watch: object) -> Ended:
        return self.start(output, *flags, **watch).wait()

    def stop(self, output: Path, **watch: object) -> Command:
        """Start a build that stops itself before some changes of the file system."""
        command = self.start(output, number=signal.SIGSTOP, **watch)
        assert command.wait_stopped()
        return command

    def finished(self, output: Path, stage: str = "") -> int:
        return len(list(output.glob(f".build-*/{stage or self.kind.stage}/*.json")))

    def sidecars(self, output: Path) -> list[Path]:
        """Return the sidecars of the first stage that have records."""
        paths = sorted(build_folder(output).glob(f"{self.kind.stage}/*.json"))
        return [path for path in paths if json.loads(path.read_text())["payload"]]

    def complete(self, output: Path) -> tuple[Ended, int]:
        """Run a build to its end, check it, and count the files of the first stage it wrote."""
        log = output.parent / "log"
        log.unlink(missing_ok=True)
        ended = self.run(output, log=log)
        assert ended.code == 0, ended.stderr
        left = [path.name for path in output.glob(".build-*")]
        assert not left or "up to date" in ended.stdout  # killed after the publication
        assert check_dataset(output, left) == self.wanted
        return ended, renamed(log, self.kind.written)

    def resume(self, output: Path) -> None:
        """Resume a killed build, which must write only what is missing."""
        over = (output / "manifest.json").exists()
        finished, parts = self.finished(output), self.finished(output, "parts")
        ended, written = self.complete(output)
        if over:
            assert "up to date" in ended.stdout
            assert not written
        else:
            assert ended.parts()[1] == parts
            assert self.kind.stage == "parts" or written == RUNS - finished


def renamed(log: Path, ending: str) -> int:
    """Return the number of files with this ending that were renamed to their final name."""
    lines = log.read_text().splitlines()
    return sum(" os.rename " in f" {line}" and line.endswith(ending) for line in lines)


@pytest.fixture(scope="module", params=["images", "rows"])
def case(request, tmp_path_factory) -> Case:
    folder, kind = tmp_path_factory.mktemp("kill"), KINDS[request.param]
    whole = Case(kind, kind.make(folder / "in"), {})
    output = folder / "out"
    ended = whole.run(output, log=folder / "log")
    assert ended.code == 0, ended.stderr
    assert ended.parts()[0] >= 16
    files = check_dataset(output)  # with no build folder left
    lines = files["rejects.jsonl"].splitlines()
    assert sorted(json.loads(line)["error"] for line in lines) == kind.rejects
    if kind.stage == "runs":
        assert renamed(folder / "log", ".run") == RUNS
    return Case(kind, whole.source, files)


def only(name: str) -> pytest.MarkDecorator:
    """Run a test for one kind of input."""
    return pytest.mark.parametrize("case", [name], indirect=True)


# Path that is about to be changed, and the number of changes from there.
MOMENTS = [("", 3), ("/runs/", 20), ("/parts/", 9), ("/shards/", 2), ("/gen-", 4)]
SIGNALS = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}
SIGNALLED = [
    ("images", MOMENTS[0], signal.SIGINT),
    ("images", MOMENTS[2], signal.SIGTERM),
    ("images", MOMENTS[3], signal.SIGINT),
    ("images", MOMENTS[4], signal.SIGINT),
    ("rows", MOMENTS[1], signal.SIGTERM),
    ("rows", MOMENTS[2], signal.SIGINT),
    ("rows", MOMENTS[4], signal.SIGKILL),
]
EVERY = [
    (kind, moment, number)
    for kind in KINDS
    for moment in MOMENTS
    for number in SIGNALS
    if kind == "rows" or moment[0] != "/runs/"
]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("case", "moment", "number"), EVERY if SOAK else SIGNALLED, indirect=["case"]
)
def test_resumes_after_a_signal(case, tmp_path, moment, number):
    output = tmp_path / "out"
    command = case.stop(output, since=moment[0], at=(moment[1],))
    command.send(number)
    command.send(signal.SIGCONT)
    ended = command.wait()
    assert ended.code == SIGNALS[number]
    assert ended.stdout == ""
    if number != signal.SIGKILL:
        assert ended.said == "shardmill: interrupted; run again to resume.\n"
    assert case.finished(output) or moment[1] < 6
    case.resume(output)


IN_FOLDER = """
import tempfile
tempfile.tempdir = None  # that of the environment
from shardmill.pipelines import cli
raise SystemExit(cli.main({argv}))
"""
PREPROCESSING = """
def preprocessing_fn(inputs):
    return dict(inputs)
"""


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*KINDS, "preprocessing"])
def test_a_terminated_build_leaves_no_temporary_folder(name, tmp_path, monkeypatch):
    """SIGTERM, as schedulers send it, before some changes of the file system."""
    kind, output, temporary = KINDS.get(name, KINDS["rows"]), tmp_path / "out", tmp_path / "tmp"
    argv = kind.argv(kind.make(tmp_path / "in"), output)
    moments = [2, 3, 4, 5, 8, 40, 90]
    if name == "preprocessing":
        (tmp_path / "pp.py").write_text(PREPROCESSING)
        argv.append(f"--preprocessing={tmp_path / 'pp.py'}")
        moments = [4, 120]
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    codes = []
    for number in range(1, 200) if SOAK else moments:
        shutil.rmtree(output, ignore_errors=True)
        watch = Watched(tmp_path, at=(number,), number=signal.SIGTERM)
        ended = zygote().start(code=IN_FOLDER.format(argv=argv), watch=watch).wait()
        codes.append(ended.code)
        folders = {each.name for each in temporary.iterdir() if each.is_dir()}
        assert folders <= {TEMPORARY.name}, number
    assert {*codes} <= {143, -signal.SIGTERM, 0}
    assert 143 in codes


def test_a_signal_that_another_thread_gets_is_delayed():
    """Else the temporary folder of a pipeline is left if it comes while that is made."""
    done, numbers = threading.Event(), []
    thread = threading.Thread(target=done.wait)
    thread.start()
    before = signal.signal(signal.SIGTERM, lambda number, _: numbers.append(number))
    try:
        with delayed_signals():
            signal.pthread_kill(thread.ident, signal.SIGTERM)
            done.wait(0.1)
            assert not numbers
        assert numbers == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
        done.set()


@only("images")
def test_second_interrupt_kills_the_command(case, tmp_path):
    """A thread makes change 61, unless the first Ctrl-C has ended the command before."""
    for number in range(10):
        output = tmp_path / str(number)
        command = case.stop(output, at=(60, 61))
        command.send(signal.SIGINT)
        command.send(signal.SIGCONT)
        if command.wait_stopped():
            break
        assert command.ended.code == 130
    command.send(signal.SIGINT)
    command.send(signal.SIGCONT)
    ended = command.wait()
    assert (ended.code, ended.said) == (-signal.SIGINT, "")
    case.resume(output)


def processes_of(group: int) -> list[str]:
    """Return the processes of a process group, without zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


@pytest.mark.nightly
@only("images")
def test_resumes_in_new_processes(case, tmp_path):
    """Ctrl-C to the whole process group, then SIGKILL, then a build to the end."""
    output = tmp_path / "out"
    for number in (signal.SIGINT, signal.SIGKILL):
        process = start_shardmill(*case.kind.argv(case.source, output), process_group=0)
        before = case.finished(output)
        while case.finished(output) < before + 3 and process.poll() is None:
            time.sleep(0.005)
        os.killpg(process.pid, number)
        stdout, stderr = process.communicate(timeout=60)
        assert (stdout, process.returncode) == ("", SIGNALS[number])
        if number == signal.SIGINT:
            assert stderr == "shardmill: interrupted; run again to resume.\n"
        assert not processes_of(process.pid)
    assert case.finished(output) >= 6
    case.resume(output)


# Damaged parts and runs.


def copy_sidecar(path: Path, folder: str = "") -> None:
    """Overwrite a sidecar with another one of its stage, or of another folder."""
    others = sorted((path.parent.parent / folder if folder else path.parent).glob("*.json"))
    shutil.copy(next(other for other in others if other != path), path)


DAMAGES = {
    "empty sidecar": lambda path: path.write_bytes(b""),
    "truncated sidecar": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "garbage sidecar": lambda path: path.write_bytes(b"\x00\xff" * 40),
    "sidecar of another type": lambda path: path.write_text("[1, 2]"),
    "sidecar with a flipped bit": flip,
    "sidecar of another part or run": copy_sidecar,
    "missing payload": lambda path: payload_of(path).unlink(),
    "truncated payload": lambda path: os.truncate(payload_of(path), 50),
    "payload with a flipped bit": lambda path: flip(payload_of(path)),
    "images: sidecar with a wrong count": miscount,
    "images: empty payload": lambda path: os.truncate(payload_of(path), 0),
    "rows: sidecar of a part": lambda path: copy_sidecar(path, "parts"),
    "rows: missing sidecar": Path.unlink,
}


@pytest.fixture(scope="module")
def unpublished(case, tmp_path_factory) -> Path:
    """Return a build with parts and shards that failed because of its rejects."""
    output = tmp_path_factory.mktemp("kill") / "out"
    assert case.run(output, "--max_reject_fraction=0").code == 1
    return output


@pytest.mark.sweep
@pytest.mark.parametrize("turn", range(len(DAMAGES) if SOAK else 2))
def test_writes_only_damaged_files_again(case, unpublished, tmp_path, turn):
    """Each damage affects a different part or run."""
    output, kind = tmp_path / "out", "rows" if case.kind.stage == "runs" else "images"
    shutil.copytree(unpublished, output)
    names = [name for name in DAMAGES if ":" not in name or name.startswith(f"{kind}:")]
    chosen = names[turn : turn + 1] if SOAK else names[turn::2]
    for name, sidecar in zip(chosen, case.sidecars(output)[: len(chosen)], strict=True):
        DAMAGES[name](sidecar)
    assert case.complete(output)[1] == len(chosen)


@only("rows")
@pytest.mark.parametrize("damage", [flip, lambda path: os.truncate(path, 60)])
def test_reports_a_run_that_is_damaged_before_the_merge(case, tmp_path, damage):
    """The run is damaged while the build is stopped before its first part; a rerun repairs it."""
    output = tmp_path / "out"
    command = case.stop(output, since="/parts", at=(1,))
    damage(payload_of(case.sidecars(output)[2]))
    command.send(signal.SIGCONT)
    ended = command.wait()
    assert ended.code == 1
    assert "is damaged" in ended.sentence
    assert "run again" in ended.sentence
    assert case.complete(output)[1] == 1


@only("rows")
def test_starts_again_if_a_run_is_deleted_before_the_merge(case, tmp_path):
    """As if `clean` ran during the build: the command starts the job again by itself."""
    output = tmp_path / "out"
    command = case.stop(output, since="/parts", at=(1,))
    payload_of(case.sidecars(output)[2]).unlink()
    command.send(signal.SIGCONT)
    assert command.wait().code == 0
    assert check_dataset(output) == case.wanted


# Bundles that run more than once.


def tasks_of(source: Path, output: Path):
    """Return spec and units of a job, as its workers receive them."""
    schema = str(source / "schema.pbtxt")
    job = resolve(
        RowsConfig(str(source), str(output), schema=schema, label="word", max_reject_fraction=0.2)
    )
    files = [job.spec.source.inspect(ref) for ref in match_now(job.match)[0]]
    census = Census()
    for file in files:
        count_file(census, file)
    tasks = [
        tuple(unit) for file in files if not file.ref.error for unit in job.spec.source.units(file)
    ]
    assert plan_rows(census, job.spec).status == "build"
    return job.spec, tasks


def test_concurrent_attempts_at_a_range_return_the_same_segments(tmp_path):
    """Beam may run a bundle again, or twice concurrently."""
    spec, tasks = tasks_of(make_tables(tmp_path / "in"), tmp_path / "out")
    assert len(tasks) == RUNS

    def attempt(task) -> list[str]:
        return [repr(item) for item in write_runs(task, spec) if isinstance(item, tuple)]

    with ThreadPoolExecutor(8) as threads:
        for task in tasks:
            found = list(threads.map(attempt, [task] * 8))
            assert found[0]
            assert found == [found[0]] * 8
    folder = build_folder(tmp_path / "out") / "runs"
    assert len(list(folder.iterdir())) == 2 * RUNS  # a sidecar and its payload each
    payloads = {payload_of(path) for path in folder.glob("*.json")}
    assert payloads == set(folder.glob("*.run"))


def test_too_many_splits_reach_the_command_as_a_value(tmp_path):
    """A runner would repeat what raises an error."""
    path = tmp_path / "in.csv"
    path.write_text("split,x\n" + "".join(f"s{row},1\n" for row in range(101)))
    job = resolve(RowsConfig(str(path), str(tmp_path / "ds"), split_by="split"))
    (unit,) = job.spec.source.units(job.spec.source.inspect(match_now(job.match)[0][0]))
    (found,) = write_runs(tuple(unit), job.spec)
    assert "--split_by=split names more than 100 splits" in found.value.counts.fatal


PREPROCESSING = """
import tensorflow_transform as tft

def preprocessing_fn(inputs):
    return {"value": tft.scale_to_z_score(inputs["value"]), "id": inputs["id"]}
"""


@pytest.mark.skipif(not SOAK, reason="TensorFlow starts slowly")
@pytest.mark.parametrize("moment", [("/transforms/", 2), ("/transforms/", 30), ("/runs/", 9)])
def test_resumes_after_being_killed_during_the_analysis(tmp_path, moment):
    source = make_tables(tmp_path / "in")
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
        folder = (folder / "current").resolve()
        found = folder.rglob("*.gz"), folder.rglob("schema.pbtxt")
        return {str(p.relative_to(folder)): p.read_bytes() for each in found for p in each}

    assert files(output) == files(whole)
    assert len(files(whole)) > 2
    assert not list(output.glob(".build-*"))
