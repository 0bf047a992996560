"""Which cores a build keeps busy, second by second: timeline.py FOLDER OUTPUT PICTURE.

The CPU time of the command's process and of its decoder processes is sampled, which takes about a
fiftieth of a core itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil

PAUSE = 0.1  # seconds between two samples
STEP = 0.4  # seconds of a point of the plot
CORES = os.cpu_count() or 1


class Sample(NamedTuple):
    """The time since the start, and the CPU time used until then, in seconds."""

    at: float
    command: float
    decoders: float


class Phase(NamedTuple):
    """A part of a build: its name, its bounds in seconds, and how many cores were busy."""

    name: str
    start: float
    end: float
    command: float
    decoders: float


def sample_build(source: Path, output: Path) -> list[Sample]:
    """Builds a dataset and returns the samples."""
    shutil.rmtree(output, ignore_errors=True)
    words = [sys.executable, "-m", "shardmill", "images", f"--input={source}"]
    words += [f"--output={output}", "--image_size=224"]
    started = time.perf_counter()
    command = psutil.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    samples = [Sample(0, 0, 0)]
    decoders: dict[psutil.Process, float] = {}
    while command.poll() is None:
        with suppress(psutil.Error):
            for child in command.children(recursive=True):
                decoders[child] = sum(child.cpu_times()[:2])
            used = sum(command.cpu_times()[:2])
            now = time.perf_counter() - started
            samples.append(Sample(now, used, sum(decoders.values())))
        time.sleep(PAUSE)
    if command.returncode:
        raise SystemExit(f"the build failed with exit code {command.returncode}")
    return samples


def thinned(samples: list[Sample]) -> list[Sample]:
    """Returns samples that are at least a step apart."""
    kept = samples[:1]
    for sample in samples:
        if sample.at >= kept[-1].at + STEP:
            kept.append(sample)
    return kept


def find_phases(samples: list[Sample]) -> list[Phase]:
    """Divides a build: it decodes while the decoders have more than half of their best speed."""
    steps = list(pairwise(thinned(samples)))
    speeds = [(other.decoders - one.decoders) / (other.at - one.at) for one, other in steps]
    decoding = [step for step, speed in zip(steps, speeds, strict=True) if 2 * speed > max(speeds)]
    bounds = [samples[0], decoding[0][0], decoding[-1][1], samples[-1]]
    names = ("start and match", "decode", "assemble and publish")
    phases = []
    for name, (one, other) in zip(names, pairwise(bounds), strict=True):
        seconds = max(other.at - one.at, PAUSE)
        command, decoders = other.command - one.command, other.decoders - one.decoders
        phases.append(Phase(name, one.at, other.at, command / seconds, decoders / seconds))
    return phases


def plot(samples: list[Sample], phases: list[Phase], path: Path) -> None:
    """Draws the busy cores over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    steps = list(pairwise(thinned(samples)))
    middles = [(one.at + other.at) / 2 for one, other in steps]
    decoders = [(b.decoders - a.decoders) / (b.at - a.at) for a, b in steps]
    command = [(b.command - a.command) / (b.at - a.at) for a, b in steps]
    figure, axes = plt.subplots(figsize=(9, 2.8), layout="constrained")
    axes.stackplot(
        middles,
        decoders,
        command,
        labels=["decoder processes", "the command's process"],
        colors=["#0b7285", "#ffa94d"],
    )
    for phase in phases[1:]:
        axes.axvline(phase.start, color="#495057", linestyle=":")
    axes.set_xlim(0, samples[-1].at)
    axes.set_ylim(0, CORES)
    axes.set_xlabel("seconds")
    axes.set_ylabel("busy cores")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower center", frameon=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def measure_timeline(source: Path, output: Path, picture: Path) -> list[Phase]:
    """Builds a dataset, draws the picture and returns the phases."""
    samples = sample_build(source, output)
    phases = find_phases(samples)
    plot(samples, phases, picture)
    return phases


if __name__ == "__main__":
    measured = measure_timeline(*map(Path, sys.argv[1:]))
    print(json.dumps([phase._asdict() for phase in measured], indent=1))
