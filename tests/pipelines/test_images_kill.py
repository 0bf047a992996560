"""Killed or interrupted builds are gone on with, and come out as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.fault_tools import (
    SOAK,
    Ended,
    Watched,
    build_folder,
    built,
    check_dataset,
    images,
    make_source,
    zygote,
)

pytestmark = pytest.mark.heavy

STEPS = 210  # changes to the file system that a whole build makes, roughly


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return make_source(tmp_path_factory.mktemp("kill") / "photos")


@pytest.fixture(scope="module")
def wanted(source, tmp_path_factory) -> dict[str, bytes]:
    """What an undisturbed build writes, of at least 16 parts."""
    output = tmp_path_factory.mktemp("kill") / "out"
    log = tmp_path_factory.mktemp("kill") / "log"
    ended = zygote().run(*images(source, output), watch=Watched(output, log=log))
    assert ended.parts()[0] >= 16
    assert len(log.read_text().splitlines()) > STEPS
    return check_dataset(output)


def finished_parts(output: Path) -> int:
    return len(list(output.glob(".build-*/parts/*.json")))


def resume(source: Path, output: Path, wanted: dict[str, bytes]) -> Ended:
    """Runs a killed build again and asserts that all is as it should be, whatever was left."""
    finished, publishing = finished_parts(output), (output / ".publish.json").exists()
    published = (output / "manifest.json").exists()
    ended = built(source, output)
    assert check_dataset(output) == wanted
    if publishing or published:
        assert "up to date" in ended.stdout
    else:
        assert ended.parts()[1] == finished
    if SOAK:
        assert "up to date" in built(source, output).stdout
    return ended


@pytest.mark.parametrize("seed", range(40 if SOAK else 3))
def test_killed_between_steps(source, wanted, tmp_path, seed):
    """SIGKILL before some change to the disk; every second build is killed twice or more."""
    output, rng = tmp_path / "out", random.Random(seed)
    for _ in range(1 + seed % 2 * rng.randint(1, 3)):
        before = finished_parts(output)
        at = rng.randint(2, STEPS)
        ended = zygote().run(*images(source, output), watch=Watched(output, at=(at,)))
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL
        assert finished_parts(output) >= before or (output / ".publish.json").exists()
    resume(source, output, wanted)


@pytest.mark.parametrize("seed", range(40 if SOAK else 2))
def test_killed_at_moments_of_the_clock(source, wanted, tmp_path, seed):
    output = tmp_path / "out"
    command = zygote().start(*images(source, output))
    time.sleep(random.Random(seed).uniform(0.1, 1.0))  # the moment of the kill
    command.send(signal.SIGKILL)
    assert command.wait().code in (0, -signal.SIGKILL)
    resume(source, output, wanted)


def start_and_stop(source: Path, output: Path, *at: int):
    """Starts a build that stops itself before the changes ``at``."""
    watch = Watched(output, at=at, number=signal.SIGSTOP)
    command = zygote().start(*images(source, output), watch=watch)
    assert command.wait_stopped()
    return command


@pytest.mark.parametrize("at", [3, 60, 120, 150, 165, 175, 185, 200] if SOAK else [3, 165, 180])
def test_interrupted_once(source, wanted, tmp_path, at):
    """Ctrl-C while parts are written, shards assembled, files moved."""
    output = tmp_path / "out"
    command = start_and_stop(source, output, at)
    command.send(signal.SIGINT)
    command.send(signal.SIGCONT)
    ended = command.wait()
    assert ended.code == 130
    assert ended.stderr == "shardmill: interrupted; run again to resume.\n"
    assert ended.stdout == ""
    resume(source, output, wanted)


def test_interrupted_twice_ends_at_once(source, wanted, tmp_path):
    """The first Ctrl-C is taken up before change 60, whose clean-up is the next change."""
    output = tmp_path / "out"
    command = start_and_stop(source, output, 60, 61)
    command.send(signal.SIGINT)
    command.send(signal.SIGCONT)
    assert command.wait_stopped()
    command.send(signal.SIGINT)
    command.send(signal.SIGCONT)
    ended = command.wait()
    assert ended.code == -signal.SIGINT
    assert ended.said == ""
    resume(source, output, wanted)


def test_terminated(source, wanted, tmp_path):
    """SIGTERM, as a scheduler sends it."""
    output = tmp_path / "out"
    command = start_and_stop(source, output, 120)
    command.send(signal.SIGTERM)
    command.send(signal.SIGCONT)
    assert command.wait().code == -signal.SIGTERM
    assert resume(source, output, wanted).parts()[1] > 0


def in_group(group: int) -> list[str]:
    """The processes of a process group that are not yet buried."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


def test_a_process_as_users_start_it(source, wanted, tmp_path):
    """Nothing forked: Ctrl-C to the whole group, then SIGKILL, then to the end."""
    output = tmp_path / "out"
    command = [sys.executable, "-m", "shardmill.pipelines.cli", *images(source, output)]
    for number in (signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
        )
        before = finished_parts(output)
        while finished_parts(output) < before + 3 and process.poll() is None:
            time.sleep(0.005)
        os.killpg(process.pid, number)
        stdout, stderr = process.communicate(timeout=60)
        assert stdout == ""
        if number == signal.SIGINT:
            assert process.returncode == 130
            assert stderr == "shardmill: interrupted; run again to resume.\n"
        else:
            assert process.returncode == -signal.SIGKILL
        assert not in_group(process.pid)
        assert build_folder(output)
    ended = resume(source, output, wanted)
    assert ended.parts()[1] >= 6
