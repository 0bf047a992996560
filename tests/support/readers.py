"""Independent readers of shards, which use no code of Shardmill."""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys
from pathlib import Path


def tf_records(path: Path | str, compression: str = "GZIP") -> list[bytes]:
    """Return all payloads of a file, read by tf.data."""
    import tensorflow as tf

    batches = tf.data.TFRecordDataset(str(path), compression).batch(4_096).as_numpy_iterator()
    return [payload for batch in batches for payload in batch]


def tf_examples(path: Path | str, compression: str = "GZIP") -> list[dict]:
    """Return each tf.train.Example of a file as {feature: list of values}."""
    import tensorflow as tf

    examples = []
    for payload in tf_records(path, compression):
        example = tf.train.Example.FromString(payload)
        values = {}
        for name, feature in example.features.feature.items():
            kind = feature.WhichOneof("kind")
            values[name] = list(getattr(feature, kind).value) if kind else []
        examples.append(values)
    return examples


def outputs_of_processes(code: str) -> set[str]:
    """Return what code prints in fresh processes with different hash seeds."""
    return {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip


def gzip_records(path: Path | str) -> list[bytes]:
    """Return all payloads, read by Python's gzip module without checking CRCs."""
    data = gzip.decompress(Path(path).read_bytes())
    records = []
    offset = 0
    while offset < len(data):
        (length,) = struct.unpack_from("<Q", data, offset)
        records.append(data[offset + 12 : offset + 12 + length])
        offset += length + 16
    return records


def dataset_splits(folder: Path) -> dict[str, dict]:
    """Return the splits of the manifest: counts, weights, statistics and shards."""
    splits: dict[str, dict] = json.loads((folder / "manifest.json").read_text())["splits"]
    return splits


def dataset_files(folder: Path) -> dict[str, bytes]:
    """Return the published files whose bytes must be reproducible."""
    return {
        p.name: p.read_bytes()
        for p in sorted(folder.iterdir())
        if p.is_file() and p.name != "manifest.json" and not p.name.startswith(".")
    }
