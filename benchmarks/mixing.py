"""Measure how well the orders of Shardmill, MosaicML Streaming and WebDataset mix records.

usage: python benchmarks/mixing.py

Prints a table. Each tool orders 260,000 records of 23 kB: in 100 shards that hold all of 1,000
labels, and in a shard for each label. ``mosaicml`` needs its own environment: ``python
benchmarks/mixing.py mosaicml FILE`` writes its orders to a file.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from environments import environment

LABELS, EACH, RECORD_BYTES = 1000, 260, 23_000
MEMBER = 90  # records of 2 MiB
BUFFER = (64 << 20) // RECORD_BYTES
NEAR = 256
Order = Any  # the numbers of the records of an epoch, int64 of shape [records]
TITLES = {
    "full": "full shuffle",
    "records": "`records`",
    "blocks": "`blocks`, 64 MiB",
    "blocks4": "`blocks`, `buffer=` of 256 MiB",
    "blocks16": "`blocks`, `buffer=` of 1 GiB",
    "webdataset": "WebDataset, `shuffle(1000)`",
    "webdataset64": f"WebDataset, `shuffle({BUFFER})`: 64 MiB",
    "py1e": "MosaicML, `py1e` (default)",
    "py1e_small": "MosaicML, `py1e`, `shuffle_block_size=10000`",
    "py1s": "MosaicML, `py1s`",
}


def sizes_of(by_label: bool) -> list[int]:
    """Returns the number of records in each shard."""
    return [EACH] * LABELS if by_label else [LABELS * EACH // 100] * 100


def shardmill(name: str, by_label: bool, epoch: int) -> Order:
    """Returns the order of a stream of one host."""
    from shardmill.loaders.order import EpochOrder
    from shardmill.loaders.pieces import Piece
    from shardmill.loaders.selection import ShardSlice
    from shardmill.schemas.dataset.manifest import Shard

    window = BUFFER * int(name.removeprefix("blocks") or 1) if name != "records" else 1
    sizes = sizes_of(by_label)
    labels = [f"{n}" if by_label else None for n in range(len(sizes))]
    shards = [
        Shard(f"{n}", size, size * RECORD_BYTES, None, label=label)
        for n, (size, label) in enumerate(zip(sizes, labels, strict=True))
    ]
    parts = [ShardSlice(shard, 0, shard.records) for shard in shards]
    bounds = [*range(0, sizes[0], MEMBER), sizes[0]]
    order = EpochOrder(
        parts, None, True, f"0/{epoch}", lambda: window, lambda numbers: [bounds] * len(numbers)
    )
    if name == "records":
        found, records = order.places(np.arange(len(order)))
        return found * sizes[0] + records
    read = []
    for each in order.windows([Piece(0, len(order))]):
        chunks = [chunk.part * sizes[0] + np.array(chunk.records) for chunk in each.chunks]
        firsts = np.cumsum([0, *map(len, chunks)])
        read.append(np.concatenate(chunks)[firsts[each.owners] + each.offsets])
    return np.concatenate(read)


def webdataset(buffer: int, by_label: bool, epoch: int) -> Order:
    """Returns the order of shuffled shards and a shuffle buffer."""
    from webdataset.filters import shuffle

    rng, sizes = random.Random(epoch), sizes_of(by_label)
    shards = list(range(len(sizes)))
    rng.shuffle(shards)
    numbers = (n * sizes[0] + record for n in shards for record in range(sizes[n]))
    return np.array(list(shuffle(buffer, rng=rng)(iter(numbers))))


def mosaicml(file: Path) -> None:
    """Writes the orders of MosaicML Streaming for one node."""
    from streaming.base.shuffle import get_shuffle

    options = {"py1e": ("py1e", 4_000_000), "py1e_small": ("py1e", 10_000), "py1s": ("py1s", 1)}
    found = {}
    for name, (kind, block) in options.items():
        for by_label in (False, True):
            sizes = np.array(sizes_of(by_label))
            for epoch in range(2):
                order = get_shuffle(kind, sizes, 1, 9176, epoch, block)
                found[f"{name} {by_label} {epoch}"] = order[order >= 0]
    np.savez_compressed(file, **found)


def near_again(first: Order, second: Order) -> float:
    """Returns the share of the pairs within 256 that are within 256 in the next epoch too."""
    place = np.argsort(second)
    pairs = [np.abs(place[first[n:]] - place[first[:-n]]) <= NEAR for n in range(1, NEAR + 1)]
    return float(np.concatenate(pairs).mean())


def distinct_labels(order: Order, by_label: bool) -> float:
    """Returns the average number of labels in 256 successive records."""
    labels = order if by_label else np.random.default_rng(1).permutation(len(order))[order]
    ends = range(0, len(order) - NEAR, NEAR)
    return float(np.mean([len(np.unique(labels[at : at + NEAR] // EACH)) for at in ends]))


def open_shards(order: Order, size: int) -> int:
    """Returns the largest number of shards that are in use at one time."""
    shards = order // size
    first, last = np.full(shards.max() + 1, len(order)), np.zeros(shards.max() + 1, np.int64)
    np.minimum.at(first, shards, np.arange(len(order)))
    np.maximum.at(last, shards, np.arange(len(order)))
    steps = np.zeros(len(order) + 1, np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, last + 1, -1)
    return int(np.cumsum(steps).max())


def orders(work: Path) -> Iterator[tuple[str, list[list[Order]]]]:
    """Yields the orders of two epochs of each tool, of both kinds of shards."""
    kinds, epochs = (False, True), range(2)
    total = LABELS * EACH
    full = [[np.random.default_rng(n).permutation(total) for n in epochs] for _ in kinds]
    yield "full", full
    for name in ("records", "blocks", "blocks4", "blocks16"):
        yield name, [[shardmill(name, kind, n) for n in epochs] for kind in kinds]
    for name, buffer in (("webdataset", 1000), ("webdataset64", BUFFER)):
        yield name, [[webdataset(buffer, kind, n) for n in epochs] for kind in kinds]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "orders.npz"
        subprocess.run([environment("mosaicml", work), __file__, "mosaicml", file], check=True)
        found = np.load(file)
        for name in ("py1e", "py1e_small", "py1s"):
            yield name, [[found[f"{name} {kind} {n}"] for n in epochs] for kind in kinds]


def table(work: Path) -> str:
    """Returns the table; work is the folder of the environments."""
    lines = [
        "| order | neighbours | labels | shards in use | neighbours | labels | shards in use |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, kinds in orders(work):
        cells = [TITLES[name]]
        for by_label, (first, second) in zip((False, True), kinds, strict=True):
            assert len(np.unique(first)) == LABELS * EACH
            cells += [
                f"{near_again(first, second):.2%}",
                f"{distinct_labels(first, by_label):.0f}",
                f"{open_shards(first, sizes_of(by_label)[0]):,}",
            ]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["mosaicml"]:
        mosaicml(Path(sys.argv[2]))
    else:
        table(Path(sys.argv[1]))
