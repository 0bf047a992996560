"""The command is killed or interrupted while its job runs on a Flink cluster."""

import signal

import pytest

from tests.conftest import shardmill
from tests.support.flink_cluster import EARLY, finished_parts, started_build, wait_until
from tests.support.hostile_files import hostile_environment
from tests.support.worker_failures import FAILURES, failing_build

pytest_plugins = ["tests.support.flink_cluster", "tests.support.worker_failures"]
pytestmark = pytest.mark.timeout(1800)


def resume(cluster, case, output):
    """Run the same command again and assert that it resumes from the finished parts."""
    before = finished_parts(output)
    ended = cluster.run(*case.args(output))
    assert ended.code == 0, ended.stderr
    made, found = ended.parts()
    assert made + found == case.parts
    assert found >= before >= EARLY
    case.check(output)


def test_interrupted(cluster, image_case, build):
    """Ctrl-C cancels the job on the cluster."""
    client, _, output = build
    (job,) = cluster.running()
    client.send(signal.SIGINT)
    ended = client.wait()
    assert ended.code == 130
    assert ended.said == "shardmill: interrupted; run again to resume.\n"
    assert ended.job == job
    assert cluster.state(job) == "CANCELED"
    resume(cluster, image_case, output)


def test_a_reused_job_name(cluster, image_case, arrays_case, tmp_path):
    """A scheduler uses one name every night: Ctrl-C cancels the job of this night."""
    name = "--job_name=nightly"
    earlier = cluster.run(*arrays_case.args(tmp_path / "earlier"), name)
    assert earlier.code == 0, earlier.stderr
    with started_build(cluster, image_case, tmp_path / "out", name) as (client, *_):
        (job,) = cluster.running()
        client.send(signal.SIGINT)
        ended = client.wait()
    assert ended.code == 130
    assert ended.job == job != earlier.job
    assert cluster.state(job) == "CANCELED"
    assert cluster.state(earlier.job) == "FINISHED"


def test_cancelled_on_the_cluster(cluster, image_case, build):
    """The job is cancelled by Flink's REST API."""
    client, _, output = build
    (job,) = cluster.running()
    cluster.rest(f"/jobs/{job}?mode=cancel", "PATCH")
    ended = client.wait()
    assert ended.code == 1
    assert ended.sentence.startswith(
        f"shardmill: The job was cancelled on FlinkRunner: run again to resume; see its page http://{cluster.master}"
    )
    assert cluster.state(job) == "CANCELED"
    resume(cluster, image_case, output)


def test_client_killed(cluster, image_case, build):
    """Its job and the next command's job run at once; `clean` deletes what is left."""
    client, _, output = build
    (job,) = cluster.running()
    client.kill()
    assert cluster.state(job) == "RUNNING"
    ended = cluster.run(*image_case.args(output))
    assert ended.code == 0, ended.stderr
    if "up to date" not in ended.stdout:
        made, found = ended.parts()
        assert made + found == image_case.parts
        assert found >= EARLY
    wait_until(lambda: not cluster.running(), 240)
    left = {path.name for path in output.iterdir() if path.name.startswith(".")}
    assert all(name.startswith(".outcome-") for name in left), left
    assert len(left) <= 1  # of the first job, whose command is gone
    if left:
        assert cluster.state(job) == "FINISHED"
        assert shardmill("clean", output, "--older_than=0").returncode == 0
    image_case.check(output)


def test_nothing_usable(cluster, tmp_path):
    """A failure that no retry can fix is not retried."""
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for number in range(30):
        (tmp_path / "photos" / "cat" / f"{number}.jpg").write_text("no image at all")
    ended = cluster.run("images", f"--input={tmp_path / 'photos'}", f"--output={tmp_path / 'out'}")
    assert ended.code == 1
    assert "none could become a record" in ended.sentence
    assert_ran_once(cluster, ended.job)


def assert_ran_once(cluster, job):
    """Assert that a job ended normally, and none of its tasks was retried."""
    assert cluster.state(job) == "FINISHED"
    attempts = [
        task["attempt"]
        for vertex in cluster.rest(f"/jobs/{job}")["vertices"]
        for task in cluster.rest(f"/jobs/{job}/vertices/{vertex['id']}")["subtasks"]
    ]
    assert attempts
    assert set(attempts) == {0}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_worker_without_disk_or_memory(failure, small_cluster, small_disk, tmp_path, monkeypatch):
    """The failure of a part or run is a value for the command, and Flink does not retry it."""
    monkeypatch.setenv("PYTHONPATH", hostile_environment()["PYTHONPATH"])
    args, words = failing_build(failure, tmp_path, small_disk)
    ended = small_cluster.run(*args, kind="LOOPBACK")  # the command has the hostile plugin
    assert ended.code == 1
    assert words in ended.sentence
    assert_ran_once(small_cluster, ended.job)
