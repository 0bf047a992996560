"""Several builders of one output, and several workers of one part, at the same time."""

import os
import random
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from shardmill.schemas.rejects import Reject
from shardmill.schemas.storage.local import LocalStorage
from shardmill.transforms.build.encoder import Example
from shardmill.transforms.build.parts import PartJob, find_part, parse_sidecar, write_part
from shardmill.transforms.build.placement import PartKey
from tests.support.fault_tools import (
    JOURNAL,
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

ONE, OTHER = ("--shard_examples=16",), ("--shard_examples=16", "--seed=9")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return make_source(tmp_path_factory.mktemp("races") / "photos")


@pytest.fixture(scope="module")
def wanted(source, tmp_path_factory) -> list[dict[str, bytes]]:
    """What each of the two configs writes when nobody disturbs it."""
    found = []
    for name, flags in (("one", ONE), ("other", OTHER)):
        output = tmp_path_factory.mktemp("races") / name
        built(source, output, *flags)
        found.append(check_dataset(output))
    return found


def race(source: Path, output: Path, *configs: tuple[str, ...], offset: float) -> list[Ended]:
    """Starts one builder a config, some time apart, and waits for all."""
    commands = []
    for flags in configs:
        commands.append(zygote().start(*images(source, output, *flags)))
        time.sleep(offset)  # how far one is ahead of the other
    return [command.wait() for command in commands]


def check_ended(ended: Ended) -> bool:
    """Asserts that a builder ended well or with one sentence; tells which."""
    if ended.code == 0:
        assert ended.said == ""
        assert "Published" in ended.stdout or "up to date" in ended.stdout
        return True
    assert ended.code == 1
    assert "other inputs or options" in ended.sentence or "run again" in ended.sentence
    return False


OFFSETS = [number * 0.02 for number in range(60)] if SOAK else [0.0, 0.1, 0.5]


@pytest.mark.parametrize("offset", OFFSETS)
def test_the_same_dataset_twice(source, wanted, tmp_path, offset):
    output = tmp_path / "out"
    ended = race(source, output, ONE, ONE, offset=offset)
    assert all(map(check_ended, ended))
    assert sum("Published" in one.stdout for one in ended) == 1
    assert check_dataset(output) == wanted[0]


@pytest.mark.parametrize("offset", OFFSETS)
def test_two_datasets_without_overwrite(source, wanted, tmp_path, offset):
    """The first to publish stays; the other's parts are kept for when it may overwrite."""
    output = tmp_path / "out"
    first, second = map(check_ended, race(source, output, ONE, OTHER, offset=offset))
    assert first != second
    left = {path.name for path in output.glob(".build-*")}
    assert check_dataset(output, left) == wanted[0 if first else 1]
    assert len(left) <= 1


@pytest.mark.parametrize("offset", OFFSETS)
def test_two_datasets_with_overwrite(source, wanted, tmp_path, offset):
    output = tmp_path / "out"
    configs = [(*flags, "--overwrite") for flags in (ONE, OTHER)]
    assert all(map(check_ended, race(source, output, *configs, offset=offset)))
    assert check_dataset(output) in wanted


@pytest.mark.parametrize("seed", range(20 if SOAK else 1))
def test_many_builders_and_a_killer(source, wanted, tmp_path, seed):
    """Four builders of two datasets, one of them killed; whoever comes then finds it whole."""
    rng, output = random.Random(seed), tmp_path / "out"
    configs = [(*flags, "--overwrite") for flags in (ONE, OTHER)]
    commands = []
    for flags in (*configs, *configs):
        at = (rng.randint(1, 200),) if len(commands) == seed % 4 else ()
        watch = Watched(output, at=at)
        commands.append(zygote().start(*images(source, output, *flags), watch=watch))
        time.sleep(rng.uniform(0, 0.3))  # how far one is ahead of the next
    for command in commands:
        ended = command.wait()
        assert ended.code == -signal.SIGKILL or check_ended(ended)
    built(source, output, *configs[0])
    left = {path.name for path in output.glob(".build-*")}
    assert check_dataset(output, left) == wanted[0]
    built(source, output, *configs[1])
    left = {path.name for path in output.glob(".build-*")}
    assert check_dataset(output, left) == wanted[1]


def stopped(source: Path, output: Path, *flags: str, since: str = JOURNAL, at: int = 1):
    """A builder that stands still right before a change to the disk."""
    watch = Watched(output, since=since, at=(at,), number=signal.SIGSTOP)
    command = zygote().start(*images(source, output, *flags), watch=watch)
    assert command.wait_stopped()
    return command


def goes_on(command) -> Ended:
    command.send(signal.SIGCONT)
    return command.wait()


@pytest.mark.parametrize("at", range(1, 15) if SOAK else [2, 5, 9])
def test_nobody_is_confused_by_half_a_publication(source, wanted, tmp_path, at):
    """Who comes while another publishes waits for its end, and does not take its files for foreign."""
    output = tmp_path / "out"
    first = stopped(source, output, *ONE, at=at)
    second = zygote().start(*images(source, output, *ONE))
    third = zygote().start(*images(source, output, *OTHER))
    time.sleep(0.2)  # time to get to the look at the output, or not: both must end well
    assert "Published" in goes_on(first).stdout
    assert "up to date" in second.wait().stdout
    assert "other inputs or options" in third.wait().sentence
    assert check_dataset(output) == wanted[0]


def test_a_publisher_finds_the_other_was_first(source, wanted, tmp_path):
    """Stopped with all parts made, while another publishes the same and takes the folder away."""
    output = tmp_path / "out"
    first = stopped(source, output, *ONE, since="/shards/")
    assert "Published" in built(source, output, *ONE).stdout
    assert "up to date" in goes_on(first).stdout
    assert check_dataset(output) == wanted[0]


@pytest.mark.parametrize("at", [1, 2, 40, 80])
def test_the_folder_vanishes_while_parts_are_made(source, wanted, tmp_path, at):
    """Whatever the slower builder writes after the faster one published is cleared away."""
    output = tmp_path / "out"
    first = stopped(source, output, *ONE, since="/parts", at=at)
    assert "Published" in built(source, output, *ONE).stdout
    assert "up to date" in goes_on(first).stdout
    assert check_dataset(output) == wanted[0]


def test_an_up_to_date_command_leaves_the_parts_of_other_inputs(source, wanted, tmp_path):
    """Same options, other inputs: they share a build folder, and one must not empty the other's."""
    output, more = tmp_path / "out", tmp_path / "more"
    built(source, output, *ONE)
    shutil.copytree(source, more)
    shutil.copy(more / "cat/000.jpg", more / "cat/new.jpg")
    grown = images(more, output, *ONE, "--overwrite")
    watch = Watched(output, since="/shards/", at=(1,))
    assert zygote().run(*grown, watch=watch).code == -signal.SIGKILL
    parts = len(list(build_folder(output).glob("parts/*.json")))
    assert "up to date" in built(source, output, *ONE).stdout
    assert len(list(build_folder(output).glob("parts/*.json"))) == parts
    ended = zygote().run(*grown)
    assert ended.parts() == (0, parts)


def test_an_up_to_date_command_beside_a_publisher_with_the_same_options(source, tmp_path):
    output, more = tmp_path / "out", tmp_path / "more"
    built(source, output, *ONE)
    shutil.copytree(source, more)
    shutil.copy(more / "cat/000.jpg", more / "cat/new.jpg")
    grown = [*ONE, "--overwrite"]
    publisher = stopped(more, output, *grown, at=3)
    other = zygote().start(*images(source, output, *ONE))
    time.sleep(0.2)
    assert "Published" in goes_on(publisher).stdout
    assert other.wait().code in (0, 1)
    check_dataset(output)
    assert "up to date" in built(more, output, *ONE).stdout


JOB = PartKey("train", "", 0)


def items(count: int, gate: threading.Barrier | None):
    for number in range(count):
        if gate and number in (0, count // 2):
            gate.wait()
        if number % 7 == 3:
            yield Reject(f"k{number}", "u", "read", "decode", "no")
        else:
            yield Example(bytes([number % 256]) * 50_000, "cat")
    if gate:
        gate.wait()


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("packing", ["stored", "deflated", "none"])
def test_one_part_written_by_many_at_once(tmp_path, workers, packing):
    """All go on with the payload of the one who came first, and one payload stays."""
    storage, folder = LocalStorage(), str(tmp_path / "parts")
    job = PartJob(JOB, "ab" * 16, folder, packing, {"codec": "1"})
    alone = write_part(storage, replace(job, folder=str(tmp_path / "alone")), items(60, None))
    for _ in range(20 if SOAK else 3):
        gate = threading.Barrier(workers)
        with ThreadPoolExecutor(workers) as pool:
            started = [
                pool.submit(write_part, storage, job, items(60, gate)) for _ in range(workers)
            ]
        found = [one.result() for one in started]
        assert len({part.payload for part in found}) == 1
        assert sorted(os.listdir(folder)) == sorted([found[0].payload, f"{job.name}.json"])
        part, rejects = parse_sidecar((tmp_path / "parts" / f"{job.name}.json").read_bytes())
        assert part.payload == found[0].payload
        assert (part.crc32c, part.records, len(rejects)) == (alone.crc32c, 51, 9)
        assert storage.checksum(f"{folder}/{part.payload}") == part.crc32c
        assert find_part(storage, folder, job.name).payload == part.payload
        shutil.rmtree(folder)
