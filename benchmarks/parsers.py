"""Measures ways to parse a tf.train.Example into plain values, on the records of a dataset.

usage: python benchmarks/parsers.py DATASET [NAME]

Prints microseconds a record, the least of nine rounds; each way gives every value of every feature.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
RECORDS, ROUNDS = 2000, 9


def ours() -> Callable[[bytes], Any]:
    """Shardmill's parser, which leaves what is unusual to protobuf."""
    from shardmill.schemas.example.parse import parse_example

    return parse_example


def protobuf() -> Callable[[bytes], Any]:
    """Protobuf's own messages of the same wire format, without TensorFlow."""
    from shardmill.schemas.example import parse

    message = parse._message_class()  # noqa: SLF001 - measured, not used
    return lambda payload: parse._features(message.FromString(payload))  # noqa: SLF001


def tensorflow() -> Callable[[bytes], Any]:
    """TensorFlow's tf.train.Example, its values taken out."""
    import tensorflow as tf

    from shardmill.schemas.example import parse

    return lambda payload: parse._features(tf.train.Example.FromString(payload))  # noqa: SLF001


def measure(make: Callable[[], Callable[[bytes], Any]], path: str) -> None:
    """Times one way, alone in its process."""
    from shardmill.loaders.shards import ShardFiles
    from shardmill.loaders.source import open_source

    source = open_source(path, "train")
    files = ShardFiles(source.folder, source.paths, source.shards, 1 << 24)
    payloads = files.payloads(0, 0, min(RECORDS, source.shards[0].records))
    parse = make()
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for payload in payloads:
            parse(payload)
        best = min(best, time.process_time() - began)
    size = sum(map(len, payloads)) / len(payloads)
    print(
        f"{make.__name__:18} {1e6 * best / len(payloads):7.1f} us a record of {size:,.0f} bytes "
        f"and {len(source.specs)} features"
    )


WAYS = {make.__name__: make for make in (ours, protobuf, tensorflow)}


def main(path: str, name: str = "") -> None:
    """Times one way, or each in a process of its own."""
    if name:
        measure(WAYS[name], path)
        return
    for each in WAYS:
        done = subprocess.run(
            [sys.executable, __file__, path, each], check=False, capture_output=True, text=True
        )
        print(done.stdout or f"{each:18} {done.stderr.strip().splitlines()[-1]}", end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
