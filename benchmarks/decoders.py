"""Measure decoder processes: decoders.py PHOTOS SIZE ROUNDS, prints JSON.

Compares one loop on one core, which reads, converts and frames each image, with the decoder
processes of a worker on as many cores. Start-up is excluded.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from shardmill.pipelines import ImagesConfig
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.refs import InputRef
from shardmill.schemas.storage import open_storage
from shardmill.schemas.tfrecord.framing import frame
from shardmill.transforms.images.convert import convert_image
from shardmill.transforms.images.encoder import ImageEncoder
from shardmill.transforms.match.read_input import read_input
from shardmill.transforms.sink.spec import Example


def list_refs(folder: Path) -> list[InputRef]:
    """Returns a reference to each photo of a folder of folders."""
    entries = [e for e in open_storage(str(folder)).walk(str(folder)) if e.kind == "file"]
    return [InputRef(e.path, e.path, e.size, e.version, label="x") for e in entries]


def loop(encoder: ImageEncoder, refs: list[InputRef]) -> Iterator[bytes]:
    """Yields the record of each image, converted in this process."""
    for ref in refs:
        image = convert_image(read_input(ref), encoder.spec)
        yield encode_example(
            {
                "image/encoded": image.data,
                "image/format": b"jpeg",
                "image/key": ref.key.encode(),
                "image/height": image.size.height,
                "image/width": image.size.width,
            }
        )


def decoders(encoder: ImageEncoder, refs: list[InputRef]) -> Iterator[bytes]:
    """Yields the record of each image, converted in decoder processes."""
    for item in encoder.encode(refs, ["x"]):
        if not isinstance(item, Example):
            raise SystemExit(f"a photo was rejected: {item}")
        yield item.record


def measure(records: Iterator[bytes], cores: int) -> tuple[float, float]:
    """Returns wall-clock and CPU time of this process to frame all records, in seconds."""
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_cores)[:cores])
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for record in records:
        frame(record)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    os.sched_setaffinity(0, all_cores)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(folder: str, size: str, rounds: str) -> None:
    """Prints medians of interleaved rounds, in milliseconds per image."""
    refs = list_refs(Path(folder))
    programs: dict[str, tuple[ImageEncoder, int]] = {}
    for cores in range(1, min(2, os.cpu_count() or 1) + 1):
        config = ImagesConfig(input=folder, output="unused", image_size=size, workers=cores)
        programs[str(cores)] = config.encoder, cores
    found: dict[str, list[tuple[float, float]]] = {}
    for turn in range(int(rounds) + 1):
        for name, (encoder, cores) in programs.items():
            if turn == 0:  # starts the processes and fills the cache of files
                measure(decoders(encoder, refs[:50]), cores)
                continue
            found.setdefault(name, []).append(measure(decoders(encoder, refs), cores))
        if turn:
            found.setdefault("loop", []).append(measure(loop(programs["1"][0], refs), 1))
    walls = {name: [wall for wall, _ in runs] for name, runs in found.items()}
    speeds = {
        name: [a / b for a, b in zip(walls["loop"], each, strict=True)]
        for name, each in walls.items()
    }
    print(
        json.dumps(
            {
                name: {
                    "wall_ms": 1000 * statistics.median(walls[name]) / len(refs),
                    "worker_ms": 1000 * statistics.median(cpu for _, cpu in runs) / len(refs),
                    "speed": statistics.median(speeds[name]),
                }
                for name, runs in found.items()
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
