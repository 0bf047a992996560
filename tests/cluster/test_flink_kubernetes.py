"""Flink accepts the configuration in the Kubernetes manifests."""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
import zipfile

import pytest
import yaml

from tests.deploy.test_kubernetes import flink_config, named
from tests.support.flink_cluster import INSTALLED
from tests.support.gcs_server import free_port


def test_flink_knows_every_key():
    """Flink ignores unknown keys without a message."""
    (jar,) = (INSTALLED / "flink" / "lib").glob("flink-dist-*.jar")
    with zipfile.ZipFile(jar) as archive:
        names = [
            name
            for name in archive.namelist()
            if name.startswith("org/apache/flink/") and name.endswith("Options.class")
        ]
        constants = b"".join(archive.read(name) for name in names)
    assert len(names) > 50
    assert b"restart-strategy.failure-rate.tries" not in constants
    for key in flink_config():
        if key.startswith("metrics.reporter.prom."):  # the middle is a name
            continue
        assert key.encode() in constants, key


def test_a_jobmanager_starts(tmp_path):
    conf, port = tmp_path / "conf", free_port()
    conf.mkdir()
    # Names and ports of pods differ outside Kubernetes.
    here = {
        "jobmanager.rpc.address": "localhost",
        "jobmanager.rpc.port": str(free_port()),
        "jobmanager.bind-host": "localhost",
        "blob.server.port": str(free_port()),
        "rest.address": "localhost",
        "rest.bind-address": "localhost",
        "rest.port": str(port),
        "metrics.internal.query-service.port": "0",
        "metrics.reporter.prom.port": str(free_port()),
        "io.tmp.dirs": str(tmp_path),
    }
    data = named("ConfigMap", "flink-config")["data"]
    waiting = tmp_path / "waiting-for-worker.log"
    log_config = data["log4j-console.properties"].replace(
        "/tmp/waiting-for-worker.log", str(waiting)
    )
    (conf / "log4j-console.properties").write_text(log_config)
    wanted = flink_config() | here
    (conf / "config.yaml").write_text(yaml.safe_dump(wanted, width=10_000))
    environment = {
        "FLINK_CONF_DIR": str(conf),
        "FLINK_LOG_DIR": str(tmp_path),
        "FLINK_PID_DIR": str(tmp_path),
    }
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [INSTALLED / "flink" / "bin" / "jobmanager.sh", "start-foreground"],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        found = request(f"http://localhost:{port}/jobmanager/config", process, tmp_path / "log")
    finally:
        process.kill()
        process.wait()
    taken = {each["key"]: each["value"] for each in found}
    for key, value in wanted.items():
        assert taken[key].lower() == str(value).lower(), key
    text = (tmp_path / "log").read_text()
    assert " ERROR " not in text
    assert "INFO  ClusterEntrypoint" in text
    assert waiting.read_bytes() == b"", "written only when Beam waits for a worker"


def request(url, process, log):
    """Request a URL until the server answers."""
    end = time.monotonic() + 180
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.loads(answer.read())
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"no answer from {url}: {log.read_text()[-2000:]}")
