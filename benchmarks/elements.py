"""Compare WriteDataset with Beam's WriteToTFRecord: whole processes, interleaved.

usage: python benchmarks/elements.py [--count=2000000] [--repeats=3]

A DoFn makes serialized examples of 1 KB, which both write with GZIP on the in-memory runner.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from timing import Run, run

from shardmill.schemas.example.serialize import varint

STEP = 5_000  # examples of one element of the source
WORDS, NUMBERS = 200, 180
SCHEMA = """
feature { name: "id" type: BYTES presence { min_fraction: 1 } shape { dim { size: 1 } } }
feature { name: "text" type: BYTES presence { min_fraction: 1 } shape { dim { size: 1 } } }
feature { name: "x" type: FLOAT value_count { min: 0 } }
"""


def make_examples(first: int) -> Iterator[bytes]:
    """Yields serialized examples: an id, a text, and numbers."""
    rng = np.random.default_rng(first)
    numbers = rng.integers(0, 1000, (STEP, NUMBERS)).astype("<f4")
    words = rng.integers(97, 123, (STEP, WORDS), dtype="u1")
    for row in range(STEP):
        values = {
            b"id": _field(1, _field(1, b"%012d" % (first + row))),
            b"text": _field(1, _field(1, words[row].tobytes())),
            b"x": _field(2, _field(1, numbers[row].tobytes())),
        }
        features = (_field(1, name) + _field(2, value) for name, value in values.items())
        yield _field(1, b"".join(_field(1, feature) for feature in features))


def _field(number: int, body: bytes) -> bytes:
    """Returns a field of protobuf with bytes."""
    return bytes([number << 3 | 2]) + varint(len(body)) + body


def write(sink: str, count: int, output: str) -> None:
    """Writes the examples in this process."""
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    import shardmill

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        examples = pipeline | beam.Create(range(0, count, STEP)) | beam.FlatMap(make_examples)
        if sink == "WriteDataset":
            _ = examples | shardmill.WriteDataset(output, key="id", schema=SCHEMA)
        else:
            _ = examples | beam.io.WriteToTFRecord(f"{output}/train", file_name_suffix=".gz")


def main() -> None:
    """Runs both in turn, and prints a table of medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", nargs=2, metavar=("SINK", "OUTPUT"), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.write:
        write(flags.write[0], flags.count, flags.write[1])
        return
    work = Path(tempfile.mkdtemp(prefix="shardmill-bench-"))
    runs: dict[str, list[Run]] = {"WriteDataset": [], "WriteToTFRecord": []}
    for _ in range(flags.repeats):
        for sink, found in runs.items():
            command = [sys.executable, __file__, f"--count={flags.count}", "--write", sink]
            found.append(run([*command, str(work / "out")], work / "out"))
    shutil.rmtree(work)
    print("| | CPU, s | wall, s | peak MiB |\n|---|---|---|---|")
    for sink, found in runs.items():
        cpu, wall = (statistics.median(getattr(r, k) for r in found) for k in ("cpu", "wall"))
        print(f"| {sink} | {cpu:.0f} | {wall:.0f} | {max(r.memory for r in found):.0f} |")


if __name__ == "__main__":
    main()
