"""Publications without a build, and outputs as release 0.1.0 left them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.storage import open_storage
from shardmill.transforms.publish.generation import read_published
from shardmill.transforms.publish.publish import FinalFile, Publication, Publisher

BUILD = ".build-c0de5c0de5c0de50"
CRC = f"{google_crc32c.value(b'payload'):08x}"
FILES = {"manifest.json", "train-0.gz", "schema.pbtxt", "rejects.jsonl"}


def manifest_body(splits: dict[str, dict], **build: object) -> dict:
    """Return a manifest as JSON.

    Args:
        splits: The splits as JSON.
        build: Changes of the field ``build``.
    """
    return {
        "version": 2, "splits": splits, "compression": "gzip",
        "written": sum(split["num_examples"] for split in splits.values()),
        "inputs": {"root": "", "matched": 0, "accepted": 0, "rejected": 0, "skipped": 0,
                   "duplicates": 0, "rejected_by_reason": {}},
        "build": {"config_id": "c", "input_id": "i", "config": {}, "versions": {}, "runner": "",
                  "finished": "", **build},
        "labels": [], "features": [], "warnings": [],
    }  # fmt: skip


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
        storage.replace(f"{output}/{BUILD}/shards/{name}", b"payload")
        files.append(FinalFile(f"{BUILD}/shards/{name}", name, 7))
    return files


def publish_by_hand(output: Path | str, manifest: Manifest, keep: int = 1) -> Publication | None:
    """Publish a manifest with staged files over what is published now."""
    storage, files = open_storage(str(output)), stage(output)
    publisher = Publisher(storage, str(output), read_published(storage, str(output)).version, keep)
    return publisher.publish(manifest, files)


def flatten(output: Path) -> Path:
    """Turn a dataset into one of release 0.1.0: all files next to a manifest of version 1."""
    generation = (output / "current").resolve()
    shutil.rmtree(generation / "catalog", ignore_errors=True)
    for path in [*output.iterdir()]:
        if path != generation:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in generation.iterdir():
        path.rename(output / path.name)
    generation.rmdir()
    manifest = json.loads((output / "manifest.json").read_text())
    manifest["build"].pop("record_id", None)
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            shard.pop("catalog", None)
    (output / "manifest.json").write_text(json.dumps({**manifest, "version": 1}))
    return output


def unfinished(new: Path, output: Path) -> Iterator[str]:
    """Publish a dataset as release 0.1.0 did it; yield before each step.

    Args:
        new: The new dataset of release 0.1.0.
        output: The output, with another dataset of release 0.1.0 or none.
    """
    output.mkdir(exist_ok=True)
    names = [*sorted({path.name for path in new.iterdir()} - {"manifest.json"}), "manifest.json"]
    moves, deletes = [], []
    for name in names:
        source = f"{BUILD}/{'shards' if name.startswith('train') else 'final-0123456789ab'}/{name}"
        (output / source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(new / name, output / source)
        size = (new / name).stat().st_size
        moves.append({"source": source, "target": name, "num_bytes": size})
    deletes = [
        path.name for path in output.iterdir() if path.name != BUILD and path.name not in names
    ]
    journal = {
        "manifest": (new / "manifest.json").read_text(), "moves": moves, "deletes": deletes,
        "build": BUILD, "kept": {"base": "", "files": []},
    }  # fmt: skip
    yield "journal"
    (output / ".publish.json").write_text(json.dumps(journal))
    yield "delete manifest.json"
    (output / "manifest.json").unlink(missing_ok=True)
    for move in moves:
        yield f"move {move['target']}"
        (output / move["source"]).rename(output / move["target"])
    for name in deletes:
        yield f"delete {name}"
        (output / name).unlink()
    yield "delete build"
    shutil.rmtree(output / BUILD)
    yield "delete journal"
    (output / ".publish.json").unlink()
