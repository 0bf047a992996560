"""Temporary folders of runs: only those of dead processes are deleted."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from shardmill.pipelines.temporary import (
    delete_abandoned_folders,
    temporary_files_in,
    temporary_folder,
)
from tests.conftest import TEMPORARY
from tests.support.fault_tools import Watched, Zygote, images, make_source, zygote

HOLD = """
from pathlib import Path
from shardmill.pipelines.temporary import temporary_folder
with temporary_folder(until_exit=False) as folder:
    Path(folder, "file").touch()
    print(folder, flush=True)
    input()
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Return the folder for temporary files of this process and of those that it starts."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_deletes_the_folder_of_a_killed_process(temporary):
    words = [sys.executable, "-c", HOLD]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as process:
        folder = Path(process.stdout.readline().strip())
        delete_abandoned_folders()
        assert (folder / "file").exists()
        process.kill()
    assert folder.parent == temporary
    assert folder.exists()
    delete_abandoned_folders()
    assert not list(temporary.iterdir())


def test_keeps_what_is_not_of_a_run(temporary):
    """Files, links and folders of other names, as other programs and earlier releases make them."""
    elsewhere = temporary.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (temporary / "shardmill-run-abcdefgh").symlink_to(elsewhere)
    (temporary / "shardmill-run-12345678").touch()
    for name in ("beam-pipeline-temp1234", "shardmill-run-a", "shardmill-run-abcdefgh.old"):
        (temporary / name).mkdir()
    before = sorted(temporary.iterdir())
    delete_abandoned_folders()
    assert sorted(temporary.iterdir()) == before
    assert (elsewhere / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_keeps_folders_of_other_users(temporary):
    folder = temporary / "shardmill-run-abcdefgh"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    delete_abandoned_folders()
    assert folder.exists()


def test_a_new_folder_is_not_deleted_before_it_has_a_lock(temporary):
    """Other runs look for abandoned folders all the time."""
    done = threading.Event()

    def sweep():
        while not done.is_set():
            delete_abandoned_folders()

    threads = [threading.Thread(target=sweep) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(150):
            with temporary_folder(until_exit=False) as folder:
                path = Path(folder, "file")
                path.touch()
                delete_abandoned_folders()
                assert path.exists()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not list(temporary.iterdir())


def test_all_libraries_use_the_folder(temporary):
    with temporary_folder(until_exit=False) as folder, temporary_files_in(folder):
        assert tempfile.mkdtemp().startswith(folder)
    assert tempfile.gettempdir() == str(temporary)
    assert not list(temporary.iterdir())


RUN = """
import tempfile
tempfile.tempdir = None  # that of the environment
from shardmill.pipelines import cli
raise SystemExit(cli.main({argv}))
"""


@pytest.fixture
def builds() -> Zygote:
    """Return the process that forks builds, which must not be started with another TMPDIR."""
    return zygote()


@pytest.mark.heavy
def test_a_build_deletes_what_killed_builds_left(builds, temporary, tmp_path):
    source, output = make_source(tmp_path / "in"), tmp_path / "out"
    code = RUN.format(argv=images(source, output))
    left = set()
    for number in (2, 3, 4, 30, 90):
        watch = Watched(tmp_path, since="/shardmill-run-", at=(number,), number=signal.SIGKILL)
        assert builds.start(code=code, watch=watch).wait().code == -signal.SIGKILL
        left |= {path.name[:14] for path in temporary.iterdir() if path.name != TEMPORARY.name}
        shutil.rmtree(output, ignore_errors=True)
    assert left == {"shardmill-run-"}
    ended = builds.start(code=code).wait()
    assert ended.code == 0, ended.stderr
    assert {path.name for path in temporary.iterdir()} <= {TEMPORARY.name}
