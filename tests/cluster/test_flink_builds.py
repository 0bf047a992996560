"""On a real Flink cluster every command writes the same bytes as on one machine."""

import json

import pytest

from tests.conftest import shardmill
from tests.support.flink_cluster import counters_in
from tests.support.hostile_files import HostileCase, hostile_environment

pytest_plugins = ["tests.support.flink_cluster"]
pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize("name", ["image_case", "rows_case"])  # test_prism.py has the other kinds
def test_workers_in_processes(name, cluster, request, tmp_path):
    """Workers that two TaskManagers start."""
    case = request.getfixturevalue(name)
    # One case starts its job server, as users without a permanent job server do.
    ended = cluster.run(*case.args(tmp_path / "out"), own_server=name == "image_case")
    assert ended.code == 0, ended.stderr
    assert ended.said == ""
    assert ended.parts() == (case.parts, 0)
    case.check(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["build"]["runner"] == "FlinkRunner"
    assert cluster.state(ended.job) == "FINISHED"


def test_both_task_managers_work(cluster):
    """Otherwise the tests above would prove nothing about two TaskManagers."""
    jobs = [job["id"] for job in cluster.rest("/jobs")["jobs"]]
    managers = set()
    for job in jobs:
        for vertex in cluster.rest(f"/jobs/{job}")["vertices"]:
            found = cluster.rest(f"/jobs/{job}/vertices/{vertex['id']}/taskmanagers")
            managers |= {manager["taskmanager-id"] for manager in found["taskmanagers"]}
    assert len(managers) == 2


def test_count(cluster, image_case, tmp_path):
    source = next(flag for flag in image_case.flags if flag.startswith("--input="))
    folder = source.partition("=")[2].removesuffix("photos") + "in-memory"
    args = ["count", f"--input={folder}"]
    here = shardmill(*args, f"--manifest={tmp_path / 'here.json'}")
    assert here.returncode == 0, here.stderr
    there = cluster.run(*args, f"--manifest={tmp_path / 'there.json'}")
    assert there.code == 0, there.stderr
    wanted, found = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("here", "there")
    )
    assert wanted["splits"]["train"]["num_examples"] > 100
    for manifest in (wanted, found):
        for field in ("runner", "finished"):
            manifest["build"].pop(field)
    assert found == wanted
    assert {path.name for path in tmp_path.iterdir()} == {"here.json", "there.json"}


def test_files_that_harm_their_decoder_are_rejects(small_cluster, tmp_path, monkeypatch):
    """The workers are threads of the command, which has the plugin on its path."""
    monkeypatch.setenv("PYTHONPATH", hostile_environment()["PYTHONPATH"])
    case = HostileCase(tmp_path)
    ended = small_cluster.run(*case.args(tmp_path / "out"), kind="LOOPBACK")
    assert ended.code == 0, ended.stderr
    case.check(tmp_path / "out")


@pytest.mark.parametrize("kind", ["EXTERNAL", "LOOPBACK"])
def test_one_task_manager(kind, small_cluster, arrays_case, tmp_path):
    """Workers in a pool, or as threads of the command; Beam's counters are the same."""
    if kind == "EXTERNAL":
        small_cluster.script("pool.sh", "start")
    ended = small_cluster.run(*arrays_case.args(tmp_path / "out"), "--debug", kind=kind)
    assert ended.code == 0, ended.stderr
    assert counters_in(ended.stderr) == arrays_case.counters
    assert ended.parts() == (arrays_case.parts, 0)
    arrays_case.check(tmp_path / "out")
    if kind == "EXTERNAL":
        assert list((small_cluster.folder / "pool" / "workers" / "log").iterdir())
        small_cluster.script("pool.sh", "stop")
        assert not small_cluster.workers()
