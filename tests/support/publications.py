"""Publications without a build."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import google_crc32c

from shardmill.schemas import Manifest
from shardmill.schemas.storage import open_storage
from shardmill.transforms.publish.generation import read_published
from shardmill.transforms.publish.publish import FinalFile, Publication, Publisher

BUILD = ".build-c0de5c0de5c0de50"
CRC = f"{google_crc32c.value(b'payload'):08x}"
FILES = {"manifest.json", "train-0.gz", "schema.pbtxt", "rejects.jsonl"}


def numbered_body(splits: dict[str, list[int]], **build: object) -> dict:
    """Return a manifest as JSON, with shards such as ``train-0`` of these numbers of records."""
    return manifest_body(
        {
            name: {
                "num_examples": sum(records),
                "num_bytes": 0,
                "label_counts": {},
                "shards": [
                    {"file": f"{name}-{i}", "records": count, "bytes": 0, "crc32c": "00000000"}
                    for i, count in enumerate(records)
                ],
            }
            for name, records in splits.items()
        },
        **build,
    )


def manifest_body(splits: dict[str, dict], **build: object) -> dict:
    """Return a manifest as JSON.

    Args:
        splits: The splits as JSON.
        build: Changes of the field ``build``.
    """
    return {
        "version": 2,
        "splits": splits,
        "compression": "gzip",
        "written": sum(split["num_examples"] for split in splits.values()),
        "inputs": {
            "root": "",
            "matched": 0,
            "accepted": 0,
            "rejected": 0,
            "skipped": 0,
            "duplicates": 0,
            "rejected_by_reason": {},
        },
        "build": {
            "config_id": "c",
            "input_id": "i",
            "config": {},
            "versions": {},
            "runner": "",
            "finished": "",
            **build,
        },
        "labels": [],
        "features": [],
        "warnings": [],
    }


def damaged(body: Any, values: Sequence, where: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Yield the path of each field of a manifest, and a copy with each value in its place."""
    keys = body if isinstance(body, dict) else range(len(body) if isinstance(body, list) else 0)
    for key in keys:
        changes = [((*where, key), value) for value in values]
        for path, value in (*changes, *damaged(body[key], values, (*where, key))):
            found = body.copy()
            found[key] = value
            yield path, found


def make_manifest(**build: object) -> Manifest:
    """Return the manifest of one shard with the bytes ``payload``."""
    shard = {"file": "train-0.gz", "records": 0, "bytes": 7, "crc32c": CRC}
    train = {"num_examples": 0, "num_bytes": 7, "label_counts": {}, "shards": [shard]}
    return Manifest.from_json(json.dumps(manifest_body({"train": train}, **build)))


OTHER = make_manifest(input_id="j")


def stage(output: Path | str) -> list[FinalFile]:
    """Write a finished build of one shard and return its files."""
    storage, files = open_storage(str(output)), []
    for name in sorted(FILES - {"manifest.json"}):
        data = b"payload" if name == "train-0.gz" else b""
        storage.replace(f"{output}/{BUILD}/shards/{name}", data)
        files.append(FinalFile(f"{BUILD}/shards/{name}", name, len(data)))
    return files


def publish_by_hand(output: Path | str, manifest: Manifest, keep: int = 1) -> Publication | None:
    """Publish a manifest with staged files over what is published now."""
    storage, files = open_storage(str(output)), stage(output)
    publisher = Publisher(storage, str(output), read_published(storage, str(output)).version, keep)
    return publisher.publish(manifest, files)
