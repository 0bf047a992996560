"""Compare mixes of two datasets: Shardmill, MosaicML Streaming, Grain.

usage: python benchmarks/mix_peers.py WORK [--tools NAME...]

Prints a table. Each tool mixes 900 and 300 records, 3 to 1, in epochs of 1,000 examples; it is
stopped after 30 batches and continues from its state. A record is a number, so that each example is
counted. ``python benchmarks/mix_peers.py run TOOL FOLDER JSON`` is one run in the environment of a
tool; WORK holds the environments and the datasets.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from environments import environment

SIZES = {"a": 900, "b": 300}
WEIGHTS = {"a": 3, "b": 1}
OTHER_WEIGHTS = {"a": 1, "b": 1}
FIRST_OF_B = 10_000  # the numbers of b begin here
EPOCH, BATCH, STOP = 1000, 8, 30
EPOCHS = 6
# What a run takes: batches to read, None for the rest of the epoch; epochs; and the state, if any.
Run = dict[str, Any]


def numbers_of(name: str) -> range:
    """Returns the records of a dataset."""
    first = 0 if name == "a" else FIRST_OF_B
    return range(first, first + SIZES[name])


# --- The programs of the tools: ``write_TOOL`` makes the datasets, ``read_TOOL`` is a run --------


def write_shardmill(folder: Path) -> None:
    import shardmill

    for name in SIZES:
        records = [{"id": number} for number in numbers_of(name)]
        shardmill.write(records, folder / name, splits="train:1", overwrite=True)


def read_shardmill(folder: Path, run: Run) -> tuple[list[int], Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    from shardmill import mix, torch_dataset

    state, after = run["state"], None
    if run["changed"]:
        state, after = None, run["state"]
    weights = {folder / name: weight for name, weight in run["weights"].items()}
    stream = torch_dataset(mix(weights, until=EPOCH, after=after), shuffle=True, order="records")
    if state is not None:
        stream = stream.resume(state)
    loader = StatefulDataLoader(stream, BATCH, num_workers=run["workers"])
    return take(loader, run, lambda batch: batch["id"].tolist(), loader.state_dict)


def write_mosaicml(folder: Path) -> None:
    from streaming import MDSWriter

    for name in SIZES:
        with MDSWriter(out=f"{folder}/{name}", columns={"id": "int"}, exist_ok=True) as writer:
            for number in numbers_of(name):
                writer.write({"id": number})


def read_mosaicml(folder: Path, run: Run) -> tuple[list[int], Any]:
    from streaming import Stream, StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    total = sum(run["weights"].values())
    streams = [
        Stream(local=f"{folder}/{name}", proportion=weight / total)
        for name, weight in run["weights"].items()
    ]
    dataset = StreamingDataset(
        streams=streams, epoch_size=EPOCH, shuffle=True, batch_size=BATCH, num_canonical_nodes=1
    )
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=run["workers"])
    if run["state"] is not None:
        loader.load_state_dict(run["state"])
    return take(loader, run, lambda batch: batch["id"].tolist(), loader.state_dict)


def write_grain(_folder: Path) -> None:
    """Does nothing: a source of Grain is any sequence."""


def read_grain(_folder: Path, run: Run) -> tuple[list[int], Any]:
    import grain
    from absl import flags

    flags.FLAGS(sys.argv[:1])  # its workers read flags of absl
    parts = [grain.MapDataset.source(numbers_of(name)).shuffle(seed=0).repeat() for name in SIZES]
    weights = [float(weight) for weight in run["weights"].values()]
    mixed = grain.MapDataset.mix(parts, weights)
    dataset = mixed.batch(BATCH).to_iter_dataset()
    if run["workers"]:
        options = grain.MultiprocessingOptions(num_workers=run["workers"])
        dataset = dataset.mp_prefetch(options)
    batches = iter(dataset)
    if run["state"] is not None:
        batches.set_state(run["state"])
    return take(batches, run, lambda batch: batch.tolist(), batches.get_state)


# --- The judge ----------------------------------------------------------------------------------


def take(
    loader: Any, run: Run, ids: Callable[[Any], list[int]], state: Callable[[], Any]
) -> tuple[list[int], Any]:
    """Returns the numbers of some batches, and the state after them.

    Args:
        loader: Yields batches; if it ends, its next iteration is the next epoch.
        run: Its ``examples`` are read.
        ids: Returns the numbers of a batch.
        state: Returns the state.
    """
    read: list[int] = []
    while len(read) < run["examples"]:
        for batch in loader:
            read += ids(batch)
            if len(read) >= run["examples"]:
                return read, state()
    return read, state()


def start(tool: str, work: Path, **run: Any) -> tuple[list[int], Any]:
    """Runs a tool in a new process; returns the numbers that it read, and its state.

    Raises:
        RuntimeError: It failed; the message is its first error.
    """
    folder = work / "mix" / tool
    folder.mkdir(parents=True, exist_ok=True)
    defaults = {"weights": WEIGHTS, "workers": 2, "examples": EPOCH, "state": None}
    file = folder / "run.json"
    file.write_text(json.dumps({**defaults, "changed": False, **run}, default=_to_json))
    python = sys.executable if tool in ("shardmill", "grain") else environment(tool, work)
    done = subprocess.run(
        [python, __file__, "run", tool, folder, file], capture_output=True, text=True, check=False
    )
    if done.returncode:
        # The processes that end later print errors, too.
        lines = (line for line in done.stderr.splitlines() if re.match(r"[\w.]+Error: ", line))
        raise RuntimeError(next(lines, "no error is printed")[:200])
    read, state = json.loads(file.read_text())
    return read, state


def differences(read: list[int], expected: list[int]) -> str:
    """Returns how many examples are missing and repeated."""
    counted, right = Counter(read), Counter(expected)
    return f"{(right - counted).total()} missing, {(counted - right).total()} repeated"


def deviation(read: list[int]) -> float:
    """Returns how far the examples of the first dataset are from their share, at most."""
    share = WEIGHTS["a"] / sum(WEIGHTS.values())
    number, most = 0, 0.0
    for length, example in enumerate(read, 1):
        number += example < FIRST_OF_B
        most = max(most, abs(number - share * length))
    return most


def times_read(read: list[int]) -> str:
    """Returns how often a record of the first dataset was read: the fewest and the most times."""
    counted = Counter(read)
    times = [counted[number] for number in numbers_of("a")]
    return f"{min(times)} to {max(times)}"


def continued(tool: str, work: Path, workers: int) -> str:
    """Returns how many examples an epoch that stops and continues lacks or repeats."""
    whole, _ = start(tool, work)
    begun, state = start(tool, work, examples=STOP * BATCH)
    try:
        rest, _ = start(tool, work, examples=EPOCH - STOP * BATCH, state=state, workers=workers)
    except RuntimeError as error:
        return f"rejected: {error}"
    return differences(begun + rest, whole)


def reweighted(tool: str, work: Path) -> str:
    """Returns how many records repeat after a change of weights, none of whose datasets ends."""
    begun, state = start(tool, work, examples=STOP * BATCH)
    rest, _ = start(
        tool, work, examples=STOP * BATCH, state=state, weights=OTHER_WEIGHTS, changed=True
    )
    repeated = sum(count - 1 for count in Counter(begun + rest).values())
    return f"{repeated} repeated"


def statements(tool: str) -> int:
    """Returns the number of statements of a tool's program, without imports."""
    tree = ast.parse(inspect.getsource(globals()[f"read_{tool}"]))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    left_out = ast.Import | ast.ImportFrom | ast.FunctionDef
    return sum(not isinstance(node, left_out) for node in nodes)


def compare(tools: list[str], work: Path) -> None:
    """Prints the table."""
    print(
        "| | statements | off the weights, at most | record read in six epochs | 2 to 2 workers "
        "| 2 to 3 workers | other weights |\n|---|---|---|---|---|---|---|"
    )
    for tool in tools:
        alone, _ = start(tool, work, workers=1)
        many, _ = start(tool, work, workers=1, examples=EPOCHS * EPOCH)
        cells = [
            tool,
            statements(tool),
            f"{deviation(alone[:EPOCH]):.2f} examples",
            f"{times_read(many)} times",
            continued(tool, work, workers=2),
            continued(tool, work, workers=3),
            reweighted(tool, work),
        ]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def _to_json(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value.tolist()


def _run(tool: str, folder: Path, file: Path) -> None:
    run = json.loads(file.read_text())
    written = folder / "written"
    if not written.exists():
        globals()[f"write_{tool}"](folder)
        written.touch()
    file.write_text(json.dumps(globals()[f"read_{tool}"](folder, run), default=_to_json))


if __name__ == "__main__":
    if sys.argv[1] == "run":
        _run(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("work", type=Path)
        parser.add_argument("--tools", nargs="+", default=["shardmill", "mosaicml", "grain"])
        arguments = parser.parse_args()
        compare(arguments.tools, arguments.work.resolve())
