"""Worker processes of Beam's in-memory runner are killed, as the kernel does when memory is short."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from shardmill.schemas.dataset.shard_names import OUTCOME_PREFIX
from tests.conftest import start_shardmill
from tests.support.readers import dataset_files

SOAK = bool(os.environ.get("SHARDMILL_SOAK"))
MODULE = "apache_beam.runners.worker.sdk_worker_main"
FLAGS = ["--direct_running_mode=multi_processing", "--direct_num_workers=2", "--num_shards=3"]
ROWS = 20_000


def start(table: Path, ds: Path) -> subprocess.Popen:
    return start_shardmill("rows", table, ds, "--splits=train:1", *FLAGS)


def wait_for_worker(command: subprocess.Popen) -> psutil.Process:
    """Return a worker process as soon as there is one."""
    while command.poll() is None:
        for child in psutil.Process(command.pid).children(recursive=True):
            try:
                if MODULE in child.cmdline():
                    return child
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.01)
    raise AssertionError(command.communicate()[1])


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("table") / "table.csv"
    lines = (f"{number},word {number * 7919 % 10007}" for number in range(ROWS))
    path.write_text("\n".join(["id,text", *lines]))
    return path


@pytest.mark.nightly
@pytest.mark.parametrize("delay", [0, 1.2, 2.4] if not SOAK else [n / 10 for n in range(40)])
def test_a_killed_worker_ends_the_build_with_a_sentence(delay, table, tmp_path) -> None:
    ds = tmp_path / "ds"
    command = start(table, ds)
    worker = wait_for_worker(command)
    time.sleep(delay)
    others = psutil.Process(command.pid).children(recursive=True)
    killed = worker.is_running()
    with contextlib.suppress(psutil.NoSuchProcess):  # it ends with the build
        worker.kill()
    _, output = command.communicate(timeout=60)
    assert psutil.wait_procs(others, timeout=10)[1] == []
    assert "Traceback" not in output
    if command.returncode:  # else it was published before, also if its workers were still to end
        assert killed
        assert "shardmill: A worker process of Beam has ended" in output
        again = start(table, ds)
        _, output = again.communicate()
        assert again.returncode == 0, output
    whole = tmp_path / "whole"
    undisturbed = start(table, whole)
    assert undisturbed.communicate()
    assert undisturbed.returncode == 0
    assert dataset_files(ds) == dataset_files(whole)


@pytest.mark.nightly
def test_a_worker_that_ends_after_the_outcome_does_not_count(table, tmp_path) -> None:
    """The dataset is published then, so the command may not say that it failed."""
    ds = tmp_path / "ds"
    command = start(table, ds)
    worker = wait_for_worker(command)
    while not [*ds.glob(f"{OUTCOME_PREFIX}*.json")]:
        assert command.poll() is None
    worker.kill()
    published, output = command.communicate(timeout=60)
    assert command.returncode == 0, output
    assert "Published" in published
    assert (ds / "manifest.json").exists()
    assert not [*ds.glob(f"{OUTCOME_PREFIX}*")]


SLEEPING = """
import signal, threading, time
from shardmill.pipelines.runners.in_memory import watched_workers
from shardmill.schemas.errors import OutputError

signals = []

def record(number, frame):
    signals.append(number)
    raise KeyboardInterrupt

def fail():
    time.sleep(0.5)
    raise RuntimeError("exited with -9")

signal.signal(signal.SIGINT, record)
worker = threading.Thread(target=fail, name="run_worker")
lock = threading.Lock()
lock.acquire()
try:
    with watched_workers(signals):
        worker.start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        lock.acquire()
except OutputError as error:
    print(error)
worker.join()
"""


@pytest.mark.heavy
def test_a_killed_worker_wakes_a_main_thread_that_waits() -> None:
    """Also if another thread received the interrupt, as when this one was just about to wait."""
    command = [sys.executable, "-c", SLEEPING]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert "A worker process of Beam has ended (exited with -9)" in done.stdout
    assert done.stderr == ""


@pytest.mark.heavy
def test_workers_end_with_a_killed_command(table, tmp_path) -> None:
    command = start(table, tmp_path / "ds")
    wait_for_worker(command)
    workers = psutil.Process(command.pid).children(recursive=True)
    command.kill()
    assert psutil.wait_procs(workers, timeout=10)[1] == []
