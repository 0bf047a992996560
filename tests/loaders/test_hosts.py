"""A host finds its share of a dataset from the training framework, or says that it cannot."""

import itertools
import json
import sys
from types import SimpleNamespace

import pytest

from shardmill.loaders import Stream, hosts, open_dataset
from shardmill.loaders.hosts import HostFinder, Share, find_host
from shardmill.schemas.errors import UsageError
from tests.support.loader_tools import write_numbered

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    launchers = itertools.chain(*hosts._LAUNCHERS.values())
    for name in ("TF_CONFIG", "RANK", "WORLD_SIZE", "LOCAL_RANK", *launchers):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({"type": "chief", "index": 0}, Share(0, 3)),
        ({"type": "worker", "index": 1}, Share(2, 3)),
        ({"type": "ps", "index": 0}, Share(0, 1)),
        ({"type": "evaluator", "index": 0}, Share(0, 1)),
    ],
    ids=str,
)
def test_from_tf_config(task, expected, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": task}))
    assert find_host() == expected
    assert HostFinder((1, 4)).find_host() == Share(1, 4)


@pytest.mark.parametrize("text", ["", " ", "{}", '{"cluster": {}}', '{"environment": "cloud"}'])
def test_tf_config_without_a_cluster_is_no_job(text, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    assert find_host() == Share(0, 1)


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[1]",
        '{"cluster": 3, "task": {}}',
        '{"cluster": {"worker": ["a:1", "b:1"]}}',
        '{"cluster": {"worker": 2}, "task": {"type": "worker", "index": 0}}',
        *(
            json.dumps({"cluster": CLUSTER, "task": {"type": task, "index": index}})
            for task, index in [("worker", 2), ("worker", -1), ("chief", 1), ("worker", "b")]
        ),
    ],
)
def test_a_tf_config_that_is_wrong_is_an_error(text, tmp_path, monkeypatch):
    """Each process would read everything, or what another one reads."""
    monkeypatch.setenv("TF_CONFIG", text)
    stream = Stream(open_dataset(write_numbered(tmp_path / "ds", [10], 5)))
    with pytest.raises(UsageError, match="does not give a cluster and one of its tasks: repair it"):
        iter(stream)
    assert HostFinder((0, 1)).find_host() == Share(0, 1)


def test_jax_that_cannot_be_asked_is_no_job(monkeypatch):
    """JAX before 0.5 has no jax.distributed.is_initialized."""
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(distributed=SimpleNamespace()))
    assert find_host() == Share(0, 1)


def test_from_jax(monkeypatch):
    job = SimpleNamespace(is_initialized=lambda: True)
    jax = SimpleNamespace(distributed=job, process_index=lambda: 2, process_count=lambda: 5)
    monkeypatch.setitem(sys.modules, "jax", jax)
    assert find_host() == Share(2, 5)


def test_from_the_variables_of_torchrun(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert find_host() == Share(2, 4)


UNNUMBERED = [
    ({"SLURM_NTASKS": "4", "SLURM_PROCID": "1"}, "Slurm started 4 tasks"),
    ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, "Open MPI started 2 tasks"),
    ({"PMI_SIZE": "3", "PMI_RANK": "2"}, "^MPI started 3 tasks"),
    ({"WORLD_SIZE": "2"}, "WORLD_SIZE='2', LOCAL_RANK='' and RANK='' do not number this process"),
    ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "WORLD_SIZE='2', LOCAL_RANK='1' and RANK=''"),
    ({"LOCAL_RANK": "0"}, "WORLD_SIZE='', LOCAL_RANK='0'"),
    ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK='2' do not number"),
]


@pytest.mark.parametrize(("variables", "message"), UNNUMBERED, ids=lambda value: str(value)[:40])
def test_a_launcher_that_does_not_number_its_processes_is_an_error(variables, message, monkeypatch):
    """Each process would read everything."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message) as caught:
        find_host()
    assert "each would read the whole split: initialize torch.distributed" in str(caught.value)
    assert HostFinder((0, 1)).find_host() == Share(0, 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert find_host() == Share(1, 2)


def test_one_process_is_no_job(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert find_host() == Share(0, 1)


def test_a_stream_asks_when_it_is_read(tmp_path, monkeypatch):
    """Trainers such as Lightning start the other processes after the script made the stream."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    stream = Stream(open_dataset(write_numbered(tmp_path / "ds", [10], 5)))
    with pytest.raises(UsageError, match="do not number this process"):
        iter(stream)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(list(stream)) == len(stream) == 5
    monkeypatch.setenv("WORLD_SIZE", "11")
    with pytest.raises(UsageError, match="10 examples, fewer than 11 hosts"):
        iter(stream)
