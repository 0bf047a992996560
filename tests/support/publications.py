"""Publications without a build, for states that commands do not reach."""

import json
from pathlib import Path

from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.storage import open_storage
from shardmill.transforms.publish.journal import Journal, Move
from shardmill.transforms.publish.publish import publish

BUILD = ".build-c0de5c0de5c0de50"
FILES = {"manifest.json", "train-0.gz", "schema.pbtxt", "rejects.jsonl"}


def manifest_body(splits: dict[str, dict], **build: object) -> dict:
    """Return a manifest as JSON.

    Args:
        splits: The splits as JSON.
        build: Changes of the field ``build``.
    """
    return {
        "version": 1, "splits": splits, "compression": "gzip",
        "written": sum(split["num_examples"] for split in splits.values()),
        "inputs": {"root": "", "matched": 0, "accepted": 0, "rejected": 0, "skipped": 0,
                   "duplicates": 0, "rejected_by_reason": {}},
        "build": {"config_id": "c", "input_id": "i", "config": {}, "versions": {}, "runner": "",
                  "finished": "", **build},
        "labels": [], "features": [], "warnings": [],
    }  # fmt: skip


def make_manifest(**build: object) -> Manifest:
    """Return the manifest of one shard with the bytes ``payload``."""
    shard = {"file": "train-0.gz", "records": 0, "bytes": 7, "crc32c": "00000000"}
    train = {"num_examples": 0, "num_bytes": 7, "label_counts": {}, "shards": [shard]}
    return Manifest.from_json(json.dumps(manifest_body({"train": train}, **build)))


OTHER = make_manifest(input_id="j")


def stage(output: Path | str) -> list[Move]:
    """Write a finished build of one shard and return its moves."""
    storage, moves = open_storage(str(output)), []
    for name in sorted(FILES - {"manifest.json"}):
        storage.replace(f"{output}/{BUILD}/shards/{name}", b"payload")
        moves.append(Move(f"{BUILD}/shards/{name}", name, 7))
    return moves


def publish_by_hand(output: Path | str, manifest: Manifest, *, overwrite: bool = False) -> bool:
    """Publish a manifest with staged files."""
    storage = open_storage(str(output))
    return publish(storage, str(output), manifest, stage(output), BUILD, overwrite=overwrite)


def stage_journal(output: Path | str) -> bytes:
    """Write a finished build of ``OTHER`` and return the journal that publishes it."""
    text, source = OTHER.to_json(), f"{BUILD}/final-0123456789ab/manifest.json"
    open_storage(str(output)).replace(f"{output}/{source}", text.encode())
    last = Move(source, "manifest.json", len(text.encode()))
    return Journal(text, (*stage(output), last), (), BUILD).to_json()


def write_journal(output: Path) -> Path:
    """Write the journal that a publisher leaves if it is killed right after writing it."""
    data = stage_journal(output)
    (output / ".publish.json").write_bytes(data)
    return output / ".publish.json"
