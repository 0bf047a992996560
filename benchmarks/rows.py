"""Measure the rows pipeline: medians of interleaved whole processes, and time per row.

usage: python benchmarks/rows.py [--small] [--data FOLDER]

Writes docs/benchmarks-rows.md and docs/benchmarks-rows.png. ``--small`` is a quick trial
that writes no page.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from plots import plot_bars
from timing import Run, folder_bytes, run

HERE = Path(__file__).resolve().parent
OURS = ("shardmill", "shardmill, Parquet")
PEERS = ("floor", "tutorial")  # measured here; wide_tables.py measures arrow
TUTORIAL_ROWS = 10  # the tutorial is slow and gets so many times fewer rows

PREPROCESSING = """
import tensorflow_transform as tft

def preprocessing_fn(inputs):
    outputs = dict(inputs)
    for name in ("src_bytes", "dst_bytes"):
        outputs[name] = tft.scale_to_z_score(inputs[name])
    outputs["service"] = tft.compute_and_apply_vocabulary(inputs["service"])
    return outputs
"""


def write_table(work: Path, rows: int, suffix: str = ".csv") -> Path:
    """Writes a table in a separate process, so that the memory of this one stays small."""
    path = work / f"table-{rows}{suffix}"
    subprocess.run([sys.executable, str(HERE / "tables.py"), str(path), str(rows)], check=True)
    return path


def command(name: str, source: Path, out: Path) -> list[str]:
    """Returns the command of Shardmill or of another program."""
    if name in (*PEERS, "arrow"):
        return [sys.executable, str(HERE / "row_peers.py"), name, str(source), str(out)]
    ours = [
        sys.executable,
        "-m",
        "shardmill.pipelines.cli",
        "rows",
        f"--input={source}",
        f"--output={out}",
        "--label=label",
    ]
    if name == "transform":
        path = source.parent / "preprocessing.py"
        path.write_text(PREPROCESSING)
        ours.append(f"--preprocessing={path}")
    return ours


def measure_slopes(work: Path, counts: tuple[int, int], repeats: int) -> dict[str, dict]:
    """Returns medians of each program at two sizes, and the time per row."""
    out = work / "out"
    runs: dict[tuple[str, int], list[Run]] = {}
    sizes = {}
    for turn in range(repeats):
        for name in (*OURS, *PEERS):
            suffix = ".parquet" if name == "shardmill, Parquet" else ".csv"
            if name == "tutorial" and turn >= 2:
                continue
            for number, count in enumerate(row_counts(name, counts)):
                source = work / f"table-{count}{suffix}"
                if not source.exists():
                    write_table(work, count, suffix)
                runs.setdefault((name, number), []).append(run(command(name, source, out), out))
            sizes[name] = folder_bytes(out) / row_counts(name, counts)[1]
    table = {}
    for name in (*OURS, *PEERS):
        few, many = (runs[name, number] for number in (0, 1))
        small, large = row_counts(name, counts)
        slopes = [(b.wall - a.wall) / (large - small) for a, b in zip(few, many, strict=True)]
        cpu = [(b.cpu - a.cpu) / (large - small) for a, b in zip(few, many, strict=True)]
        table[name] = {
            "rows_s": 1 / statistics.median(slopes),
            "all_rows_s": [round(1 / slope) for slope in slopes],
            "cpu_us": 1e6 * statistics.median(cpu),
            "whole_s": statistics.median(r.wall for r in many),
            "rows": large,
            "memory": max(r.memory for r in many),
            "bytes": sizes[name],
        }
    ours, floors = (table[name]["all_rows_s"] for name in ("shardmill", "floor"))
    pairs = [mine / floor for mine, floor in zip(ours, floors, strict=True)]
    table["shardmill"]["of_floor"] = statistics.median(pairs)
    table["shardmill"]["of_floor_all"] = [round(pair, 3) for pair in pairs]
    return table


def row_counts(name: str, counts: tuple[int, int]) -> tuple[int, int]:
    """Returns the numbers of rows for a program."""
    if name != "tutorial":
        return counts
    return counts[0] // TUTORIAL_ROWS, counts[1] // TUTORIAL_ROWS


def measure_memory(work: Path, counts: tuple[int, int]) -> dict[int, tuple[float, float]]:
    """Returns peak memory in MiB and seconds by number of rows."""
    found = {}
    for count in counts:
        source = write_table(work, count)
        done = run(command("shardmill", source, work / "out"), work / "out")
        found[count] = (done.memory, done.wall)
        source.unlink()
    return found


def measure_transform(work: Path, counts: tuple[int, int], repeats: int) -> dict[str, float]:
    """Returns seconds for the rows between two sizes, with and without TensorFlow Transform."""
    sources = [write_table(work, count) for count in counts]
    out = work / "out"
    found: dict[str, list[float]] = {"shardmill": [], "transform": []}
    memory = 0.0
    for _ in range(repeats):
        for name, values in found.items():
            few, many = (run(command(name, source, out), out) for source in sources)
            values.append(many.wall - few.wall)
            memory = max(memory, many.memory)
    plain, transformed = (statistics.median(values) for values in found.values())
    return {
        "plain_s": plain,
        "transform_s": transformed,
        "times": transformed / plain,
        "memory": memory,
    }


def report(found: dict) -> str:
    """Returns the page of results."""
    table, transform = found["table"], found["transform"]
    rows = "\n".join(
        f"| {name} | {t['rows_s']:,.0f} | {t['cpu_us']:.2f} | {t['rows']:,} | {t['whole_s']:.1f} | "
        f"{t['memory']:.0f} | {t['bytes']:.1f} |"
        for name, t in sorted(table.items(), key=lambda item: -item[1]["rows_s"])
    )
    kept = "\n".join(
        f"| {count:,} | {memory:.0f} | {seconds:.1f} |"
        for count, (memory, seconds) in found["memory"].items()
    )
    times = table["shardmill"]["rows_s"] / table["tutorial"]["rows_s"]
    few, many = found["transform_counts"]
    return f"""# Benchmarks: rows

Made by `make bench-rows` on {found["machine"]}. Whole processes, medians of interleaved runs; the
speed is that of the rows between a small and a large table, so it excludes start-up.
`benchmarks/tables.py` makes the table, similar to that of the KDD Cup 1999: 42 mixed columns.
`benchmarks/row_peers.py` defines the other programs; the tutorial's loop gets a tenth of the rows.

| | rows/s | CPU us per row | rows | whole run, s | peak MiB | bytes per row |
|---|---|---|---|---|---|---|
{rows}

Shardmill writes {times:.1f} times as many rows per second as the tutorial's loop, and reaches
{table["shardmill"]["of_floor"]:.2f} of the floor's speed (median of the pairs
{table["shardmill"]["of_floor_all"]}).

![rows per second](benchmarks-rows.png)

**Memory** of the whole process:

| rows | peak MiB | seconds |
|---|---|---|
{kept}

**TensorFlow Transform**, z-scores of two columns and a vocabulary of one: the rows from {few:,} to
{many:,} take {transform["transform_s"]:.1f} s, and {transform["plain_s"]:.1f} s without it:
{transform["times"]:.2f} times as long. Peak memory {transform["memory"]:.0f} MiB.
"""


def main() -> None:
    """Measures all, prints the results and writes the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--data", type=Path)
    flags = parser.parse_args()
    work = flags.data or Path(tempfile.mkdtemp(prefix="shardmill-bench-"))
    small = flags.small
    counts, repeats = ((20_000, 120_000), 2) if small else ((50_000, 1_000_000), 5)
    transform_counts = (20_000, 120_000) if small else (50_000, 1_000_000)
    found = {
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "table": measure_slopes(work, counts, repeats),
        "transform_counts": transform_counts,
        "transform": measure_transform(work, transform_counts, 1 if small else 3),
        "memory": measure_memory(work, (50_000, 150_000) if small else (500_000, 5_000_000)),
    }
    print(json.dumps(found, indent=1))
    if not small:
        docs = HERE.parent / "docs"
        rates = {name: each["rows_s"] for name, each in found["table"].items()}
        label = "rows per second (42 columns, two cores)"
        plot_bars(rates, docs / "benchmarks-rows.png", label)
        (docs / "benchmarks-rows.md").write_text(report(found))
    if not flags.data:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
