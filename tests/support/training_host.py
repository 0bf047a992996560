"""A process of a training job that reads, records what it was given, and saves checkpoints."""

import contextlib
import itertools
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Plan(NamedTuple):
    """What one host does.

    Attributes:
        kind: ``stream``, ``torch``, ``stateful`` or ``keras``.
        dataset: The dataset's folder.
        folder: Where it writes ``HOST.log`` and checkpoints ``HOST-STEP``.
        host: Number of the host, and of all hosts.
        workers: Number of workers of a DataLoader; threads of a ``Stream``.
        batch: Examples in a batch of a host.
        every: Steps between two checkpoints.
        epoch: The epoch.
        options: Options of ``Stream``.
        deals: Arguments of ``at`` and ``then`` for what was read before.
        state: A checkpoint; None for none.
    """

    kind: str
    dataset: str
    folder: str
    host: tuple[int, int]
    workers: int
    batch: int
    every: int
    epoch: int
    options: dict[str, Any]
    deals: list[dict[str, int]]
    state: bytes | None


def train(plan: Plan, progress: Any) -> None:
    """Reads the rest of the epoch, and the next epoch; sends the number of each step."""
    number = plan.host[0]
    log = os.open(f"{plan.folder}/{number}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with contextlib.suppress(BrokenPipeError):  # the judge has killed another host
        for epoch in (plan.epoch, plan.epoch + 1):
            for step, (ids, state) in enumerate(READERS[plan.kind](plan, epoch), 1):
                os.write(log, json.dumps([epoch, step, ids]).encode() + b"\n")
                if epoch == plan.epoch and step % plan.every == 0:
                    save(Path(plan.folder, f"{number}-{step}"), pickle.dumps(state))
                progress.send(step)
        os.write(log, b"[-1, 0, []]\n")


def save(path: Path, data: bytes) -> None:
    """Writes a file, all of it or none."""
    part = path.with_suffix(".part")
    part.write_bytes(data)
    part.replace(path)


def open_stream(plan: Plan, epoch: int, make: Any, **options: Any) -> Any:
    """Returns a stream at the position of the plan, or at the beginning of the next epoch."""
    from shardmill.loaders import open_dataset

    records = open_dataset(plan.dataset, decode=False)
    stream = make(records, host=plan.host, **plan.options, **options)
    stream.set_epoch(epoch)
    if epoch == plan.epoch and plan.deals:
        stream.at(epoch, 0)
        for deal in plan.deals:
            stream.then(**deal)
    return stream


def real(rows: Any) -> list[int]:
    return [int(row["id"]) for row in rows if row.get("weight", 1)]


def read_stream(plan: Plan, epoch: int) -> Iterator[tuple[list[int], Any]]:
    from shardmill.loaders import Stream

    stream = open_stream(plan, epoch, Stream, workers=plan.workers)
    if plan.state is not None and epoch == plan.epoch:
        stream.load_state_dict(pickle.loads(plan.state))
    rows = iter(stream)
    while batch := list(itertools.islice(rows, plan.batch)):
        yield real(batch), stream.state_dict()


def unbatch(batch: dict[str, Any]) -> list[int]:
    weights = batch.get("weight", itertools.repeat(1))
    return [int(n) for n, weight in zip(batch["id"], weights, strict=False) if weight]


def read_torch(plan: Plan, epoch: int) -> Iterator[tuple[list[int], Any]]:
    from torch.utils.data import DataLoader

    from shardmill.loaders import torch_dataset

    stream = open_stream(plan, epoch, torch_dataset)
    for batch in DataLoader(stream, plan.batch, num_workers=plan.workers):
        yield unbatch(batch), None


def read_stateful(plan: Plan, epoch: int) -> Iterator[tuple[list[int], Any]]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    from shardmill.loaders import torch_dataset

    stream = open_stream(plan, epoch, torch_dataset)
    loader = StatefulDataLoader(stream, plan.batch, num_workers=plan.workers)
    if plan.state is not None and epoch == plan.epoch:
        loader.load_state_dict(pickle.loads(plan.state))
    for batch in loader:
        yield unbatch(batch), loader.state_dict()


def read_keras(plan: Plan, epoch: int) -> Iterator[tuple[list[int], Any]]:
    from shardmill.loaders import Stream, keras_dataset

    stream = open_stream(plan, epoch, Stream)
    padded = plan.options["remainder"] == "pad"
    for element in keras_dataset(stream, batch_size=plan.batch * plan.host[1], label=None):
        inputs, weights = element if padded else (element, None)
        ids = inputs["id"].numpy().ravel().tolist()
        yield (
            [
                n
                for n, w in zip(ids, ids if weights is None else weights, strict=True)
                if weights is None or w
            ],
            None,
        )


READERS = {
    "stream": read_stream,
    "torch": read_torch,
    "stateful": read_stateful,
    "keras": read_keras,
}
