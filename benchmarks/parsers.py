"""Measure parsers of tf.train.Example on the records of a dataset.

usage: python benchmarks/parsers.py DATASET [NAME]

Prints microseconds per record, the minimum of nine rounds. Each parser returns all values.
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
    """Returns Shardmill's parser, which falls back to protobuf for unusual messages."""
    from shardmill.schemas.example.parse import parse_example

    return parse_example


def protobuf() -> Callable[[bytes], Any]:
    """Returns a parser with protobuf messages of the same wire format, without TensorFlow."""
    from shardmill.schemas.example import parse

    return _parser(parse._message_class())  # noqa: SLF001 - measured, not used


def tensorflow() -> Callable[[bytes], Any]:
    """Returns a parser with TensorFlow's tf.train.Example."""
    import tensorflow as tf

    return _parser(tf.train.Example)


def _parser(kind: Any) -> Callable[[bytes], Any]:
    from shardmill.schemas.example.parse import _convert

    def parse(payload: bytes) -> Any:
        features = kind.FromString(payload).features.feature
        return {name: _convert(feature) for name, feature in features.items()}

    return parse


def measure(make: Callable[[], Callable[[bytes], Any]], path: str) -> None:
    """Measures one parser in this process."""
    from shardmill.loaders.shards import Caches, ShardFiles
    from shardmill.loaders.source import open_source

    source = open_source(path, "train")
    files = ShardFiles(source, Caches(1 << 24))
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
        f"{make.__name__:18} {1e6 * best / len(payloads):7.1f} us per record of {size:,.0f} bytes "
        f"and {len(source.specs)} features"
    )


PARSERS = {make.__name__: make for make in (ours, protobuf, tensorflow)}


def main(path: str, name: str = "") -> None:
    """Measures one parser, or each in a separate process."""
    if name:
        measure(PARSERS[name], path)
        return
    for each in PARSERS:
        done = subprocess.run(
            [sys.executable, __file__, path, each], check=False, capture_output=True, text=True
        )
        print(done.stdout or f"{each:18} {done.stderr.strip().splitlines()[-1]}", end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
