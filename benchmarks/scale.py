"""Measure how the stages of a build scale with the number of inputs, parts and shards.

usage: python benchmarks/scale.py [--small] [--only STAGE] [--results FOLDER] [--work FOLDER]

No image is read. Each stage runs at each size in a separate process. Results are stored in the
results folder, one file per run, and are not measured again, so an interrupted run can be resumed.
Writes docs/scale.png and the tables between the markers of docs/benchmarks-scale.md; the rest is
written by hand. ``--small`` is a quick trial that writes nothing in docs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
PAGE, PICTURE = DOCS / "benchmarks-scale.md", DOCS / "scale.png"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
SIZES = {
    "walk": (100_000, 1_000_000),
    "listing": (100_000, 1_000_000),
    "refs": (100_000, 1_000_000, 10_000_000),
    "build": (100_000, 1_000_000, 10_000_000),
    "update": (100_000, 1_000_000),
    "finish": (1_000, 10_000, 100_000),
    "manifest": (1_000, 10_000, 100_000),
}
SMALL = 100  # --small divides sizes by this
Results = dict[str, dict[int, dict]]


def measure(stage: str, size: int, results: Path, work: Path) -> None:
    """Runs a stage unless it has a result; a run that takes too much memory has none."""
    path = results / f"{stage}-{size}.json"
    if path.exists():
        return
    folder = Path(tempfile.mkdtemp(dir=work, prefix="shardmill-scale-"))
    command = [sys.executable, "-c", "import scale_stages; scale_stages.main()"]
    done = subprocess.run(
        [*command, stage, str(size), str(folder)],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE,
        check=False,
    )
    shutil.rmtree(folder)
    if done.returncode:
        print(f"{stage} at {size:,} ended with {done.returncode}", file=sys.stderr)
        return
    path.write_bytes(done.stdout)
    print(f"{stage} at {size:,}: {done.stdout.decode().strip()}")


def load(results: Path) -> Results:
    """Returns the results by stage and size."""
    found: Results = {stage: {} for stage in SIZES}
    for path in results.glob("*.json"):
        stage, size = path.stem.split("-")
        text = path.read_text()
        if text:  # else the stage is still running
            found[stage][int(size)] = json.loads(text)
    return {stage: dict(sorted(sizes.items())) for stage, sizes in found.items()}


def exponent(points: dict[int, float]) -> float:
    """Returns the slope of a line fitted to the points on logarithmic axes."""
    logs = [(math.log(size), math.log(value)) for size, value in points.items() if value > 0]
    if len(logs) < 2:
        return float("nan")
    mean_x, mean_y = (sum(column) / len(logs) for column in zip(*logs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread


def growth_table(sizes: dict[int, dict], steps: list[str], unit: str) -> str:
    """Returns a table of CPU microseconds per unit, and the exponent of growth."""
    head = f"| CPU µs per {unit} | " + " | ".join(f"{size:,}" for size in sizes) + " | exponent |"
    lines = [head, "|---" * (len(sizes) + 2) + "|"]
    for step in steps:
        points = {size: found[step]["cpu"] for size, found in sizes.items()}
        each = " | ".join(f"{1e6 * value / size:.2f}" for size, value in points.items())
        slope = exponent(points)
        lines.append(f"| {step} | {each} | {'' if math.isnan(slope) else f'{slope:.2f}'} |")
    return "\n".join(lines)


def fact_table(sizes: dict[int, dict], rows: dict[str, str]) -> str:
    """Returns a table of other results."""
    lines = ["| | " + " | ".join(f"{size:,}" for size in sizes) + " |"]
    lines.append("|---" * (len(sizes) + 1) + "|")
    for name, shown in rows.items():
        cells = []
        for found in sizes.values():
            value = found["facts"]
            for key in name.split("."):
                value = value[key]
            cells.append(f"{value:,.0f}")
        lines.append(f"| {shown} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def call_table(sizes: dict[int, dict]) -> str:
    """Returns a table of the numbers of storage calls."""
    lines = ["| storage calls | " + " | ".join(f"{size:,}" for size in sizes) + " |"]
    lines.append("|---" * (len(sizes) + 1) + "|")
    for step in ("plan", "assemble", "publish"):
        sums = [sum(found["facts"]["calls"][step].values()) for found in sizes.values()]
        lines.append(f"| {step} | " + " | ".join(f"{value:,}" for value in sums) + " |")
    return "\n".join(lines)


def plot(found: Results, path: Path) -> None:
    """Plots the CPU seconds of each stage by size, with a linear reference."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for step in ("census", "group", "parts"):
        points = {size: each[step]["cpu"] for size, each in found["build"].items()}
        left.plot(points.keys(), points.values(), "o-", label=f"pipeline: {step}")
    for step in ("census", "place", "order"):
        points = {size: each[step]["cpu"] for size, each in found["refs"].items()}
        left.plot(points.keys(), points.values(), "s--", label=f"alone: {step}")
    for step in ("assemble", "publish"):
        points = {size: each[step]["cpu"] for size, each in found["finish"].items()}
        right.plot(points.keys(), points.values(), "o-", label=f"{step}, by parts")
    for step in ("write", "read", "open_dataset"):
        points = {size: each[step]["cpu"] for size, each in found["manifest"].items()}
        right.plot(points.keys(), points.values(), "s--", label=f"manifest: {step}, by shards")
    for axes, title in ((left, "refs"), (right, "parts or shards")):
        drawn = [line.get_xydata() for line in axes.get_lines()]
        low = min(data[:, 0].min() for data in drawn)
        high = max(data[:, 0].max() for data in drawn)
        least = min(data[:, 1].min() for data in drawn) / 2
        axes.set(xscale="log", yscale="log", xlabel=title, ylabel="CPU seconds")
        axes.plot([low, high], [least, least * high / low], ":", color="#868e96", label="linear")
        axes.legend(fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def missing(found: Results) -> str:
    """Returns a paragraph with the sizes that were not measured, or an empty string."""
    left = [
        f"{stage} at {size:,}"
        for stage, sizes in SIZES.items()
        for size in sizes
        if size not in found[stage]
    ]
    return f"\nNot measured for this page: {', '.join(left)}.\n" if left else ""


def report(found: Results) -> str:
    """Returns the tables of the results."""
    refs = ["label", "split", "census", "place", "encode", "decode", "order"]
    build = ["census", "group", "parts", "assemble", "publish", "whole"]
    return f"""{BEGIN}

**Matching**: a tree of empty files in 1,000 folders, and a listing in CSV.

{growth_table(found["walk"], ["walk"], "file")}

{growth_table(found["listing"], ["listing"], "line")}

**Each reference**, without a runner: label, split, census, part and position, the coder, and the
order and identity of parts.

{growth_table(found["refs"], refs, "ref")}

{
        fact_table(
            found["refs"],
            {
                "shuffled_bytes": "encoded bytes per reference, before they are packed",
                "census_bytes": "pickled bytes of the census with 1,000 labels",
                "mib": "growth in MiB",
            },
        )
    }

**The whole pipeline** on the in-memory runner, with tiny records.

{growth_table(found["build"], build, "ref")}

{
        fact_table(
            found["build"],
            {
                "parts": "parts",
                "shards": "shards",
                "before_mib": "MiB before",
                "peak_mib.census": "peak MiB: match, census",
                "peak_mib.group": "place, group",
                "peak_mib.parts and shards": "parts, shards",
                "peak_mib.publish": "publish",
                "manifest_bytes": "bytes of the manifest",
                "shuffled.": "bytes per image in all shuffles",
                "shuffled./BuildShards/GroupByPart": "of these `GroupByPart`",
                "shuffled./BuildShards/CountCopies": "`GroupByContent`",
            },
        )
    }

**An update** of the same dataset, to which one image in a hundred was added.

{growth_table(found["update"], build, "ref")}

{
        fact_table(
            found["update"],
            {
                "peak_mib.census": "peak MiB: match, census",
                "peak_mib.group": "compare, place, group",
                "peak_mib.parts and shards": "parts, shards",
                "shuffled.": "bytes per image in all shuffles",
                "shuffled./ComparePublished": "of these `ComparePublished`",
                "shuffled./ComparePublished/JoinByKey": "of these `JoinByKey`",
            },
        )
    }

**From parts to a published dataset**: four parts per shard, a tenth of the parts with a reject.

{growth_table(found["finish"], ["plan", "assemble", "publish"], "part")}

{call_table(found["finish"])}

{
        fact_table(
            found["finish"],
            {
                "shards": "shards",
                "built_bytes": "pickled bytes of a built shard",
                "totals_bytes": "pickled bytes of the totals of all parts",
                "mib": "MiB of the process",
            },
        )
    }

**The manifest**, with 1,000 labels.

{growth_table(found["manifest"], ["write", "read", "steps_per_epoch", "open_dataset"], "shard")}

{fact_table(found["manifest"], {"bytes": "bytes", "mib": "growth in MiB"})}
{missing(found)}
{END}"""


def main() -> None:
    """Measures all stages and writes the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", choices=SIZES, action="append")
    parser.add_argument("--most", type=int, default=10**9, help="omit larger sizes")
    parser.add_argument("--results", type=Path, default=HERE.parent / ".cache" / "scale")
    parser.add_argument("--work", type=Path, help="folder for generated files")
    flags = parser.parse_args()
    results = Path(tempfile.mkdtemp()) if flags.small else flags.results
    results.mkdir(parents=True, exist_ok=True)
    for stage in flags.only or SIZES:
        for size in SIZES[stage]:
            if size <= flags.most:
                measure(stage, size // (SMALL if flags.small else 1), results, flags.work)
    found = load(results)
    if flags.small:
        sys.exit(not all(found[stage] for stage in flags.only or SIZES))
    if not all(found.values()):
        return
    plot(found, PICTURE)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + report(found) + rest.partition(END)[2])


if __name__ == "__main__":
    main()
