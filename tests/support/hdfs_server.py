"""A real HDFS for tests: a name node and a data node, with Java and Maven."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardmill.schemas.storage import OPTIONS_VARIABLE, base
from tests.conftest import ROOT

SOURCE = ROOT / "tests" / "hdfs"
CACHE = ROOT / ".cache" / "hdfs"


def find_jars() -> Path:
    """Returns the folder of Hadoop's jars, fetched once; skips the test where that cannot be."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        pytest.skip("HDFS needs Java and Maven")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:  # one of several test processes fetches
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (CACHE / ".whole").exists():
            command = ["mvn", "-q", "-B", "-f", str(SOURCE / "pom.xml")]
            command += ["dependency:copy-dependencies", f"-DoutputDirectory={CACHE}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"Hadoop could not be fetched: {done.stdout.strip()[-200:]}")
            (CACHE / ".whole").touch()
    return CACHE


@contextlib.contextmanager
def run_hdfs(folder: Path) -> Iterator[int]:
    """Runs an HDFS that keeps its blocks in a folder, and gives the port of its WebHDFS."""
    # What reads XML in it defines classes in a way that Java allows only when told.
    command = ["java", "-Xmx512m", "--add-opens", "java.base/java.lang=ALL-UNNAMED"]
    command += ["-cp", f"{find_jars()}/*", str(SOURCE / "MiniHdfs.java"), str(folder)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"{command} ended with {process.wait()}")
        yield int(port)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def hdfs_flags(tmp_path_factory) -> Iterator[list[str]]:
    """The flags that lead to a running HDFS."""
    with run_hdfs(tmp_path_factory.mktemp("hdfs")) as port:
        yield ["--hdfs_host=localhost", f"--hdfs_port={port}", f"--hdfs_user={getpass.getuser()}"]


@pytest.fixture
def hdfs_root(hdfs_flags, monkeypatch) -> Iterator[str]:
    """A folder that is not there yet; the variable leads to its HDFS."""
    monkeypatch.setenv(OPTIONS_VARIABLE, " ".join(hdfs_flags))
    base._storage_of.cache_clear()
    yield f"hdfs://test-{uuid.uuid4().hex[:12]}"
    base._storage_of.cache_clear()
