"""Trainers that start several processes or divide batches read each example once in an epoch.

`make test-interop` installs them. Each case is two processes that train together.
"""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.support.loader_tools import write_numbered

pytestmark = pytest.mark.timeout(600)
TOTAL, BATCH = 1003, 10

COMMON = """
import json, os, sys
import torch
from torch.utils.data import DataLoader
from shardmill.loaders import open_dataset, torch_dataset

WORKERS, OPTION, OUT = int(sys.argv[2]), sys.argv[3], sys.argv[4]
stream = torch_dataset(open_dataset(sys.argv[1]), shuffle=True)

def report(rank, epochs):
    with open(f"{OUT}-{rank}.json", "w") as file:
        json.dump(epochs, file)

def end():
    # Else a thread of the group may free a tensor while Python ends, which aborts the process.
    torch.distributed.destroy_process_group()
"""
LIGHTNING = """
import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []
    def on_train_epoch_start(self):
        stream.set_epoch(self.current_epoch)
        self.seen.append([])
    def training_step(self, batch):
        self.seen[-1] += batch["id"].tolist()
        return self.layer(batch["id"].float()[:, None]).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-9)

model = Model()
off = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", **off)
trainer.fit(model, DataLoader(stream, 10, num_workers=WORKERS, persistent_workers=WORKERS > 0))
report(trainer.global_rank, model.seen)
"""
ACCELERATE = """
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

choice = {"default": {}, "shards": {"dispatch_batches": False},
          "split": {"dispatch_batches": True, "split_batches": True},
          "stateful": {"use_stateful_dataloader": True}}[OPTION]
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**choice))
loader = accelerator.prepare(DataLoader(stream, 10, num_workers=WORKERS))
if accelerator.process_index == 0:
    len(stream)
epochs = [[n for batch in loader for n in batch["id"].tolist()] for _ in range(2)]
report(accelerator.process_index, epochs)
end()
"""
TRAINER = """
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []
    def forward(self, id=None, **_):
        self.seen.append(id.tolist())
        return {"loss": self.layer(id.float()[:, None]).mean()}

model = Model()
given = TrainingArguments(OUT + "-model", per_device_train_batch_size=10, num_train_epochs=2,
    use_cpu=True, report_to=[], save_strategy="no", learning_rate=1e-9, remove_unused_columns=False,
    dataloader_num_workers=WORKERS, disable_tqdm=True, ddp_backend="gloo",
    accelerator_config={"dispatch_batches": None if OPTION == "default" else False})
Trainer(model, given, train_dataset=stream).train()
half = len(model.seen) // 2
report(int(os.environ["RANK"]), [sum(model.seen[:half], []), sum(model.seen[half:], [])])
end()
"""
CASES = [
    *[(LIGHTNING, "lightning", workers) for workers in (0, 2)],
    *[
        (ACCELERATE, option, workers)
        for option in ("default", "shards", "split", "stateful")
        for workers in (0, 2)
    ],
    *[(TRAINER, option, workers) for option in ("default", "shards") for workers in (0, 2)],
]
NAMES = {LIGHTNING: "lightning", ACCELERATE: "accelerate", TRAINER: "trainer"}


@pytest.mark.parametrize(
    ("code", "option", "workers"), CASES, ids=[f"{NAMES[c]}-{o}-{w}" for c, o, w in CASES]
)
def test_each_example_is_read_once(code, option, workers, tmp_path):
    """Trainers that need equal batches repeat some of the first examples at the end."""
    ds = write_numbered(tmp_path / "ds", [200, 0, 500, 303], 20)
    script, out = tmp_path / "train.py", tmp_path / "seen"
    script.write_text(COMMON + code)
    command = [sys.executable]
    if code != LIGHTNING:  # which starts the other process itself
        command += [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=2",
            "--standalone",  # it takes a free port, which no other process can take first
        ]
    command += [script, ds, workers, option, out]
    variables = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    env = {name: text for name, text in os.environ.items() if name not in variables}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        list(map(str, command)), env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in range(2)]
    orders = []
    for first, second in zip(*ranks, strict=True):
        assert len(first) == len(second)
        read = Counter(first + second)
        if code == LIGHTNING:  # the default of several hosts leaves out a remainder
            assert set(read.values()) == {1}
            assert len(read) == TOTAL - 1
        else:
            assert len(read) == TOTAL
            assert read.total() - TOTAL < 2 * BATCH * max(1, workers)
        orders.append(first)
    assert len(orders) == 2
    assert orders[0] != orders[1]
