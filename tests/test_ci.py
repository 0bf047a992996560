"""The script of continuous integration, with a `make` that writes down its targets."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.conftest import ROOT

MAKE = """#!/bin/sh
echo "output of $1"; echo "$1" >> targets
case $1 in
  $BAD) exit 3 ;;
  $HUNG) (trap "" INT TERM; exec setsid sleep 300) & sleep 300 ;;
esac
"""
STEPS = ["servers", "environment", "lint", "types", "docs", "demo", "test-all"]
SERVERS = [
    "test-airflow",
    "test-prism",
    "dist",
    "test-wheel",
    "test-flink",
    "test-gcs",
    "test-dataflow",
]


@pytest.fixture
def start(tmp_path):
    """Start the script in a separate folder."""
    (tmp_path / "bin").mkdir()
    for name in ("make", "uv"):
        (tmp_path / "bin" / name).write_text(MAKE)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")

    def start_script(**env: str) -> subprocess.Popen[str]:
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        return subprocess.Popen(
            [tmp_path / ".ci" / "run"],
            env={**os.environ, "BAD": "", "HUNG": "", "PATH": path, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start_script


def targets(folder) -> list[str]:
    path = folder / "targets"
    return path.read_text().split() if path.exists() else []


def processes(folder) -> list[psutil.Process]:
    """Return the processes whose working directory is a folder."""
    found = psutil.process_iter(["cwd", "status"])  # None where it has ended meanwhile
    return [
        each
        for each in found
        if each.info["cwd"] == str(folder) and each.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize(
    "bad", ["", "servers", "lint", "test-all", "test-airflow", "test-dataflow"]
)
def test_runs_and_shows_all_steps_and_fails_with_any(bad, start, tmp_path):
    done = start(BAD=bad)
    out = done.communicate(timeout=60)[0]
    assert done.returncode == (1 if bad else 0), out
    assert sorted(targets(tmp_path)) == sorted([*STEPS, *SERVERS])
    shown = re.findall(r"^output of (\S+)$", out, re.MULTILINE)
    assert sorted(shown) == sorted(targets(tmp_path))
    assert shown[-len(SERVERS) :] == SERVERS
    assert out.endswith(f"failed: {bad}\n") == bool(bad)


def test_nothing_is_tested_without_an_environment(start, tmp_path):
    assert start(BAD="environment").wait(60) == 3
    assert {*targets(tmp_path)} <= {"servers", "environment"}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("hung", "number"),
    [("lint", signal.SIGTERM), ("test-all", signal.SIGINT), ("test-prism", signal.SIGTERM)],
)
def test_leaves_no_process_when_it_is_stopped(hung, number, start, tmp_path):
    """Neither one that ignores signals in another session."""
    script = start(HUNG=hung, CI_STOP_SECONDS="1")
    end = time.monotonic() + 60
    while hung not in targets(tmp_path) or len(processes(tmp_path)) < 4:
        assert time.monotonic() < end
        time.sleep(0.05)
    script.send_signal(number)
    script.communicate(timeout=60)
    assert script.returncode == 128 + number
    assert processes(tmp_path) == []


def test_the_readme_names_the_command_that_runs_all_tests():
    commands = re.findall(r"^run (make test\S*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert commands
    assert f"`{commands[0]}` runs the tests" in (ROOT / "README.md").read_text()


def test_each_group_of_tests_runs_for_each_change_or_at_night():
    makefile = (ROOT / "Makefile").read_text()
    groups = {*re.findall(r"^(test-[a-z0-9]+): ", makefile, re.MULTILINE)} - {"test-heavy"}
    scripts = "".join((ROOT / ".ci" / name).read_text() for name in ("run", "nightly"))
    assert {*re.findall(r"\btest-[a-z0-9]+", scripts)} == groups


@pytest.mark.heavy
def test_each_file_of_each_group_is_collected():
    """What runs at night only would break unseen; a collection runs no test."""
    makefile = (ROOT / "Makefile").read_text()
    globs = {*re.findall(r"tests/cluster/\S+\.py", makefile)}
    files = {str(path) for pattern in globs for path in ROOT.glob(pattern)}
    assert files == {str(path) for path in (ROOT / "tests" / "cluster").glob("test_*.py")}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *sorted(files)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    for path in files:
        assert f"{path.removeprefix(f'{ROOT}/')}::" in done.stdout
