"""TensorFlow's gs:// file system, unmodified, reads a dataset published to a bucket."""

import json
import subprocess
import sys

from tests.support.gcs_builds import build

pytest_plugins = ["tests.support.gcs_server", "tests.support.gcs_builds", "tests.support.gcs_hosts"]

READ = """
import hashlib, json, sys
import tensorflow as tf
from shardmill.loaders import feature_spec, steps_per_epoch
folder = sys.argv[1]
records = tf.data.TFRecordDataset(tf.io.gfile.glob(folder + "/gen-*/*.tfrecord.gz"), "GZIP")
found = [hashlib.sha256(record.numpy()).hexdigest() for record in records]
spec = feature_spec(folder, features=["image/encoded", "image/class/label"])
files = tf.data.Dataset.list_files(folder + "/gen-*/train-*", seed=0)
records = files.interleave(lambda file: tf.data.TFRecordDataset(file, "GZIP"))
train = records.batch(5).map(lambda batch: tf.io.parse_example(batch, spec))
sizes = [len(batch["image/class/label"]) for batch in train]
print(json.dumps([found, steps_per_epoch(folder, "train", 5), sizes]))
"""


def test_tensorflow_reads_every_record(album, bucket, hosts, tmp_path):
    output = f"{bucket}/sets/out"
    assert build("images", album.inputs / "images", output).status == "published"
    # Shardmill reads the manifest from the emulator, TensorFlow the shards through its own client.
    env = {**hosts.client_env(), "STORAGE_EMULATOR_HOST": f"http://{hosts.front.upstream}"}
    done = subprocess.run(
        [sys.executable, "-c", READ, output], env=env, capture_output=True, text=True, check=False,
        timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found, batches, sizes = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found) == album.digests(tmp_path)
    assert batches == len(sizes)
    assert set(hosts.tunnel.asked) == {"www.googleapis.com:443", "storage.googleapis.com:443"}
    kinds = hosts.front.counts()
    assert kinds["download"] >= 4
    assert kinds["list"] >= 1
    downloads = [
        call.name.rpartition("/")[2] for call in hosts.front.calls if call.kind == "download"
    ]
    assert set(downloads) >= {f"train-0000{n}-of-00002.tfrecord.gz" for n in range(2)}
