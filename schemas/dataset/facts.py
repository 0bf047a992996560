"""What the manifest and ``rejects.jsonl`` say, as plain data for the page and for ``show``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from shardmill.schemas.dataset.manifest import VERSION, Manifest
from shardmill.schemas.errors import StorageError
from shardmill.schemas.storage import open_storage


def describe_manifest(manifest: Manifest) -> dict[str, Any]:
    """Returns the content of a manifest; reads no file."""
    total = sum(split.num_examples for split in manifest.splits.values())
    splits = {
        name: {
            "num_examples": split.num_examples,
            "num_bytes": split.num_bytes,
            "share": split.num_examples / total if total else 0.0,
            "statistics": split.statistics and split.statistics.to_json(),
            "shards": [shard.to_json() for shard in split.shards],
        }
        for name, split in manifest.splits.items()
    }
    return {
        "version": VERSION,
        "generation": manifest.generation or None,
        "previous": list(manifest.previous),
        "root": manifest.root or None,
        "finished": manifest.build.finished,
        "runner": manifest.build.runner,
        "compression": manifest.compression,
        "num_examples": total,
        "num_bytes": sum(split.num_bytes for split in manifest.splits.values()),
        "num_shards": sum(len(split.shards) for split in manifest.splits.values()),
        "splits": splits,
        "labels": list(_labels(manifest)),
        "features": [dict(feature) for feature in manifest.features],
        "inputs": asdict(manifest.inputs),
        "warnings": [str(warning) for warning in manifest.warnings],
        "damaged": [asdict(damaged) for damaged in manifest.damaged],
    }


def default_split(manifest: Manifest) -> str:
    """Returns train, or the first split with examples, or an empty text."""
    full = [name for name, split in manifest.splits.items() if split.num_examples]
    return "train" if "train" in full else (full[0] if full else "")


def _labels(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yields all labels by class id, then labels that have counts only."""
    counts = {name: split.label_counts for name, split in manifest.splits.items()}
    ids: dict[str, int | None] = {label: number for number, label in enumerate(manifest.labels)}
    for split in counts.values():
        for label in split:
            ids.setdefault(label, None)
    for label, number in ids.items():
        by_split = {name: split.get(label, 0) for name, split in counts.items()}
        total = sum(by_split.values())
        yield {"class_id": number, "label": str(label), "total": total, "splits": by_split}


def read_rejects(path: str) -> Iterator[dict[str, str]]:
    """Yields the rejects of a file, with a text for each field; nothing if it cannot be read."""
    rest = b""
    try:
        with open_storage(path).open_read(path) as chunks:
            for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                yield from map(_reject, lines)
    except (FileNotFoundError, StorageError):
        return  # the rest of the dataset can still be shown


def _reject(line: bytes) -> dict[str, str]:
    try:
        body = json.loads(line)
        names = ("key", "stage", "error", *(["column"] if "column" in body else []), "message")
        return {name: str(body[name]) for name in names}
    except (ValueError, TypeError, KeyError):
        return {"key": "?", "stage": "?", "error": "?", "message": "this line is damaged"}
