"""What dies on a Flink cluster in the middle of a build does not show in what is written."""

import os

import psutil
import pytest

from tests.support.flink_cluster import finished_parts, kill, wait_until, watch_attempts

pytest_plugins = ["tests.support.flink_cluster"]
pytestmark = pytest.mark.timeout(1800)

EARLY = 8  # parts, of dozens: then something dies


@pytest.fixture
def build(cluster, image_case, tmp_path):
    """A build on the cluster that has made some of its parts, and not all."""
    output = tmp_path / "out"
    client = cluster.start_command(*image_case.args(output))
    with watch_attempts(output) as attempts:
        wait_until(
            lambda: finished_parts(output) >= EARLY or client.process.poll() is not None, 600
        )
        assert client.process.poll() is None, client.stderr()
        assert finished_parts(output) < image_case.parts / 2
        yield client, attempts, output
    client.kill()


def check(build, case) -> None:
    """Asserts that the build ends as if nothing had happened, with no part made without need."""
    client, attempts, output = build
    ended = client.wait()
    assert ended.code == 0, ended.stderr
    assert ended.said == ""
    case.check(output)
    made, found = ended.parts()
    assert made + found == case.parts
    assert found >= 1
    tries = attempts.by_part()
    assert len(tries) >= case.parts - 2  # a part of nothing but rejects may show too briefly
    # Only the parts that were under way when it died.
    again = [part for part, count in tries.items() if count > 1]
    assert len(again) <= 2
    assert max(tries.values()) <= 2


def test_task_manager_killed(cluster, image_case, build):
    """Its slots are gone; the other's spare ones take the work over."""
    name, victim = next(
        (name, pid) for name, pid in cluster.pids().items()
        if name.startswith("taskmanager") and cluster.workers_of(pid)
    )  # fmt: skip
    orphans = cluster.workers_of(victim)
    assert any("sdk_worker_main" in " ".join(p.cmdline()) for p in orphans)
    kill(victim)
    try:
        gone, left = psutil.wait_procs(orphans, timeout=20)
        assert not left, left
        assert gone
        check(build, image_case)
        assert name not in cluster.pids()
    finally:
        cluster.script("cluster.sh", "add")
        wait_until(lambda: cluster.rest("/overview")["taskmanagers"] == 2)


def test_worker_killed(cluster, image_case, build):
    """The process that runs our code; Beam's boot starts another."""
    workers = [p for p in cluster.workers() if "sdk_worker_main" in " ".join(p.cmdline())]
    assert len(workers) == 2
    kill(workers[0])
    check(build, image_case)


def test_whole_worker_killed(cluster, image_case, build):
    """The boot; what it had started ends too."""
    boot = next(p for p in cluster.workers() if p.name() == "boot")
    session = [p for p in cluster.workers() if os.getsid(p.pid) == boot.pid]
    assert len(session) >= 2
    kill(boot)
    _, left = psutil.wait_procs(session, timeout=20)
    assert not left
    check(build, image_case)


def test_only_task_manager_killed(small_cluster, image_case, tmp_path):
    """The job waits until there is another one."""
    output = tmp_path / "out"
    client = small_cluster.start_command(*image_case.args(output))
    with watch_attempts(output) as attempts:
        wait_until(
            lambda: finished_parts(output) >= EARLY or client.process.poll() is not None, 600
        )
        kill(small_cluster.pids()["taskmanager-1"])
        wait_until(lambda: not small_cluster.workers())
        small_cluster.script("cluster.sh", "add")
        check((client, attempts, output), image_case)
    assert list(small_cluster.pids()) == ["job-server", "jobmanager", "taskmanager-2"]
