"""A worker ends when its starter, boot process or endpoint ends.

The boot process here is a fake; the other tests use the real one.
"""

import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from tests.support.flink_cluster import SCRIPTS, wait_until

# Like Beam's boot, it runs its child in a separate process group.
BOOT = """#!/bin/bash
set -m
sleep 600 &
wait
"""
STARTER = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]).wait(); time.sleep(600)"


@pytest.mark.parametrize("end", ["starter", "boot", "terminated", "endpoint"])
def test_ends_with(end, tmp_path):
    boot = tmp_path / "flink" / "bin" / "boot"
    boot.parent.mkdir(parents=True)
    boot.write_text(BOOT)
    boot.chmod(0o755)
    workers = tmp_path / "workers"
    environment = {"FLINK_DIR": str(tmp_path / "flink"), "WORKERS_DIR": str(workers)}
    with socket.create_server(("localhost", 0), backlog=100) as endpoint:
        flag = f"--provision_endpoint=localhost:{endpoint.getsockname()[1]}"
        command = [str(SCRIPTS / "worker.sh"), "--id=1-1", flag]
        starter = subprocess.Popen(
            [sys.executable, "-c", STARTER, *command], env=os.environ | environment
        )
        try:
            wait_until(lambda: list(workers.glob("worker.*/session")))
            (session,) = workers.glob("worker.*/session")
            wait_until(lambda: len(of_session(session)) == 2)
            processes = of_session(session)
            pid = int(session.read_text())
            {
                "starter": starter.kill,
                "boot": lambda: os.kill(pid, signal.SIGKILL),
                "terminated": lambda: os.kill(pid, signal.SIGTERM),
                "endpoint": endpoint.close,
            }[end]()
            _, left = psutil.wait_procs(processes, timeout=20)
            assert not left
            wait_until(lambda: not list(workers.glob("worker.*")))
            assert len(list((workers / "log").iterdir())) == 1
        finally:
            starter.kill()
            starter.wait()


def of_session(session):
    """Return the boot process and its child."""
    text = session.read_text().strip()
    if not text:
        return []
    boot = psutil.Process(int(text))
    return [boot, *(child for child in boot.children() if child.name() == "sleep")]


def test_needs_an_endpoint():
    done = subprocess.run([str(SCRIPTS / "worker.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--provision_endpoint" in done.stderr
