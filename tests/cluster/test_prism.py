"""On Prism every command writes the same bytes as in memory, and its server ends with it."""

import contextlib
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import apache_beam as beam
import psutil
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from shardmill.pipelines.write_dataset import WriteDataset
from tests.conftest import ROOT, shardmill, start_shardmill
from tests.support.element_tools import OPTIONS, random_elements, write
from tests.support.fault_tools import Ended
from tests.support.flink_cluster import counters_in, finished_parts, wait_until
from tests.support.hostile_files import hostile_environment
from tests.support.readers import dataset_files
from tests.support.worker_failures import FAILURES, failing_build

pytest_plugins = ["tests.support.flink_cluster", "tests.support.worker_failures"]

PRISM = Path(os.environ.get("PRISM", ROOT / ".cache" / "bin" / "prism"))
FLAGS = ["--runner=PrismRunner", f"--prism_location={PRISM}"]
# Progress lines on stderr.
PROGRESS_LINES = re.compile(
    r"^(?:starting|reading|encoding|assembling|running)\b.*\n", re.MULTILINE
)


@pytest.fixture(autouse=True)
def _installed():
    if not PRISM.exists():
        pytest.skip(f"Prism is not at {PRISM}: run `make test-prism`")


def servers(client: int) -> list[psutil.Process]:
    """Return the Prism processes that a command started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "prism" and process.ppid() == client:
                found.append(process)
    return found


@pytest.fixture
def build(image_case, tmp_path):
    """Start a build; yield its process, its server and its output once it has finished parts.

    Its temporary folder is ``tmp``.
    """
    output, temporary = tmp_path / "out", tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    client = start_shardmill(*image_case.args(output), *FLAGS, env=environment)
    wait_until(lambda: finished_parts(output) >= 5 or client.poll() is not None)
    assert client.poll() is None, client.stderr.read()
    (server,) = servers(client.pid)
    yield client, server, output
    client.kill()
    client.communicate()


def resume(case, output: Path) -> None:
    before = finished_parts(output)
    done = shardmill(*case.args(output), *FLAGS)
    assert done.returncode == 0, done.stderr
    made, found = Ended(0, done.stdout, done.stderr).parts()
    assert made + found == case.parts
    assert found >= before >= 5
    case.check(output)


_ATTEMPTS = 8  # on a busy machine Prism has lost counters in three runs one after the other


def are_lost(found: dict[str, str], expected: dict[str, str]) -> bool:
    """Return whether counters lack those of some bundles; they have all names, and none is larger.

    If two bundles end before Prism knows the names of their counters, it keeps the values of one
    (``metricsStore.contributeMetrics`` of Beam 2.77).
    """
    assert found.keys() == expected.keys()
    for name, value in found.items():
        number, limit = (
            int(text.removeprefix("count ").split()[0]) for text in (value, expected[name])
        )
        assert 0 <= number <= limit, name
    return found != expected


@pytest.mark.parametrize(
    "name",
    [
        "image_case",
        "archive_case",
        "boxes_case",
        "rows_case",
        "arrays_case",
        "parquet_case",
        "jsonl_case",
    ],
)
def test_the_same_bytes(name, request, tmp_path):
    case, output = request.getfixturevalue(name), tmp_path / "out"
    for _ in range(_ATTEMPTS):
        shutil.rmtree(output, ignore_errors=True)
        done = shardmill(*case.args(output), *FLAGS, "--debug")
        assert done.returncode == 0, done.stderr
        assert Ended(0, done.stdout, done.stderr).parts() == (case.parts, 0)
        case.check(output)
        if not are_lost(counters_in(done.stderr), case.counters):
            break
    assert counters_in(done.stderr) == case.counters
    again = shardmill(*case.args(output), *FLAGS)
    assert again.returncode == 0, again.stderr
    assert again.stdout == f"{output} is up to date: nothing was written.\n"
    assert PROGRESS_LINES.sub("", again.stderr) == ""


@pytest.mark.parametrize("failure", FAILURES)
def test_a_worker_without_disk_or_memory_is_one_sentence(failure, small_disk, tmp_path):
    args, words = failing_build(failure, tmp_path, small_disk)
    done = shardmill(*args, *FLAGS, env=hostile_environment())
    assert done.returncode == 1
    message = PROGRESS_LINES.sub("", done.stderr)
    assert words in message
    assert message.startswith("shardmill: ")
    assert message.count("\n") == 1


def test_elements_have_the_same_bytes(tmp_path):
    elements = random_elements(300)
    write(tmp_path / "here", elements)
    options = PipelineOptions([f"--prism_location={PRISM}", "--environment_type=LOOPBACK"])
    with beam.Pipeline("PrismRunner", options) as pipeline:
        made = pipeline | beam.Create(elements[::-1])
        _ = made | WriteDataset(tmp_path / "there", **OPTIONS)
    assert dataset_files(tmp_path / "there") == dataset_files(tmp_path / "here")


def test_count(image_case, tmp_path):
    folder = Path(image_case.flags[1].partition("=")[2]).parent / "in-memory"
    for name, flags in (("here", []), ("there", FLAGS)):
        done = shardmill("count", f"--input={folder}", f"--manifest={tmp_path / name}.json", *flags)
        assert done.returncode == 0, done.stderr
    here, there = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("here", "there")
    )
    assert here["written"] == sum(split["num_examples"] for split in there["splits"].values())
    for manifest in (here, there):
        manifest["build"].pop("runner")
        manifest["build"].pop("finished")
    assert there == here


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=str)
def test_the_server_ends_with_its_command(number, build, image_case):
    client, server, output = build
    client.send_signal(number)
    out, err = client.communicate(timeout=60)
    message = PROGRESS_LINES.sub("", err)
    if number == signal.SIGKILL:
        assert client.returncode == -signal.SIGKILL
    else:
        assert client.returncode == 128 + number
        assert re.fullmatch(r"shardmill: interrupted.*; run again to resume\.\n", message), message
        assert not list((output.parent / "tmp").iterdir())
    assert out == ""
    wait_until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, 10)
    resume(image_case, output)


@pytest.mark.parametrize("pause", [0.02, 0.3, 1.05])
def test_a_second_interrupt_ends_the_command_at_once(pause, build, image_case):
    """Also while Beam stops its server."""
    client, server, output = build
    client.send_signal(signal.SIGINT)
    time.sleep(pause)
    client.send_signal(signal.SIGINT)
    out, err = client.communicate(timeout=10)
    assert (client.returncode, out) in ((130, ""), (-signal.SIGINT, ""))
    assert "Traceback" not in err
    wait_until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, 10)
    resume(image_case, output)


def test_a_whole_run_leaves_no_temporary_folder(image_case, tmp_path):
    (tmp_path / "tmp").mkdir()
    args = [*image_case.args(tmp_path / "out"), *FLAGS]
    done = shardmill(*args, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")})
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "tmp").iterdir())


def test_its_server_dies(build, image_case):
    """One sentence, and the next run resumes."""
    client, server, output = build
    server.kill()
    out, err = client.communicate(timeout=120)
    assert client.returncode == 1, err
    assert out == ""
    message = PROGRESS_LINES.sub("", err)
    assert message.startswith("shardmill: ")
    assert message.count("\n") == 1
    assert "run again to resume" in message
    resume(image_case, output)
