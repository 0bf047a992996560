"""Concurrent builders of one output, and concurrent workers on one part."""

import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from shardmill.schemas import Reject
from shardmill.schemas.storage.local import LocalStorage
from shardmill.transforms import Example
from shardmill.transforms.sink.parts import PlannedPart, find_part, parse_sidecar, write_part
from shardmill.transforms.sink.placement import PartKey
from tests.support import fault_tools as faults

pytestmark = pytest.mark.heavy

ONE, OTHER = ("--shard_examples=16",), ("--shard_examples=16", "--seed=9")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return faults.make_source(tmp_path_factory.mktemp("races") / "photos")


@pytest.fixture(scope="module")
def wanted(source, tmp_path_factory) -> list[dict[str, bytes]]:
    """The files of each of the two configs, built alone."""
    found = []
    for name, flags in (("one", ONE), ("other", OTHER)):
        output = tmp_path_factory.mktemp("races") / name
        faults.built(source, output, *flags)
        found.append(faults.check_dataset(output))
    return found


def race(
    source: Path, output: Path, *configs: tuple[str, ...], offset: float
) -> list[faults.Ended]:
    """Start one builder per config, some time apart, and wait for all."""
    commands = []
    for flags in configs:
        commands.append(faults.zygote().start(*faults.images(source, output, *flags)))
        time.sleep(offset)
    return [command.wait() for command in commands]


def check_ended(ended: faults.Ended) -> bool:
    """Assert that a builder succeeded or failed with one sentence; return which."""
    if ended.code == 0:
        assert ended.said == ""
        assert "Published" in ended.stdout or "up to date" in ended.stdout
        return True
    assert ended.code == 1
    assert "different inputs or options" in ended.sentence or "run again" in ended.sentence
    return False


def leftovers(output: Path) -> set[str]:
    return {path.name for path in output.glob(".build-*")}


OFFSETS = [number * 0.02 for number in range(60)] if faults.SOAK else [0.0, 0.1, 0.5]


@pytest.mark.sweep
@pytest.mark.parametrize("offset", OFFSETS)
def test_two_datasets_with_overwrite(source, wanted, tmp_path, offset):
    output = tmp_path / "out"
    configs = [(*flags, "--overwrite") for flags in (ONE, OTHER)]
    ended = [*map(check_ended, race(source, output, *configs, offset=offset))]
    assert any(ended)
    left = leftovers(output)
    assert len(left) == ended.count(False)
    assert faults.check_dataset(output, left) in wanted


def start_stopped(source: Path, output: Path, *flags: str, since: str = "/gen-", at: int = 1):
    """Start a builder that stops itself right before a change to the disk."""
    watch = faults.Watched(output, since=since, at=(at,), number=signal.SIGSTOP)
    command = faults.zygote().start(*faults.images(source, output, *flags), watch=watch)
    assert command.wait_stopped()
    return command


def resume(command) -> faults.Ended:
    command.send(signal.SIGCONT)
    return command.wait()


@pytest.mark.sweep
@pytest.mark.parametrize("at", range(1, 15) if faults.SOAK else [2, 5, 7])
def test_builders_wait_for_a_running_publication(source, wanted, tmp_path, at):
    """They do not delete its generation, which no manifest names yet."""
    output = tmp_path / "out"
    first = start_stopped(source, output, *ONE, at=at)
    second = faults.zygote().start(*faults.images(source, output, *ONE))
    third = faults.zygote().start(*faults.images(source, output, *OTHER))
    time.sleep(0.2)  # usually enough for both to reach the output
    assert "Published" in resume(first).stdout
    assert "up to date" in second.wait().stdout
    assert not check_ended(third.wait())
    assert faults.check_dataset(output, leftovers(output)) == wanted[0]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("since", "at"), [("/shards/", 1), ("/parts", 1), ("/parts", 2), ("/parts", 40), ("/parts", 80)]
)
def test_slower_builder_of_the_same_dataset_is_up_to_date(source, wanted, tmp_path, since, at):
    """The faster builder deletes the build folder; files written after that are deleted too."""
    output = tmp_path / "out"
    first = start_stopped(source, output, *ONE, since=since, at=at)
    assert "Published" in faults.built(source, output, *ONE).stdout
    assert "up to date" in resume(first).stdout
    assert faults.check_dataset(output) == wanted[0]


@pytest.fixture
def grown(source, tmp_path) -> Path:
    """The photos and one more."""
    shutil.copytree(source, tmp_path / "more")
    shutil.copy(tmp_path / "more/cat/000.jpg", tmp_path / "more/cat/new.jpg")
    return tmp_path / "more"


def test_up_to_date_command_keeps_the_parts_of_other_inputs(source, grown, tmp_path):
    """Builds with the same options and other inputs share a build folder."""
    output = tmp_path / "out"
    faults.built(source, output, *ONE)
    command = faults.images(grown, output, *ONE, "--overwrite")
    watch = faults.Watched(output, since="/shards/", at=(1,))
    assert faults.zygote().run(*command, watch=watch).code == -signal.SIGKILL
    parts = len(list(faults.build_folder(output).glob("parts/*.json")))
    assert "up to date" in faults.built(source, output, *ONE).stdout
    assert len(list(faults.build_folder(output).glob("parts/*.json"))) == parts
    assert faults.zygote().run(*command).parts() == (0, parts)


def test_up_to_date_command_during_a_publication_with_the_same_options(source, grown, tmp_path):
    output = tmp_path / "out"
    faults.built(source, output, *ONE)
    publisher = start_stopped(grown, output, *ONE, "--overwrite", at=3)
    other = faults.zygote().start(*faults.images(source, output, *ONE))
    time.sleep(0.2)
    assert "Published" in resume(publisher).stdout
    assert other.wait().code in (0, 1)
    faults.check_dataset(output)
    assert "up to date" in faults.built(grown, output, *ONE).stdout


JOB = PartKey("train", "", 0)


def items(count: int, gate: threading.Barrier | None):
    for number in range(count):
        if gate and number in (0, count // 2):
            gate.wait()
        if number % 7 == 3:
            yield Reject(f"k{number}", "u", "read", "decode", "no")
        else:
            yield Example(bytes([number % 256]) * 50_000, ("cat",))
    if gate:
        gate.wait()


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("packing", ["stored", "deflated", "none"])
def test_concurrent_workers_leave_one_payload_of_a_part(tmp_path, workers, packing):
    """All of them continue with the payload of the first one."""
    storage, folder = LocalStorage(), str(tmp_path / "parts")
    job = PlannedPart(JOB, "ab" * 16, folder, packing, {"codec": "1"})
    alone = write_part(storage, replace(job, folder=str(tmp_path / "alone")), items(60, None))
    for _ in range(20 if faults.SOAK else 3):
        gate = threading.Barrier(workers)
        with ThreadPoolExecutor(workers) as pool:
            started = [
                pool.submit(write_part, storage, job, items(60, gate)) for _ in range(workers)
            ]
        found = [one.result() for one in started]
        assert len({part.payload for part in found}) == 1
        assert sorted(os.listdir(folder)) == sorted([found[0].payload, f"{job.name}.json"])
        part, rejects, rows = parse_sidecar(
            (tmp_path / "parts" / f"{job.name}.json").read_bytes(), ""
        )
        assert not rows
        assert part.payload == found[0].payload
        assert (part.crc32c, part.totals.records, len(rejects)) == (alone.crc32c, 51, 9)
        assert storage.checksum(f"{folder}/{part.payload}") == part.crc32c
        assert find_part(storage, folder, job.name).payload == part.payload
        shutil.rmtree(folder)
