"""TensorFlow's gs:// file system, unmodified, reads a dataset published to a bucket."""

import json
import subprocess
import sys

import pytest

from tests.support.gcs_builds import build
from tests.support.readers import gzip_records

pytest_plugins = ["tests.support.gcs_server", "tests.support.gcs_builds", "tests.support.gcs_hosts"]

PLAIN = """
import hashlib, json, sys
import tensorflow as tf
folder = sys.argv[1]
found = {}
for path in sorted(tf.io.gfile.glob(folder + "/*.tfrecord.gz")):
    records = tf.data.TFRecordDataset(path, "GZIP")
    found[path.rpartition("/")[2]] = [hashlib.sha256(r.numpy()).hexdigest() for r in records]
print(json.dumps(found))
"""
PARSED = """
import json, sys
import tensorflow as tf
from shardmill.loaders import feature_spec, steps_per_epoch
folder = sys.argv[1]
spec = feature_spec(folder, features=["image/encoded", "image/class/label"])
files = tf.data.Dataset.list_files(folder + "/train-*", seed=0)
records = files.interleave(lambda file: tf.data.TFRecordDataset(file, "GZIP"))
train = records.batch(5).map(lambda batch: tf.io.parse_example(batch, spec))
sizes = [len(batch["image/class/label"]) for batch in train]
print(json.dumps([steps_per_epoch(folder, "train", 5), sizes]))
"""


def read(code: str, uri: str, env: dict[str, str]):
    """Run code in a new process and return the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, uri], env=env, capture_output=True, text=True, check=False,
        timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def published(album, bucket, tmp_path) -> str:
    output = f"{bucket}/sets/out"
    assert build("images", album.inputs / "images", output).status == "published"
    return output


def test_tf_data_reads_every_record(published, hosts, album, tmp_path):
    import hashlib

    found = read(PLAIN, published, hosts.client_env())
    wanted = {}
    for name, data in album.wanted("images").items():
        if "tfrecord" in name:
            (tmp_path / name).write_bytes(data)
            records = gzip_records(tmp_path / name)
            wanted[name] = [hashlib.sha256(record).hexdigest() for record in records]
    assert found == wanted
    assert sum(map(len, wanted.values())) == 24
    assert set(hosts.asked) == {"www.googleapis.com:443", "storage.googleapis.com:443"}
    kinds = hosts.front.counts()
    print(dict(kinds))
    assert kinds["download"] >= 4
    assert kinds["list"] >= 1


def test_tf_data_parses_with_feature_spec(published, hosts):
    # Shardmill reads the manifest from the emulator, TensorFlow the shards through its own client.
    env = {**hosts.client_env(), "STORAGE_EMULATOR_HOST": f"http://{hosts.front.upstream}"}
    batches, sizes = read(PARSED, published, env)
    downloads = {c.name.rpartition("/")[2] for c in hosts.front.calls if c.kind == "download"}
    assert batches == len(sizes)
    assert downloads == {"train-00000-of-00002.tfrecord.gz", "train-00001-of-00002.tfrecord.gz"}
