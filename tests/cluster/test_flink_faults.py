"""Processes of a Flink cluster that die during a build do not change the dataset."""

import random
import threading
import time

import apache_beam as beam
import psutil
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

import shardmill
from tests.support.element_tools import OPTIONS, random_elements, write
from tests.support.flink_cluster import kill, session_of, started_build, wait_until
from tests.support.processes import runs
from tests.support.readers import dataset_files

pytest_plugins = ["tests.support.flink_cluster"]
pytestmark = pytest.mark.timeout(1800)


def check(build, case) -> None:
    """Assert that the build succeeds and that only parts in flight were made twice."""
    client, attempts, output = build
    ended = client.wait()
    assert ended.code == 0, ended.stderr
    assert ended.said == ""
    case.check(output)
    made, found = ended.parts()
    assert made + found == case.parts
    assert found >= 1
    tries = attempts.by_part()
    assert len(tries) >= case.parts - 2  # a part of rejects only may exist too briefly to be seen
    # Only the parts that were in flight when it died.
    again = [part for part, count in tries.items() if count > 1]
    assert len(again) <= 2
    assert max(tries.values()) <= 2


def kill_task_manager(cluster) -> str:
    """Kill a TaskManager that has workers, which end too; return its name."""
    name, victim = next(
        (name, pid)
        for name, pid in cluster.pids().items()
        if name.startswith("taskmanager") and cluster.workers_of(pid)
    )
    orphans = cluster.workers_of(victim)
    assert any(runs(process, "sdk_worker_main") for process in orphans)
    kill(victim)
    gone, left = psutil.wait_procs(orphans, timeout=20)
    assert not left, left
    assert gone
    return name


@pytest.fixture
def spare(cluster):
    """Add a TaskManager for the one that a test kills."""
    yield
    cluster.script("cluster.sh", "add")
    wait_until(lambda: cluster.rest("/overview")["taskmanagers"] == 2)


@pytest.mark.usefixtures("spare")
def test_task_manager_killed(cluster, image_case, build):
    """Its slots are gone; spare slots of the other TaskManager take over."""
    name = kill_task_manager(cluster)
    check(build, image_case)
    assert name not in cluster.pids()


@pytest.mark.usefixtures("spare")
@pytest.mark.parametrize("name", ["archive_case", "parquet_case"])
def test_task_manager_killed_early(name, cluster, request, tmp_path):
    """Before the first part, it writes runs of rows or copies of archives."""
    case, output = request.getfixturevalue(name), tmp_path / "out"
    client = cluster.start_command(*case.args(output))
    try:
        wait_until(lambda: [*output.glob(".build-*/*/*")] or client.process.poll() is not None, 600)
        assert client.process.poll() is None, client.stderr()
        kill_task_manager(cluster)
        ended = client.wait()
    finally:
        client.kill()
    assert ended.code == 0, ended.stderr
    case.check(output)
    assert sum(ended.parts()) == case.parts


@pytest.mark.usefixtures("spare")
def test_task_manager_killed_while_elements_are_written(cluster, tmp_path):
    """The bytes of ``WriteDataset`` are those of one machine, although runs are written again."""
    elements = random_elements(6_000)
    write(tmp_path / "here", elements)
    output = tmp_path / "there"

    def pause(element):
        time.sleep(0.002)
        return element

    pipeline = beam.Pipeline(options=PipelineOptions(cluster.flags()))
    random.Random(1).shuffle(elements)
    made = pipeline | beam.Create(elements) | beam.Map(pause)
    _ = made | shardmill.WriteDataset(output, **OPTIONS)
    result = pipeline.run()
    ended = threading.Thread(target=result.wait_until_finish, daemon=True)
    ended.start()
    wait_until(lambda: [*output.glob(".build-*/runs/*")] or not ended.is_alive(), 300)
    assert ended.is_alive()
    kill_task_manager(cluster)
    ended.join(600)
    assert result.state == "DONE"
    assert dataset_files(output) == dataset_files(tmp_path / "here")


def workers_of_build(cluster, build) -> list[psutil.Process]:
    """Return the processes of the workers of a build; a killed TaskManager's job may leave one."""
    began = psutil.Process(build[0].process.pid).create_time()
    return [process for process in cluster.workers() if process.create_time() > began]


def test_worker_killed(cluster, image_case, build):
    """The process that runs our code; Beam's boot starts another."""
    workers = [each for each in workers_of_build(cluster, build) if runs(each, "sdk_worker_main")]
    assert len(workers) == 2
    kill(workers[0])
    check(build, image_case)


def test_whole_worker_killed(cluster, image_case, build):
    """The boot process is killed; its children end too."""
    boot = next(p for p in workers_of_build(cluster, build) if p.name() == "boot")
    session = [p for p in cluster.workers() if session_of(p) == boot.pid]
    assert len(session) >= 2
    kill(boot)
    _, left = psutil.wait_procs(session, timeout=20)
    assert not left
    check(build, image_case)


def test_only_task_manager_killed(small_cluster, image_case, tmp_path):
    """The job waits for a new TaskManager."""
    with started_build(small_cluster, image_case, tmp_path / "out") as build:
        kill(small_cluster.pids()["taskmanager-1"])
        wait_until(lambda: not small_cluster.workers())
        small_cluster.script("cluster.sh", "add")
        check(build, image_case)
    assert list(small_cluster.pids()) == ["job-server", "jobmanager", "taskmanager-2"]
