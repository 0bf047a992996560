"""Measure counting: CPU time relative to tf.data, index against reading, start-up.

usage: python benchmarks/count.py [--small]

Writes docs/benchmarks-count.md. ``--small`` is a quick trial that writes no page.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

KINDS = ("GZIP images", "GZIP rows", "uncompressed images", "uncompressed rows")
GUNZIP = """
import gzip, sys
with gzip.open(sys.argv[1]) as file:
    while file.read(1 << 20):
        pass
"""
TF_DATA = """
import sys
import tensorflow as tf
records = tf.data.TFRecordDataset(sys.argv[1], "GZIP").batch(256)
print(int(records.reduce(0, lambda total, one: total + tf.size(one)).numpy()))
"""
DOCS = Path(__file__).resolve().parent.parent / "docs"


def write_shard(path: Path, kind: str, size: int) -> Path:
    """Writes a shard with about ``size`` bytes of records, with Shardmill's writer."""
    from shardmill.schemas.example.serialize import encode_example
    from shardmill.transforms.sink.record_writer import MemberWriter

    rng = random.Random(7)
    packed, what = kind.split()
    packing = "none" if packed == "uncompressed" else "stored" if what == "images" else "deflated"

    def image() -> bytes:
        return rng.randbytes(rng.randrange(20_000, 50_000))

    def row() -> bytes:
        features: dict[str, int | float | bytes] = {
            f"number_{n}": rng.randrange(2000) for n in range(7)
        }
        features |= {f"measure_{n}": rng.randrange(10_000) / 100 for n in range(7)}
        features |= {f"word_{n}": rng.choice((b"cash", b"credit card", b"none")) for n in range(4)}
        return encode_example(features)

    make = image if what == "images" else row
    pool = [make() for _ in range(2000)]
    with path.open("wb") as file:
        writer = MemberWriter(file, packing)  # type: ignore[arg-type]
        written = 0
        while written < size:
            record = rng.choice(pool)
            writer.add(record)
            written += len(record) + 16
        writer.close()
    return path


def cpu_seconds() -> float:
    """Returns the CPU time of this process, over all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def child_seconds() -> float:
    """Returns the CPU time of the processes that this one started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def read_with_tf(path: str, compression: str, batch: int) -> int:
    """Reads and checks all records with tf.data in batches, the fastest method found."""
    import tensorflow as tf

    records = tf.data.TFRecordDataset(path, compression).batch(batch)
    return int(records.reduce(0, lambda total, one: total + tf.size(one)).numpy())


def count_whole(path: str, check: str) -> int:
    """Counts the records of a file with Shardmill in this process."""
    from shardmill.schemas.tfrecord.reader import count_file

    found = count_file(path, check)  # type: ignore[arg-type]
    if found.fault is not None:
        raise SystemExit(f"{path}: {found.fault}")
    return found.records


def child(who: str, path: str) -> None:
    """Prints the number of records, and wall and CPU seconds of a second reading."""
    compression = "GZIP" if path.endswith(".gz") else ""
    if who.startswith("tf"):
        read: Callable[[], int] = functools.partial(read_with_tf, path, compression, int(who[2:]))
    else:
        read = functools.partial(count_whole, path, who)
    records = read()
    wall, cpu = time.perf_counter(), cpu_seconds()
    read()
    print(records, time.perf_counter() - wall, cpu_seconds() - cpu)


def measure(who: str, path: Path) -> tuple[int, float, float]:
    """Runs ``child`` in a separate process."""
    command = [sys.executable, __file__, "--child", who, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    records, wall, cpu = done.stdout.split()[-3:]
    return int(records), float(wall), float(cpu)


def compare_with_tf(
    work: Path, size: int, repeats: int
) -> dict[str, tuple[float, float, list[float]]]:
    """Returns MB per CPU second of tf.data and Shardmill, and the ratios of all pairs."""
    table = {}
    for kind in KINDS:
        suffix = ".tfrecord.gz" if kind.startswith("GZIP") else ".tfrecord"
        path = write_shard(work / (kind.replace(" ", "-") + suffix), kind, size)
        best = min((64, 256, 1024, 4096), key=lambda batch: measure(f"tf{batch}", path)[2])
        theirs, ours = [], []
        for _ in range(repeats):
            one, other = measure(f"tf{best}", path), measure("records", path)
            if one[0] != other[0]:
                raise SystemExit(
                    f"{kind}: tf.data read {one[0]} records, Shardmill counted {other[0]}"
                )
            theirs.append(size / 1e6 / one[2])
            ours.append(size / 1e6 / other[2])
        ratios = [b / a for a, b in zip(theirs, ours, strict=True)]
        table[kind] = statistics.median(theirs), statistics.median(ours), ratios
        print(kind, f"batch {best}:", table[kind], flush=True)
    return table


def compare_index_with_reading(work: Path, repeats: int) -> tuple[float, float]:
    """Returns the median seconds for 1 GB of images, with all records read and with the index."""
    path = write_shard(work / "large.tfrecord.gz", "GZIP images", 1_000_000_000)
    whole, index = [], []
    for _ in range(repeats):
        whole.append(measure("records", path)[1])
        index.append(measure("index", path)[1])
    return statistics.median(whole), statistics.median(index)


def compare_whole_processes(work: Path, repeats: int) -> dict[str, tuple[float, float]]:
    """Returns median wall and CPU seconds of whole processes that count 1 GB of images."""
    path = str(work / "large.tfrecord.gz")
    count = [sys.executable, "-m", "shardmill.pipelines.cli", "count", f"--input={path}"]
    commands = {
        "`shardmill count --check=index`": [*count, "--check=index"],
        "`shardmill count`": count,
        "gzip module of Python, decompressing only": [sys.executable, "-c", GUNZIP, path],
        "tf.data": [sys.executable, "-c", TF_DATA, path],
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            wall, cpu = time.perf_counter(), child_seconds()
            subprocess.run(command, check=True, capture_output=True)
            times[name].append((time.perf_counter() - wall, child_seconds() - cpu))
    found = {}
    for name, runs in times.items():
        walls, cpus = zip(*runs, strict=True)
        found[name] = statistics.median(walls), statistics.median(cpus)
    print(found, flush=True)
    return found


def startup(work: Path, repeats: int) -> tuple[float, float]:
    """Returns the median seconds of a bare interpreter and of ``shardmill steps``."""
    path, manifest = work / "GZIP-rows.tfrecord.gz", work / "m.json"
    shardmill = [sys.executable, "-m", "shardmill.pipelines.cli"]
    subprocess.run(
        [*shardmill, "count", "--input", str(path), "--manifest", str(manifest)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    commands = (
        [sys.executable, "-c", "pass"],
        [*shardmill, "steps", str(manifest), "--split=all", "--batch_size=32"],
    )
    times: list[list[float]] = [[], []]
    for _ in range(repeats * 3):
        for number, command in enumerate(commands):
            started = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times[number].append(time.perf_counter() - started)
    return statistics.median(times[0]), statistics.median(times[1])


def write_page(
    size: int,
    table: dict[str, tuple[float, float, list[float]]],
    index: tuple[float, float],
    whole: dict[str, tuple[float, float]],
    started: tuple[float, float],
) -> str:
    """Returns the page of results."""
    rows = []
    for kind, (theirs, ours, ratios) in table.items():
        pairs = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        rows.append(
            f"| {kind} | {theirs:,.0f} | {ours:,.0f} | {statistics.median(ratios):.2f} ({pairs}) |"
        )
    listed = "\n".join(rows)
    read, tail = index
    processes = "\n".join(
        f"| {name} | {wall:.2f} | {cpu:.2f} |" for name, (wall, cpu) in whole.items()
    )
    return f"""# Benchmarks: count

Made by `make bench-count` on {os.cpu_count()} cores, Python {platform.python_version()}. Shards of
{size / 1e6:,.0f} MB of records in the page cache; each reading in a separate process, medians of
interleaved runs. tf.data reads in batches of its fastest size; both check every CRC.

| | tf.data, MB per CPU second | `--check=records` | relative to tf.data (pairs) |
|---|---|---|---|
{listed}

**Index**: 1 GB of GZIP images is read in {read:.3f} s and counted by its index in
{tail * 1000:.2f} ms, {read / tail:,.0f} times as fast. Whole processes, with start-up:

| | wall-clock seconds | CPU seconds |
|---|---|---|
{processes}

**Start-up**: `shardmill steps` takes {started[1]:.3f} s, of which Python itself takes
{started[0]:.3f} s.
"""


def main() -> None:
    """Measures all and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--child", nargs=2)
    flags = parser.parse_args()
    if flags.child:
        child(*flags.child)
        return
    size, repeats = (50_000_000, 2) if flags.small else (200_000_000, 4)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        table = compare_with_tf(work, size, repeats)
        index = compare_index_with_reading(work, repeats)
        whole = compare_whole_processes(work, repeats)
        page = write_page(size, table, index, whole, startup(work, repeats))
    print(page)
    if not flags.small:
        (DOCS / "benchmarks-count.md").write_text(page)


if __name__ == "__main__":
    main()
