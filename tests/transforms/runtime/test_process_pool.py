"""The cores that a process may use."""

import os
from pathlib import Path

import pytest

from shardmill.transforms.runtime import process_pool

V1 = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"cpu.max": "max 100000\n"}, 0),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "20000 100000\n"}, 1),
        (dict(zip(V1, ("-1\n", "100000\n"), strict=True)), 0),
        (dict(zip(V1, ("350000\n", "100000\n"), strict=True)), 4),
        ({}, 0),
    ],
)
def test_quotas_of_both_versions_of_cgroups(tmp_path: Path, files: dict[str, str], wanted: int):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert process_pool.cpu_quota(str(tmp_path)) == wanted


def test_usable_cores_are_those_of_the_affinity_and_the_quota(monkeypatch):
    cores = len(os.sched_getaffinity(0))
    for quota, wanted in ((0, cores), (1, 1), (cores + 5, cores)):
        monkeypatch.setattr(process_pool, "cpu_quota", lambda quota=quota: quota)
        assert process_pool.usable_cores() == wanted
