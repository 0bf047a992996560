"""Measures the images pipeline: whole processes, medians of interleaved runs, and the slope.

usage: python benchmarks/images.py [--small] [--data FOLDER]

Writes docs/benchmarks-images.md and docs/benchmarks-images.png. ``--small`` is a quick try.
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

from timing import Run, folder_bytes, run

HERE = Path(__file__).resolve().parent
SIZE = 224


def write_photos(folder: Path, count: int, size: str = "500x375") -> Path:
    """Writes photos in a process of its own.

    A child's peak memory is at least what its parent has when it is started, so this process stays
    small: it loads neither NumPy nor Pillow.
    """
    command = [sys.executable, str(HERE / "photos.py"), str(folder), str(count), size]
    subprocess.run(command, check=True)
    return folder


def commands(source: Path, out: Path, size: int = SIZE) -> dict[str, list[str]]:
    """Returns the command of each rival."""
    python, rivals = sys.executable, str(HERE / "rivals.py")
    ours = [python, "-m", "shardmill.pipelines.cli", "images", f"--input={source}",
            f"--output={out}", f"--image_size={size}", "--splits=train:1"]  # fmt: skip
    others = {
        name: [python, rivals, name, str(source), str(out), str(size)]
        for name in ("floor", "tutorial", "beam")
    }
    return {"shardmill": ours, **others}


def measure_slopes(work: Path, counts: tuple[int, int], repeats: int) -> dict[str, dict]:
    """Returns medians of each rival at two sizes, and what one image takes."""
    small, large = (write_photos(work / f"photos-{n}", n) for n in counts)
    out = work / "out"
    runs: dict[tuple[str, int], list[Run]] = {}
    sizes = {}
    for turn in range(repeats):
        for name in commands(small, out):
            if name in ("tutorial", "beam") and turn >= 2:
                continue  # slow, and far away: two runs are enough
            for number, source in enumerate((small, large)):
                runs.setdefault((name, number), []).append(run(commands(source, out)[name], out))
            sizes[name] = folder_bytes(out)
    table = {}
    for name in commands(small, out):
        few, many = (runs[name, number] for number in (0, 1))
        extra = counts[1] - counts[0]
        slopes = [(b.wall - a.wall) / extra for a, b in zip(few, many, strict=True)]
        cpu = [(b.cpu - a.cpu) / extra for a, b in zip(few, many, strict=True)]
        table[name] = {
            "slope_ms": 1000 * statistics.median(slopes),
            "slopes_ms": [round(1000 * slope, 3) for slope in slopes],
            "cpu_ms": 1000 * statistics.median(cpu),
            "whole_s": statistics.median(r.wall for r in many),
            "memory": max(r.memory for r in many),
            "bytes": sizes[name],
        }
    floors = [float(x) for x in table["floor"]["slopes_ms"]]
    ours = [float(x) for x in table["shardmill"]["slopes_ms"]]
    pairs = [f / s for f, s in zip(floors, ours, strict=True)]
    table["shardmill"]["of_floor"] = statistics.median(pairs)
    table["shardmill"]["of_floor_all"] = [round(pair, 3) for pair in pairs]
    return table


def measure_memory(work: Path, counts: tuple[int, int]) -> dict[int, float]:
    """Returns peak memory in MiB at two numbers of images."""
    found = {}
    for count in counts:
        source = write_photos(work / f"photos-{count}", count)
        found[count] = run(commands(source, work / "out", 64)["shardmill"], work / "out").memory
    return found


def measure_startup(work: Path, repeats: int) -> dict[str, float]:
    """Returns seconds of one image, and of Python doing nothing."""
    source = write_photos(work / "photos-1", 1)
    ours = [run(commands(source, work / "out")["shardmill"], work / "out") for _ in range(repeats)]
    bare = [run([sys.executable, "-c", "pass"], work / "out") for _ in range(repeats)]
    return {
        "shardmill": statistics.median(r.wall for r in ours),
        "python": statistics.median(r.wall for r in bare),
    }


def measure_gap(work: Path, count: int) -> dict[str, float]:
    """Returns what scaled JPEG decoding gives and costs on photos of 12 megapixels."""
    source = write_photos(work / "photos-12mp", count, "4000x3000")
    command = [sys.executable, str(HERE / "gap.py"), str(source), str(SIZE)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


READER = """
import sys, time, resource, tensorflow as tf
files = tf.io.gfile.glob(sys.argv[1] + "/train-*")
spec = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
def parse(record):
    return tf.io.decode_jpeg(tf.io.parse_single_example(record, spec)["image/encoded"])
def read():
    before = resource.getrusage(resource.RUSAGE_SELF)
    data = tf.data.TFRecordDataset(files, sys.argv[2])
    count = sum(1 for _ in data.map(parse, num_parallel_calls=2))
    after = resource.getrusage(resource.RUSAGE_SELF)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / count
read()
print(min(read() for _ in range(3)))
"""


def measure_reading(work: Path, count: int, repeats: int) -> dict[str, float]:
    """Returns CPU seconds an image to read and decode GZIP and uncompressed shards by tf.data."""
    source = write_photos(work / f"photos-{count}", count)
    found: dict[str, list[float]] = {"gzip": [], "none": []}
    for compression in found:
        out = work / f"read-{compression}"
        run([*commands(source, out)["shardmill"], f"--compression={compression}"], out)
    for _ in range(repeats):
        for compression, values in found.items():
            kind = "GZIP" if compression == "gzip" else ""
            command = [sys.executable, "-c", READER, str(work / f"read-{compression}"), kind]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            values.append(float(done.stdout))
    ratios = [a / b for a, b in zip(found["gzip"], found["none"], strict=True)]
    return {
        "gzip_us": 1e6 * statistics.median(found["gzip"]),
        "none_us": 1e6 * statistics.median(found["none"]),
        "ratio": statistics.median(ratios),
    }


def plot(table: dict[str, dict], path: Path) -> None:
    """Draws images a second of each rival."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = sorted(table, key=lambda name: table[name]["slope_ms"], reverse=True)
    rates = [1000 / table[name]["slope_ms"] for name in names]
    figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
    colors = ["#0b7285" if name == "shardmill" else "#adb5bd" for name in names]
    bars = axes.barh(names, rates, color=colors)
    axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("images a second (500x375 JPEG to 224x224 JPEG, two cores)")
    axes.margins(x=0.12)
    figure.savefig(path, dpi=150)


def report(found: dict) -> str:
    """Returns the page of results."""
    table, memory = found["table"], found["memory"]
    rows = "\n".join(
        f"| {name} | {1000 / t['slope_ms']:,.0f} | {t['slope_ms']:.2f} | {t['cpu_ms']:.2f} | "
        f"{t['whole_s']:.1f} | {t['memory']:.0f} | {t['bytes'] / 2**20:.1f} |"
        for name, t in sorted(table.items(), key=lambda item: item[1]["slope_ms"])
    )
    kept = "\n".join(f"| {count:,} | {value:.0f} |" for count, value in memory.items())
    gap, start, read = found["gap"], found["startup"], found["reading"]
    counts = found["counts"]
    return f"""# Benchmarks: images

Made by `make bench` on {found["machine"]}. Whole processes, medians of interleaved runs; the slope
is (time of {counts[1]:,} images - time of {counts[0]:,}) / {counts[1] - counts[0]:,}, so start-up
is not in it. The photos are 500x375 JPEGs, resized to {SIZE}x{SIZE}, written as JPEG with quality
95. What each rival does stands in `benchmarks/rivals.py`.

| | images/s | ms an image | CPU ms an image | whole run, s | peak MiB | output MiB |
|---|---|---|---|---|---|---|
{rows}

Shardmill reaches {table["shardmill"]["of_floor"]:.2f} of the floor's speed (median of the pairs
{table["shardmill"]["of_floor_all"]}).

![images a second](benchmarks-images.png)

**Memory** of the whole process, by number of images (to 64x64):

| images | peak MiB |
|---|---|
{kept}

**Start-up**: {start["shardmill"]:.2f} s for one image, of which Python itself takes
{start["python"]:.2f} s, in an environment with all extras; Apache Beam loads faster where
`apache-beam[gcp]` and pandas are not installed.

**Scaled decoding** of 12-megapixel JPEGs: {gap["gap3_ms"]:.0f} ms with `--reducing_gap=3` and
{gap["full_ms"]:.0f} ms with 0, {gap["times"]:.1f} times as fast. PSNR between the two results:
median {gap["psnr_median"]:.1f} dB, least {gap["psnr_least"]:.1f} dB. The files have
{gap["megabytes"]:.1f} MB each.

**Reading** with plain `tf.data`, decoding included: {read["gzip_us"]:.0f} CPU microseconds an image
from our GZIP shards, {read["none_us"]:.0f} from uncompressed ones, ratio {read["ratio"]:.3f}.
"""


def main() -> None:
    """Measures, prints, and writes the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--data", type=Path)
    flags = parser.parse_args()
    work = flags.data or Path(tempfile.mkdtemp(prefix="shardmill-bench-"))
    counts, repeats = ((50, 250), 2) if flags.small else ((500, 3_500), 5)
    found = {
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "counts": counts,
        "gap": measure_gap(work, 4 if flags.small else 12),
        "startup": measure_startup(work, repeats),
        "reading": measure_reading(work, counts[0], repeats),
        "memory": measure_memory(work, (100, 300) if flags.small else (1_000, 20_000)),
        "table": measure_slopes(work, counts, repeats),
    }
    print(json.dumps(found, indent=1))
    if not flags.small:
        docs = HERE.parent / "docs"
        plot(found["table"], docs / "benchmarks-images.png")
        (docs / "benchmarks-images.md").write_text(report(found))
    if not flags.data:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
