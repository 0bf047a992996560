"""A host finds its share of a dataset from the training framework, or says that it cannot."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from shardmill.loaders.hosts import Share, find_host
from shardmill.schemas.errors import UsageError

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    for name in ("TF_CONFIG", "RANK", "WORLD_SIZE", "SLURM_NTASKS", "SLURM_PROCID"):
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
    assert find_host(None) == expected
    assert find_host((1, 4)) == Share(1, 4)


@pytest.mark.parametrize("text", ["", "{}", "no json", "[1]", '{"cluster": 3, "task": {}}'])
def test_other_values_of_tf_config_are_no_job(text, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    assert find_host(None) == Share(0, 1)


def test_jax_that_cannot_be_asked_is_no_job(monkeypatch):
    """JAX before 0.5 has no jax.distributed.is_initialized."""
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(distributed=SimpleNamespace()))
    assert find_host(None) == Share(0, 1)


def test_from_jax(monkeypatch):
    job = SimpleNamespace(is_initialized=lambda: True)
    jax = SimpleNamespace(distributed=job, process_index=lambda: 2, process_count=lambda: 5)
    monkeypatch.setitem(sys.modules, "jax", jax)
    assert find_host(None) == Share(2, 5)


def test_from_the_variables_of_torchrun(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert find_host(None) == Share(2, 4)


def test_tasks_of_slurm_without_a_framework_are_an_error(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "1")
    with pytest.raises(UsageError, match="Slurm started 4 tasks, and each would read the whole"):
        find_host(None)
    assert find_host((0, 1)) == Share(0, 1)


RANKS = """
import sys, torch.distributed as dist
from shardmill.loaders.hosts import find_host
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
share = find_host(None)
print(share.index, share.count)
dist.destroy_process_group()
"""


@pytest.mark.heavy
def test_from_torch_distributed(tmp_path):
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-c", RANKS, str(tmp_path / "store")]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=env)
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=60)[0].split() for rank in ranks] == [["0", "2"], ["1", "2"]]
