"""Sixty epochs use no more memory, open files and threads than fifteen."""

import json
import subprocess
import sys

import pytest

pytest_plugins = ["tests.support.loader_data"]
CODE = """
import gc, json, sys
import psutil
from shardmill import Stream, keras_dataset, open_dataset

folder, kind = sys.argv[1:]
if kind == "keras":
    data = keras_dataset(folder, "train", batch_size=8, shuffle=True)
elif kind == "stream":
    data = Stream(open_dataset(folder, "train"), shuffle=True)
else:
    data = open_dataset(folder, "train")
process, seen = psutil.Process(), []
for epoch in range(60):
    for _ in data if kind != "random" else (data[n] for n in range(len(data))):
        pass
    if epoch % 15 == 14:
        gc.collect()
        seen.append((process.memory_info().rss, process.num_fds(), process.num_threads()))
print(json.dumps(seen))
"""


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["keras", "stream", "random"])
@pytest.mark.parametrize("encoding", ["jpeg", "raw"])
def test_epochs_leak_nothing(kind, encoding, images):
    words = [sys.executable, "-c", CODE, str(images(encoding)), kind]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    first, *_, last = json.loads(done.stdout.splitlines()[-1])
    assert last[0] - first[0] < 16 << 20
    assert last[1] <= first[1]
    assert last[2] <= first[2] + 1
