"""Signals in commands that build nothing: rollback, clean and verify."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

import shardmill
from tests.support.fault_tools import (
    SOAK,
    Watched,
    built,
    check_dataset,
    check_published,
    images,
    make_source,
    zygote,
)

pytestmark = pytest.mark.heavy

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    """Return a dataset with an earlier version, and the parts of a build that failed."""
    folder = tmp_path_factory.mktemp("signals")
    source, output = make_source(folder / "in"), folder / "out"
    built(source, output)
    built(source, output, "--overwrite", "--seed=5")
    failed = images(source, output, "--overwrite", "--seed=6", "--max_reject_fraction=0")
    failed.remove("--max_reject_fraction=0.2")
    assert zygote().run(*failed).code == 1
    return output


def copy_of(dataset: Path, folder: Path) -> Path:
    return Path(shutil.copytree(dataset, folder, symlinks=True))


COMMANDS = {"rollback": ["rollback"], "clean": ["clean", "--older_than=0"]}


@pytest.mark.sweep
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_before_each_change(name, number, dataset, tmp_path):
    """The published dataset is one of both versions; the same command then succeeds."""
    words, output = COMMANDS[name], tmp_path / "out"
    left = [path.name for path in dataset.glob(".build-*")]
    assert len(left) == 1
    versions = [check_dataset(dataset, left)]
    copy_of(dataset, output)
    watch = Watched(output, log=tmp_path / "log")
    assert zygote().run(*words, str(output), watch=watch).code == 0
    versions.append(check_dataset(output, left))
    changes = len((tmp_path / "log").read_text().splitlines())
    assert changes > 1
    chosen = range(1, changes + 1)
    for change in chosen if SOAK or changes < 8 else (*chosen[:2], changes // 2, *chosen[-2:]):
        shutil.rmtree(output)
        copy_of(dataset, output)
        watch = Watched(output, at=(change,), number=number)
        ended = zygote().run(*words, str(output), watch=watch)
        expected = 130 if number == signal.SIGINT else -number
        assert ended.code == expected, (change, ended)
        assert not ended.stdout
        if number == signal.SIGINT:
            assert ended.said == "shardmill: interrupted.\n"
        else:
            assert ended.said == ""
        assert check_published(output) in versions, change
        assert zygote().run(*words, str(output)).code == 0
        assert zygote().run("verify", str(output)).code == 0
        assert zygote().run("clean", "--older_than=0", str(output)).code == 0
        assert check_dataset(output) in versions, change


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """Return a dataset that several processes check."""
    output = tmp_path_factory.mktemp("large") / "ds"
    values = [os.urandom(1 << 20) for _ in range(4)]
    shardmill.write({"x": values}, output, num_shards=2, compression="none")
    return output


def living(mark: str) -> int:
    """Return the number of processes with a mark in their environment."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            count += mark.encode() in path.read_bytes()
        except OSError:  # it has ended
            continue
    return count


@pytest.mark.sweep
@pytest.mark.parametrize("number", SIGNALS)
def test_verify_leaves_no_process(number, large):
    """The signal comes when the processes of the check run."""
    mark = f"mark-{uuid.uuid4().hex}"
    path = os.environ["PATH"] + os.pathsep + f"/{mark}"
    code = "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    code += "from shardmill.transforms.runtime import process_pool\n"
    code += "process_pool.WORTH_PROCESSES = 0\n"
    code += "from shardmill.pipelines.cli import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "verify", "--processes=2", str(large)],
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while living(mark) < 3 and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    expected = 130 if number == signal.SIGINT else -number
    assert (process.returncode, stdout) == (expected, ""), stderr
    if number == signal.SIGINT:  # else a process that is being started says that its parent died
        assert "Traceback" not in stderr
    limit = time.monotonic() + 60
    while living(mark):
        assert time.monotonic() < limit
        time.sleep(0.01)


LOST = """
import os, signal, sys, time, weakref
from shardmill.pipelines import run

run._AGAIN_SECONDS = 0.3

def send(_):
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(0.01)  # Python runs the handler here

class Finalized:
    __del__ = send

class Held:
    pass

try:
    with run._interruptible():
        held = Finalized() if sys.argv[2] == "finalizer" else Held()
        if sys.argv[2] == "weak reference":
            reference = weakref.ref(held, send)
        del held
        print("lost", flush=True)
        time.sleep(60)
except run.Interrupted as error:
    sys.exit(error.code)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", ["weak reference", "finalizer"])
def test_a_signal_whose_error_python_drops_still_ends_the_run(place, number):
    """As one of Airflow, or of a lost worker, which no one sends again."""
    command = [sys.executable, "-c", LOST, str(int(number)), place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.stdout == "lost\n"
    assert done.returncode == 128 + number
    assert not done.stderr
