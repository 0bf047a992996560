"""Beam's own reader of gs://, and the commands of the page."""

import json
import os
import signal
import subprocess
import sys

import pytest

from shardmill.schemas.storage.gcs import GcsStorage
from tests.conftest import ROOT
from tests.support.gcs_builds import build
from tests.support.gcs_server import find_emulator, free_port

pytest_plugins = ["tests.support.gcs_server", "tests.support.gcs_builds"]

READ = """
import hashlib, json, logging, sys
import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
logging.getLogger().setLevel(logging.CRITICAL)
folder, out = sys.argv[1:]
with beam.Pipeline(runner=FnApiRunner()) as root:
    (root | beam.Create([folder + "/*.tfrecord.gz"]) | beam.io.ReadAllFromTFRecord()
     | beam.Map(lambda data: hashlib.sha256(data).hexdigest()) | beam.combiners.ToList()
     | beam.Map(lambda found: open(out, "w").write(json.dumps(found))))
"""


def test_beams_file_system_reads_a_published_dataset(album, strict_bucket, front, tmp_path):
    output = f"{strict_bucket}/out"
    assert build("images", album.inputs / "images", output).status == "published"
    front.reset()
    # Else Beam searches for credentials for half a minute.
    env = {**os.environ, "NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": str(tmp_path / "none")}
    folder = GcsStorage().list_dir(output)
    (generation,) = [entry.path for entry in folder if entry.kind == "dir"]
    command = [sys.executable, "-c", READ, generation, str(tmp_path / "found")]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found").read_text())
    assert sorted(found) == album.digests(tmp_path)
    assert front.counts()["download"] >= 4
    # Else clients of the bucket decompress what TensorFlow expects to be compressed.
    blobs = GcsStorage()._client().list_blobs(strict_bucket.removeprefix("gs://"))
    assert {blob.content_encoding for blob in blobs} == {None}
    album.check("images", output, tmp_path / "out")


def test_the_emulator_commands_of_the_page_work(album, tmp_path):
    """Run the commands of docs/gcs.md with another port and path of the program."""
    text = (ROOT / "docs" / "gcs.md").read_text()
    block = text.partition("## An emulator\n")[2].partition("```sh\n")[2].partition("```")[0]
    assert "STORAGE_EMULATOR_HOST" in block
    block = block.replace("4443", str(free_port()))
    block = block.replace(".cache/bin/fake-gcs-server", find_emulator())
    script = f"""set -e; trap 'echo finished with $?' EXIT
{block.replace("curl -s", "sleep 2; curl -s --retry 9 --retry-connrefused")}
"$0" -m shardmill.pipelines.cli images --input="$1" --output=gs://my-sets/album --image_size=16
"$0" -m shardmill.pipelines.cli verify gs://my-sets/album
"""
    process = subprocess.Popen(
        ["bash", "-c", script, sys.executable, str(album.inputs / "images")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if line.startswith("finished with"):
                break
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    text = "".join(lines)
    assert "Published" in text
    assert lines[-1] == "finished with 0\n", text


@pytest.fixture(autouse=True)
def _without_tables(monkeypatch):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
