"""Two processes that train together take the same steps and read each example once."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from shardmill.loaders import Stream, open_dataset
from shardmill.schemas import Manifest
from tests.support.loader_tools import ROWS
from tests.support.servers import free_port

pytest_plugins = ["tests.support.loader_data"]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

TENSORFLOW = """
import json, sys
import tensorflow as tf
from shardmill import Stream, keras_dataset, open_dataset

strategy = tf.distribute.MultiWorkerMirroredStrategy()
records = open_dataset(sys.argv[1], "train", features=["number"])
stream = Stream(records, shuffle=True, remainder=sys.argv[2])
local = keras_dataset(stream, batch_size=8, features=["number"], label=None)
if strategy.cluster_resolver.task_id == 0:
    next(iter(local))  # only this host looks at a batch
data = strategy.distribute_datasets_from_function(lambda _: local)
epochs = []
for epoch in range(2):
    stream.set_epoch(epoch)
    steps = []
    for batch in data:
        inputs, weights = batch if sys.argv[2] == "pad" else (batch, None)
        total = strategy.reduce("SUM", strategy.run(tf.size, (inputs["number"],)), axis=None)
        (local,) = strategy.experimental_local_results(inputs["number"])
        mask = [1.0] * len(local)
        if weights is not None:
            mask = strategy.experimental_local_results(weights)[0].numpy().tolist()
        numbers = local.numpy().ravel().tolist()
        steps.append((numbers, mask, int(total)))
    epochs.append(steps)
print(json.dumps(epochs))
"""
EVALUATION = """
import json, sys
import keras
import tensorflow as tf
from shardmill import keras_dataset

strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)
layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(3)]
model = keras.Sequential([keras.Input((16, 24, 4)), *layers])
entropy = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
model.compile(loss=keras.losses.SparseCategoricalCrossentropy(True),
              weighted_metrics=["accuracy", entropy])

def read(host=None, batch_size=16):
    return keras_dataset(sys.argv[1], batch_size=batch_size, remainder="pad", host=host)

def step(images, labels, weights):
    hits = tf.cast(tf.argmax(model(images), 1) == labels, tf.float32)
    return tf.reduce_sum(hits * weights), tf.reduce_sum(weights)

totals = [0.0, 0.0]
for batch in strategy.distribute_datasets_from_function(lambda _: read()):
    both = strategy.run(step, batch)
    totals = [a + float(strategy.reduce("SUM", b, axis=None)) for a, b in zip(totals, both)]
one = model.evaluate(read((0, 1), 1), verbose=0)
parts = model.evaluate(read((0, 2)).concatenate(read((1, 2))), verbose=0)
print(json.dumps([totals, one, parts]))
"""
MIRRORED = """
import json, sys
import keras
import tensorflow as tf
from shardmill import Stream, keras_dataset, open_dataset

table, backup, replicas, fails_in, fails_at = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
strategy = tf.distribute.MirroredStrategy([f"CPU:{n}" for n in range(replicas)])
read = []

class Recorder(keras.Model):
    def call(self, inputs):
        return inputs["number"]
    def train_step(self, data):
        read[-1].extend(data["number"].numpy().ravel().tolist())
        return {"loss": tf.constant(0.0)}

class Fail(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.fails_in, self.epoch = epoch, None
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        read.append([])
    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (self.fails_in, fails_at):
            raise ZeroDivisionError

def fit(fails_in):
    records = open_dataset(table, "train", features=["number"])
    stream = Stream(records, shuffle=True, seed=3)
    with strategy.scope():
        model = Recorder()
        model.compile(run_eagerly=True)
    begin = lambda epoch, logs: stream.set_epoch(epoch)
    model.fit(
        keras_dataset(stream, batch_size=8, features=["number"], label=None, remainder="drop"),
        epochs=3, verbose=0, callbacks=[
            keras.callbacks.BackupAndRestore(backup),
            keras.callbacks.LambdaCallback(on_epoch_begin=begin), Fail(fails_in)],
    )

try:
    fit(fails_in)
except ZeroDivisionError:
    read.pop()
    fit(-1)
print(json.dumps(read))
"""
TORCH = """
import json, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
from shardmill import torch_dataset

stream = torch_dataset(sys.argv[1], "train", shuffle=True, features=["number"])
rank, workers, context = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
loader = DataLoader(stream, 4, num_workers=workers,
                    multiprocessing_context=context if workers else None)

def main(rank):
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{sys.argv[2]}",
                            rank=rank, world_size=2)
    if rank == 0:
        next(iter(loader))  # only this host looks at a batch
    epochs = []
    for epoch in range(2):
        stream.set_epoch(epoch)
        steps = []
        for batch in loader:
            total = torch.tensor(len(batch["number"]))
            dist.all_reduce(total)
            steps.append((batch["number"].tolist(), [1.0] * len(batch["number"]), int(total)))
        epochs.append(steps)
    print(json.dumps(epochs))
    dist.destroy_process_group()

if __name__ == "__main__":
    main(rank)
"""
SPAWN = """
import json, sys
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader
from shardmill import torch_dataset

def main(rank, stream, port, workers, results):
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=2)
    loader, epochs = DataLoader(stream, 4, num_workers=workers), []
    if rank == 0:
        next(iter(loader))
    for epoch in range(2):
        stream.set_epoch(epoch)
        epochs.append([(b["number"].tolist(), [1.0] * len(b["number"]), 0) for b in loader])
    results.put((rank, epochs))
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    stream = torch_dataset(sys.argv[1], "train", shuffle=True, features=["number"])
    results = mp.get_context("spawn").SimpleQueue()
    words = stream, int(sys.argv[2]), int(sys.argv[3]), results
    running = mp.spawn(main, words, 2, join=False)
    found = dict(results.get() for _ in range(2))
    while not running.join():
        pass
    print(json.dumps([found[0], found[1]]))
"""
JAX = """
import json, sys
import jax
from shardmill import Stream, open_dataset

jax.distributed.initialize(f"localhost:{sys.argv[2]}", 2, int(sys.argv[3]))
stream = Stream(open_dataset(sys.argv[1], "train", features=["number"]), shuffle=True)
if sys.argv[3] == "0":
    next(iter(stream))
epochs = []
for epoch in range(2):
    stream.set_epoch(epoch)
    epochs.append([([int(row["number"])], [1.0], 0) for row in stream])
print(json.dumps(epochs))
"""


VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def run_both(code, arguments, environments=({}, {})):
    """Run two processes; return what each printed: steps by epoch."""
    clean = {name: text for name, text in os.environ.items() if name not in VARIABLES}
    processes = [
        subprocess.Popen(
            [sys.executable, *map(str, (*code, *words))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean | extra,
        )
        for words, extra in zip(arguments, environments, strict=False)
    ]
    ended = [process.communicate(timeout=240) for process in processes]
    for process, (_, errors) in zip(processes, ended, strict=True):
        assert process.returncode == 0, errors[-2000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


def numbers_of(steps):
    return Counter(
        number
        for numbers, mask, _ in steps
        for number, weight in zip(numbers, mask, strict=True)
        if weight
    )


def train_numbers(table):
    manifest = Manifest.from_json((table / "manifest.json").read_text())
    return manifest.splits["train"].num_examples


@pytest.mark.sweep
@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_tensorflow(table, remainder):
    """MultiWorkerMirroredStrategy: the processes are found by TF_CONFIG."""
    cluster = {"worker": [f"localhost:{free_port()}" for _ in range(2)]}
    configs = [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})}
        for index in range(2)
    ]
    epochs = run_both(["-c", TENSORFLOW], [(table, remainder)] * 2, configs)
    total = train_numbers(table)
    orders = []
    for first, second in zip(*epochs, strict=True):
        assert len(first) == len(second) == (total // 8 if remainder == "drop" else -(-total // 8))
        assert all(len(numbers) == 4 and whole == 8 for numbers, _, whole in first + second)
        read = numbers_of(first) + numbers_of(second)
        assert set(read.values()) == {1}
        assert len(read) == (total // 8 * 8 if remainder == "drop" else total)
        orders.append([numbers for numbers, *_ in first])
    assert orders[0] != orders[1]


@pytest.mark.sweep
@pytest.mark.parametrize("fails_in", [1, 2])
def test_a_fit_that_failed_continues_after_a_backup(fails_in, table, tmp_path):
    """With MirroredStrategy and BackupAndRestore, which begins the interrupted epoch again."""
    words = table, tmp_path / "backup", 2, fails_in, 2
    (epochs,) = run_both(["-c", MIRRORED], [words])
    total = train_numbers(table)
    records = open_dataset(table, "train", features=["number"])
    for number, read in enumerate(epochs):
        expected = [
            int(row["number"]) for row in Stream(records, shuffle=True, seed=3, epoch=number)
        ]
        assert sorted(read) == sorted(expected[: total // 8 * 8])
    assert len(epochs) == 3


@pytest.mark.nightly
def test_evaluation_is_exact(images):
    """Two processes together, and Keras on the batches of both, have the metrics of one host."""
    cluster = {"worker": [f"localhost:{free_port()}" for _ in range(2)]}
    configs = [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})}
        for index in range(2)
    ]
    ds = images("png")
    total = train_numbers(ds)
    assert total % 16
    for (hits, weight), one, parts in run_both(["-c", EVALUATION], [(ds,)] * 2, configs):
        assert weight == total
        assert hits == round(one[1] * total) > 0
        assert parts[1] == one[1]
        assert parts[2] == pytest.approx(one[2], rel=1e-5)
        assert one[2] == pytest.approx(one[0], rel=1e-5)
        assert parts[0] < one[0]  # Keras divides the loss by the number with the padding


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("launcher", "workers"),
    [("gloo fork", 0), ("gloo fork", 2), ("gloo spawn", 2), ("spawn", 0), ("spawn", 2), ("jax", 0)],
)
def test_launchers(launcher, workers, table, tmp_path):
    """Equal steps and no example twice, though one host looked at a batch before."""
    kind, _, context = launcher.partition(" ")
    port, script = free_port(), tmp_path / "train.py"
    script.write_text({"gloo": TORCH, "spawn": SPAWN, "jax": JAX}[kind])
    if kind == "spawn":
        ((first, second),) = run_both([script], [(table, port, workers)])
        epochs = [first, second]
    else:
        epochs = run_both([script], [(table, port, rank, workers, context) for rank in range(2)])
    total = train_numbers(table)
    orders = []
    for first, second in zip(*epochs, strict=True):
        assert len(first) == len(second)
        read = numbers_of(first) + numbers_of(second)
        assert set(read.values()) == {1}
        assert total - 1 <= len(read) <= total <= ROWS
        assert numbers_of(first).total() == numbers_of(second).total() == total // 2
        orders.append([numbers for numbers, *_ in first])
    assert orders[0] != orders[1]
