"""Servers that tests start: free ports, programs written in Go, and waiting for an answer."""

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.conftest import ROOT

CACHE = ROOT / ".cache" / "bin"


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_until(true: Callable[[], Any], seconds: float = 120, what: str = "") -> Any:
    """Wait for a condition and return its value; fail after a timeout."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"not true within {seconds} s: {what or true}"
        time.sleep(0.1)
    return found


def find_program(name: str, install: Sequence[str]) -> str:
    """Return the path of a program; install it by a command where Go is, else skip the test."""
    found = shutil.which(name, path=str(CACHE)) or shutil.which(name)
    if found:
        return found
    if shutil.which("go") is None:
        pytest.skip(f"neither {name} nor Go is installed")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{name}.lock").open("w") as lock:  # one of several test processes installs
        fcntl.flock(lock, fcntl.LOCK_EX)
        env = {**os.environ, "GOBIN": str(CACHE)}
        done = subprocess.run(install, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{name} could not be installed: {done.stderr.strip()[-200:]}")
    return str(CACHE / name)


@contextlib.contextmanager
def run_server(command: Sequence[str], url: str, **env: str) -> Iterator[None]:
    """Run a server in the block, which begins when a URL answers."""
    process = subprocess.Popen(
        command, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_until_up(process, url)
        yield
    finally:
        process.kill()
        process.wait()


def _wait_until_up(process: subprocess.Popen, url: str) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with {process.returncode}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args} does not answer at {url}")
