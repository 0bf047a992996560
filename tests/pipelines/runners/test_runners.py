"""Runners in other processes: checks of options, progress, errors and counters."""

import io
import json
import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from apache_beam.utils.subprocess_server import JavaJarServer
from rich.console import Console

from shardmill.pipelines.report import terminal
from shardmill.pipelines.report.terminal import logged, progress_line
from shardmill.pipelines.runners.base import (
    IN_MEMORY,
    Job,
    find_runner,
    find_shardmill_error,
    kill_with_parent_prefix,
    take_runner,
    update_progress,
)
from shardmill.schemas.dataset.shard_names import DEFAULT_TEMPLATE, ShardTemplate
from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.errors import (
    InputError,
    OutputError,
    ShardmillError,
    StaleBuildError,
    UsageError,
)
from shardmill.schemas.storage import open_storage
from shardmill.transforms.publish.cleanup import find_leftovers
from shardmill.transforms.runtime import metrics
from shardmill.transforms.runtime.progress import Progress, find_total, leave_total
from shardmill.transforms.sink.placement import PlaceSpec, Series, ShardSpec
from shardmill.transforms.sink.plan import Plan
from shardmill.transforms.sink.spec import SinkSpec
from shardmill.transforms.sink.transform import announce
from tests.conftest import ROOT, make_photos, shardmill

UNUSED_PORT = "localhost:1"  # no process listens on it


def test_explains_that_beam_finds_no_job_server(tmp_path):
    with pytest.raises(RuntimeError) as caught:
        JavaJarServer.local_jar(f"http://{UNUSED_PORT}/none.jar", cache_dir=str(tmp_path))
    said = str(find_runner("FlinkRunner").explain(caught.value, None))
    assert said.startswith("Beam cannot download a job server for FlinkRunner (")
    assert "--flink_job_server_jar=FILE" in said


@pytest.mark.parametrize("name", ["FlinkRunner", "flinkrunner", "flink"])
def test_finds_runners_by_name_in_any_case(name):
    assert type(find_runner(name)).__name__ == "Flink"


def test_passes_portable_runners_and_classes_to_beam():
    runner = find_runner("PortableRunner")
    assert runner.make() == "PortableRunner"
    assert not runner.in_process
    assert runner.prepare(["--a=b"], "job-1") == ["--a=b", "--job_name=job-1"]
    assert runner.prepare(["--job_name=mine"], "job-1") == ["--job_name=mine"]
    assert find_runner(IN_MEMORY).prepare(["--a=b"], "job-1") == ["--a=b"]
    assert take_runner(["--runner", "SparkRunner", "--x"]) == ("SparkRunner", ["--x"])
    assert find_runner("company.Runner").name == "company.Runner"


# What runners say of their failures.

PYTHON = """Pipeline job-7 failed in state FAILED: java.lang.RuntimeException: Error received from SDK
Traceback (most recent call last):
  File "x.py", line 1, in process
ZeroDivisionError: division by zero
"""
JAVA = """Pipeline job-7 failed in state FAILED: java.lang.RuntimeException: Recovery is suppressed
\tat org.apache.flink.runtime.Scheduler
Caused by: org.apache.flink.runtime.JobException: failed
Caused by: java.util.concurrent.TimeoutException: The heartbeat of TaskManager x timed out.
\t... 4 more
"""
CANCELLED = "Pipeline job-7 failed in state CANCELLED: unknown error"
PAGE = Job("7", "http://flink:8081/#/job/running/7/overview")


def test_reports_failures_of_the_runner_in_one_sentence():
    runner = find_runner("FlinkRunner")
    assert runner.explain(RuntimeError(PYTHON), PAGE) is None  # a bug of ours crashes loudly
    assert runner.explain(ValueError("what"), PAGE) is None
    assert str(runner.explain(RuntimeError(CANCELLED), PAGE)) == (
        "The job was cancelled on FlinkRunner: run again to resume; see its page "
        "http://flink:8081/#/job/running/7/overview."
    )
    said = str(runner.explain(RuntimeError(JAVA), None))
    assert said == (
        "The job failed on FlinkRunner: java.util.concurrent.TimeoutException: The heartbeat of "
        "TaskManager x timed out; run again to resume."
    )


# Progress.


def test_counts_progress_by_sidecars(tmp_path):
    build = str(tmp_path / "out" / f".build-{'0' * 16}")
    progress = Progress(phase="starting", unit="parts", rejects_name="")
    update_progress(progress, build)
    assert (progress.phase, progress.total, progress.done) == ("starting", None, 0)
    assert progress_line(progress, 5.2) == "starting: 5 s"

    leave_total(build, 40)
    assert find_total(build) == 40
    update_progress(progress, build)
    assert (progress.phase, progress.total, progress.done) == ("encoding", 40, 0)

    runs = Path(build, "runs")
    runs.mkdir()
    (runs / "a.json").write_text("{}")
    update_progress(progress, build)
    assert progress.phase == "reading (1 ranges done)"

    parts = Path(build, "parts")
    parts.mkdir()
    for number in range(10):
        (parts / f"{number}.json").write_text("{}")
        (parts / f"{number}-x.part").write_text("")
    update_progress(progress, build)
    assert (progress.phase, progress.done) == ("encoding", 10)
    assert progress_line(progress, 5) == "encoding: 10 of 40 parts, 2.0 parts/s, 15 s left"

    # How many have anything in them was a guess.
    for number in range(38):
        (parts / f"{number}.json").write_text("{}")
    update_progress(progress, build)
    assert (progress.phase, progress.total, progress.done) == ("encoding", 40, 38)
    shard = Path(build, "shards", "x.shard")
    shard.parent.mkdir()
    shard.write_text("")
    update_progress(progress, build)
    assert (progress.phase, progress.total, progress.done) == ("assembling", 38, 38)
    # It is gone once the dataset is published, and what was counted stays.
    for path in (*parts.iterdir(), *runs.iterdir(), shard, Path(build, "progress.json")):
        path.unlink()
    update_progress(progress, build)
    assert (progress.phase, progress.done) == ("assembling", 38)
    assert progress_line(progress, 10) == "assembling: 38 of 38 parts, 3.8 parts/s"


def test_json_log_has_the_counts_of_progress(monkeypatch, tmp_path):
    """Each line is an object: progress has fields, other text has its level."""
    progress = Progress(phase="encoding", done=10, total=40, rejects=1)
    progress.notices.append("job: 1")
    monkeypatch.setattr(terminal, "_FIRST_PAUSE", 0.05)
    with (tmp_path / "log").open("w") as file:
        monkeypatch.setattr("sys.stderr", file)

        def command() -> int:
            with terminal.show_progress(progress):
                time.sleep(0.2)
            print("shardmill: it failed.", file=sys.stderr)
            raise ValueError("a bug")

        assert logged(command) == 1
    entries = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert (entries[0]["level"], entries[0]["message"]) == ("info", "job: 1")
    counts = {"phase": "encoding", "done": 10, "total": 40, "rejects": 1}
    assert counts.items() < entries[1].items()
    assert entries[1]["message"].startswith("encoding: 10 of 40 images")
    assert [(each["level"], each["message"]) for each in entries[-2:]] == [
        ("error", "it failed."),
        ("error", "a bug"),
    ]
    assert "ValueError: a bug" in entries[-1]["traceback"]


def test_lines_of_progress_follow_each_other_while_notices_are_awaited(monkeypatch):
    """Notices are looked for each second, lines are printed less often."""
    now = 0.0

    class Ended:
        def wait(self, seconds: float) -> bool:
            nonlocal now
            now += seconds
            return now > 100

    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: now))
    output = io.StringIO()
    progress = Progress(phase="encoding", done=10, total=40)
    terminal._print_lines(progress, Ended(), Console(file=output, width=200))
    lines = output.getvalue().splitlines()
    assert 2 <= len(lines) <= 20
    assert all(line.startswith("encoding: 10 of 40 images") for line in lines)


def test_estimates_the_number_of_parts_that_are_not_empty(tmp_path):
    """50 inputs in 64 parts leave some parts empty; many inputs leave none."""
    spec = SinkSpec(
        str(tmp_path),
        "0" * 16,
        PlaceSpec(Splits.parse("train:1")),
        ShardSpec(ShardTemplate(DEFAULT_TEMPLATE)),
    )
    train = Series("train", "")
    plan = Plan("build", parts={train: 64})
    for refs, wanted in ((50, range(32, 37)), (100_000, range(64, 65))):
        announce(spec, plan, "encoding", refs, {train: (refs, 0)})
        assert find_total(spec.build) in wanted
    announce(spec, plan, "encoding", 0)
    assert find_total(spec.build) == 64
    # Where nothing is built nothing is written.
    (tmp_path / spec.build_name / "progress.json").unlink()
    announce(spec, Plan("up_to_date", parts={train: 64}), "encoding", 0)
    assert find_total(spec.build) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"parts": "x"}', '{"other": 1}', "null"])
def test_ignores_a_malformed_total(text, tmp_path):
    (tmp_path / "progress.json").write_text(text)
    assert find_total(str(tmp_path)) is None


def test_clean_deletes_the_file_of_the_total(tmp_path):
    """Also in a folder whose name does not identify a build."""
    leave_total(str(tmp_path / ".build-mine"), 3)
    found = find_leftovers(open_storage(str(tmp_path)), str(tmp_path))
    assert [item.name for item in found.leftovers] == [".build-mine"]
    assert not found.foreign


# Ends.


@pytest.mark.skipif(not kill_with_parent_prefix(), reason="there is no setpriv")
def test_kernel_kills_servers_with_the_command(tmp_path):
    """The wrapper of Prism passes its arguments on."""
    program = tmp_path / "a 'quoted' name"
    program.write_text('#!/bin/sh\necho "$@" > "$0.args"\n')
    program.chmod(0o755)
    runner = find_runner("PrismRunner")
    (location,) = (
        flag.partition("=")[2]
        for flag in runner.prepare([f"--prism_location={program}"], "job-1")
        if flag.startswith("--prism_location=")
    )
    assert os.system(f"'{location}' --a 'b c'") == 0
    assert Path(f"{program}.args").read_text() == "--a b c\n"


# Counters.


def test_docs_list_all_counters():
    table = (ROOT / "docs" / "runners.md").read_text().partition("| name | what |")[2]
    documented = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    known = [
        value.metric_name.name for value in vars(metrics).values() if hasattr(value, "metric_name")
    ]
    assert sorted(documented) == sorted(known)


@pytest.mark.heavy
def test_prints_counters(tmp_path):
    photos = make_photos(tmp_path / "photos", {"cat": 5})
    (photos / "cat" / "bad.jpg").write_text("no image")
    flags = ["--image_size=8", "--splits=train:1", "--num_shards=1", "--max_reject_fraction=1"]
    done = shardmill(
        "images", f"--input={photos}", f"--output={tmp_path / 'out'}", *flags, "--debug"
    )
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^counter (\w+): (.*)$", done.stderr, re.MULTILINE))
    part_bytes, input_bytes, took = (
        found.pop(name) for name in ("part_bytes", "input_bytes", "encode_milliseconds")
    )
    assert found == {
        "examples_encoded": "5",
        "inputs_rejected": "1",
        "parts_made": "1",
        "shards_assembled": "1",
    }
    size = sum(path.stat().st_size for path in (tmp_path / "out/current").glob("*.gz"))
    total = int(re.fullmatch(r"count 1 sum (\d+) min \d+ max \d+", part_bytes).group(1))
    assert total == size > 0
    sizes = [path.stat().st_size for path in photos.rglob("*.jpg")]
    spread = f"sum {sum(sizes)} min {min(sizes)} max {max(sizes)}"
    assert input_bytes == f"count {len(sizes)} {spread}"
    milliseconds = int(re.fullmatch(r"count 1 sum (\d+) min \1 max \1", took).group(1))
    assert 0 <= milliseconds < 60_000
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["written"] == 5


STORED = "Traceback (most recent call last):\n  File x\nshardmill.schemas.errors."


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (StaleBuildError("Another builder."), StaleBuildError, "Another builder."),
        (OutputError("Full. [while running 'A/B']"), OutputError, "Full."),
        (RuntimeError(f"{STORED}OutputError: Full.\n"), OutputError, "Full."),
        (
            RuntimeError(f"{STORED}StaleBuildError: A. [while running 'A/B']\n\n"),
            StaleBuildError,
            "A.",
        ),
        (RuntimeError(f"{STORED}StorageError: A.\n{STORED}InputError: B.\n"), InputError, "B."),
        (RuntimeError(f"{STORED}UsageError: A.\n"), UsageError, "A."),
        (RuntimeError(f"{STORED}GoneError: A.\n"), ShardmillError, "A."),
    ],
)
def test_finds_an_error_that_a_runner_returned_as_text(error, kind, message) -> None:
    found = find_shardmill_error(error)
    assert type(found) is kind
    assert str(found) == message


def test_ignores_errors_of_other_code() -> None:
    assert find_shardmill_error(RuntimeError(PYTHON)) is None
    assert find_shardmill_error(ValueError("schemas.errors.OutputError: x")) is None
