"""Measure the images pipeline: memory, start-up, decoders, reading.

usage: python benchmarks/images.py [--small] [--data FOLDER]

Writes docs/benchmarks-images.md; ``--small`` is a quick trial that writes no page. peers.py
compares the speed with other programs.
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

from startup import measure_startup
from timeline import CORES, measure_timeline
from timing import run

HERE = Path(__file__).resolve().parent
SIZE = 224


def write_photos(folder: Path, count: int, size: str = "500x375") -> Path:
    """Writes photos in a separate process.

    The peak memory of a child is at least that of its parent at the fork, so this process stays
    small and imports neither NumPy nor Pillow.
    """
    command = [sys.executable, str(HERE / "photos.py"), str(folder), str(count), size]
    subprocess.run(command, check=True)
    return folder


def commands(source: Path, out: Path, size: int = SIZE) -> dict[str, list[str]]:
    """Returns the command of each program."""
    python, peers = sys.executable, str(HERE / "image_peers.py")
    ours = [
        python,
        "-m",
        "shardmill.pipelines.cli",
        "images",
        f"--input={source}",
        f"--output={out}",
        f"--image_size={size}",
        "--splits=train:1",
    ]
    others = {
        name: [python, peers, name, str(source), str(out), str(size)]
        for name in ("floor", "tutorial", "beam")
    }
    return {"shardmill": ours, **others}


def measure_memory(work: Path, counts: tuple[int, int]) -> dict[int, float]:
    """Returns peak memory in MiB by number of images."""
    found = {}
    for count in counts:
        source = write_photos(work / f"photos-{count}", count)
        found[count] = run(commands(source, work / "out", 64)["shardmill"], work / "out").memory
    return found


def measure_scaled_decoding(work: Path, count: int) -> dict[str, float]:
    """Returns time and PSNR of scaled JPEG decoding on photos of 12 megapixels."""
    source = write_photos(work / "photos-12mp", count, "4000x3000")
    command = [sys.executable, str(HERE / "scaled_decoding.py"), str(source), str(SIZE)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


READER = """
import sys, time, resource, tensorflow as tf
files = tf.io.gfile.glob(sys.argv[1] + "/current/train-*")
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
    """Returns CPU time per image to read and decode GZIP and uncompressed shards with tf.data."""
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


def measure_decoders(work: Path, count: int, rounds: int) -> dict[str, dict[str, float]]:
    """Returns the time per image of one loop, and of one and two decoder processes."""
    source = write_photos(work / f"photos-{count}", count)
    command = [sys.executable, str(HERE / "decoders.py"), str(source), str(SIZE), str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def describe_decoders(found: dict[str, dict[str, float]]) -> str:
    """Returns the section about decoder processes, with a model of more cores."""
    loop = found.pop("loop")
    measured = "\n".join(
        f"| {cores} | {each['wall_ms']:.2f} | {1000 * each['worker_ms']:.0f} | "
        f"{each['speed']:.2f} | {each['speed'] / int(cores):.2f} |"
        for cores, each in found.items()
    )
    most, each = max(found.items(), key=lambda item: int(item[0]))
    whole, worker = int(most) * each["wall_ms"], each["worker_ms"]
    model = "\n".join(
        f"| {cores} | {rate:,.0f} | {rate * loop['wall_ms'] / 1000 / cores:.2f} |"
        for cores in (4, 8, 16, 32)
        for rate in [1000 * min(cores / whole, 1 / worker)]
    )
    return f"""\
**Decoder processes.** The steady speed of `--workers=N` on N cores, without start-up, relative to
one loop that reads, converts and frames the same images in one process
({loop["wall_ms"]:.2f} ms per image). "Worker" is the CPU time of the process that feeds them.

| N | ms per image | worker, CPU us | speed of the loop | per core |
|---|---|---|---|---|
{measured}

With more cores, one worker process makes at most N / {whole:.2f} ms and at most 1 / {worker:.3f} ms
images per second. Not measured, but computed from that:

| cores | images/s of one worker process | per core, of the loop |
|---|---|---|
{model}
"""


def describe_timeline(phases: list[dict]) -> str:
    """Returns the rows of the table of phases."""
    return "\n".join(
        f"| {phase['name']} | {phase['end'] - phase['start']:.1f} | {phase['command']:.2f} | "
        f"{phase['decoders']:.2f} | {max(0, CORES - phase['command'] - phase['decoders']):.2f} |"
        for phase in phases
    )


def report(found: dict) -> str:
    """Returns the page of results."""
    memory = found["memory"]
    kept = "\n".join(f"| {count:,} | {value:.0f} |" for count, value in memory.items())
    scaled, start, read = found["scaled"], found["startup"], found["reading"]
    return f"""# Benchmarks: images

Made by `make bench` on {found["machine"]}. The photos are 500x375 JPEGs, resized to {SIZE}x{SIZE},
written as JPEG with quality 95. Speed is compared in [other tools](benchmarks-peers.md).

**Memory** of the whole process, by number of images (to 64x64):

| images | peak MiB |
|---|---|
{kept}

This is the process of the command; each decoder has about 36 MiB more, and what
[its image needs](images.md#decoder-processes).

{describe_decoders(found["decoders"])}
**Cores** of a build of {max(memory):,} photos to {SIZE}x{SIZE}. While images are
decoded, idle processes wait: the command for results, decoders for requests or for a core.

![busy cores over time](benchmarks-images-timeline.png)

| | seconds | cores of the command | of the decoders | idle |
|---|---|---|---|---|
{describe_timeline(found["timeline"])}

**Start-up**: {start["images"]:.2f} s for one image in an environment with all extras, where
`import apache_beam` alone takes {start["import"]:.2f} s: a build does not import what Beam needs
only for other runners and storages. `benchmarks/startup.py` measures other environments.

**Scaled decoding** of 12-megapixel JPEGs: {scaled["gap3_ms"]:.0f} ms with `--reducing_gap=3` and
{scaled["full_ms"]:.0f} ms with 0, {scaled["times"]:.1f} times as fast. PSNR between the two
results: median {scaled["psnr_median"]:.1f} dB, minimum {scaled["psnr_min"]:.1f} dB. The files have
{scaled["megabytes"]:.1f} MB each.

**Reading** with plain `tf.data`, decoding included: {read["gzip_us"]:.0f} CPU microseconds per
image from GZIP shards, {read["none_us"]:.0f} from uncompressed ones, ratio {read["ratio"]:.3f}.
"""


def main() -> None:
    """Measures all, prints the results and writes the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--data", type=Path)
    flags = parser.parse_args()
    work = flags.data or Path(tempfile.mkdtemp(prefix="shardmill-bench-"))
    count, repeats = (50, 2) if flags.small else (500, 5)
    found = {
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "scaled": measure_scaled_decoding(work, 4 if flags.small else 12),
        "startup": {name: s for name, (s, _) in measure_startup(sys.executable, work).items()},
        "reading": measure_reading(work, count, repeats),
        "decoders": measure_decoders(work, count, repeats),
        "memory": measure_memory(work, (100, 300) if flags.small else (1_000, 20_000)),
    }
    source = work / f"photos-{max(found['memory'])}"
    docs = work if flags.small else HERE.parent / "docs"
    phases = measure_timeline(source, work / "out", docs / "benchmarks-images-timeline.png")
    found["timeline"] = [phase._asdict() for phase in phases]
    print(json.dumps(found, indent=1))
    if not flags.small:
        (docs / "benchmarks-images.md").write_text(report(found))
    if not flags.data:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
