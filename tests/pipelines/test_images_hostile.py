"""Builds of files that harm their decoder, and decoders when a build is interrupted or killed."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import make_photos, shardmill, start_shardmill
from tests.support.fault_tools import check_dataset
from tests.support.hostile_files import HostileCase, hostile_environment, write_hostile
from tests.support.processes import descendants

pytestmark = pytest.mark.heavy


def test_each_file_is_one_reject_and_all_others_are_written(tmp_path):
    case = HostileCase(tmp_path)
    done = shardmill(*case.args(tmp_path / "out"), env=hostile_environment())
    assert done.returncode == 0, done.stderr
    case.check(tmp_path / "out")
    assert "Traceback" not in done.stderr
    first = (tmp_path / "out/current/rejects.jsonl").read_bytes()
    again = shardmill(*case.args(tmp_path / "again"), env=hostile_environment())
    assert again.returncode == 0
    assert (tmp_path / "again/current/rejects.jsonl").read_bytes() == first


def decoders(client: int) -> list[psutil.Process]:
    return descendants(client, "decoder_process")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("action", ["none", "loop", "sleep"])
def test_no_decoder_outlives_a_stopped_build(tmp_path: Path, action: str, number: int):
    """The terminal sends SIGINT to the process group of the command."""
    source = make_photos(tmp_path / "in", {"cat": 40, "dog": 30}, size=(900, 700))
    if action != "none":
        for name in range(4):
            write_hostile(source / "cat" / f"{name}.bmp", action)
    args = ["images", f"--input={source}", f"--output={tmp_path / 'out'}", "--image_size=700",
            "--encoding=png", "--shard_examples=8", "--workers=2"]  # fmt: skip
    client = start_shardmill(*args, env=hostile_environment(), start_new_session=True)
    end = time.monotonic() + 60
    while time.monotonic() < end and not (found := decoders(client.pid)):
        time.sleep(0.02)
    time.sleep(0.5)
    found = decoders(client.pid)
    assert found
    os.killpg(client.pid, number)
    _, stderr = client.communicate(timeout=60)
    assert client.returncode != 0
    assert "Traceback" not in stderr
    assert not psutil.wait_procs(found, 10)[1]
    if action == "none":
        done = shardmill(*args)
        assert done.returncode == 0, done.stderr
        check_dataset(tmp_path / "out")
