"""Datasets made by hand for the tests of the loaders; what ``loader_data`` builds; and a judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import google_crc32c

from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.tfrecord.gzip_member import stored_member
from shardmill.schemas.tfrecord.member_index import empty_shard
from tests.support.readers import tf_records
from tests.support.record_tools import framed, indexed

Groups = Sequence[Sequence[bytes]]  # payloads, by member
IMAGES = {
    "jpeg": {"image_size": "16x24", "num_shards": 3},
    "png": {"image_size": "16x24", "encoding": "png", "channels": 4, "num_shards": 1},
    "raw": {"image_size": "16x24", "encoding": "raw", "channels": 1, "num_shards": 5},
    "none": {"image_size": "16x24", "compression": "none", "num_shards": 2},
    "mixed": {"resize": "none", "num_shards": 2},
    "bylabel": {"image_size": "16x24", "shard_by": "label", "num_shards": 2},
}
PHOTOS = {"ant": 20, "bee": 30, "cow": 40}
ROWS = 90
COLUMNS = """
feature { name: "number" type: INT presence { min_fraction: 1 } shape { dim { size: 1 } } }
feature { name: "ratio" type: FLOAT presence { min_fraction: 0 } value_count { min: 1 max: 1 } }
feature { name: "count" type: INT presence { min_fraction: 0 } value_count { min: 1 max: 1 } }
feature { name: "name" type: BYTES presence { min_fraction: 0 } value_count { min: 1 max: 1 } }
feature { name: "tags" type: BYTES value_count { min: 0 } annotation { tag: "separator=|" } }
feature { name: "sizes" type: INT value_count { min: 0 } annotation { tag: "separator=|" } }
feature { name: "kind" type: BYTES presence { min_fraction: 1 } shape { dim { size: 1 } }
  annotation { tag: "default=plain" } }
feature { name: "price" type: FLOAT presence { min_fraction: 1 } shape { dim { size: 1 } } }
"""
CELLS = ("number", "ratio", "count", "name", "tags", "sizes", "kind", "price")


def cells(number: int) -> list[object]:
    """Returns a row of the table; every column that may be is missing in some."""
    return [
        number - 40,
        "" if number % 3 == 0 else number / 8,
        "" if number % 4 == 0 else number * 7,
        "" if number % 5 == 0 else f"name {number}",
        "|".join(f"t{n}" for n in range(number % 4)),
        "|".join(str(n - 1) for n in range(number % 3)),
        "" if number % 6 == 0 else "odd",
        number / 4,
    ]


def make_shard(groups: Groups, pack: Callable[[bytes], bytes] | None = stored_member) -> bytes:
    """Returns a shard with a member for each group; uncompressed where ``pack`` is None."""
    if pack is None:
        return framed([payload for group in groups for payload in group])
    return indexed(groups, pack) if groups else empty_shard()


def make_dataset(
    folder: Path, shards: Mapping[str, bytes], counts: Mapping[str, int], schema: str, **changes
) -> Path:
    """Writes a dataset by hand.

    Args:
        folder: Where.
        shards: Content by file name; the part before the first dash is the split.
        counts: What the manifest says of the records of each.
        schema: Its schema.pbtxt.
        changes: Other values of the manifest, at its top.
    """
    folder.mkdir(parents=True, exist_ok=True)
    splits: dict[str, dict] = {}
    for name, data in shards.items():
        (folder / name).write_bytes(data)
        split = splits.setdefault(
            name.split("-")[0],
            {"num_examples": 0, "num_bytes": 0, "label_counts": {}, "shards": []},
        )
        split["num_examples"] += counts[name]
        split["num_bytes"] += len(data)
        crc = f"{google_crc32c.value(data):08x}"
        shard = {"file": name, "records": counts[name], "bytes": len(data), "crc32c": crc}
        split["shards"].append(shard)
    inputs = dict.fromkeys(("matched", "accepted", "rejected", "skipped", "duplicates"), 0)
    build = dict.fromkeys(("config_id", "input_id", "runner", "finished"), "")
    body = {
        "version": 1, "splits": splits, "written": sum(counts.values()), "compression": "gzip",
        "inputs": {"root": "", **inputs, "rejected_by_reason": {}},
        "build": {**build, "config": {}, "versions": {}},
        "labels": [], "features": [], "warnings": [], **changes,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(body))
    (folder / "schema.pbtxt").write_text(schema)
    return folder


def small(
    folder: Path, shards: Sequence[Groups], schema: str, pack: Callable | None = stored_member
) -> Path:
    """Writes a sound dataset by hand, one split ``train``."""
    names = [f"train-{number}.tfrecord" for number in range(len(shards))]
    compression = "none" if pack is None else "gzip"
    return make_dataset(
        folder,
        {name: make_shard(groups, pack) for name, groups in zip(names, shards, strict=True)},
        {name: sum(map(len, groups)) for name, groups in zip(names, shards, strict=True)},
        schema,
        compression=compression,
    )


def judged(folder: Path, split: str) -> list[bytes]:
    """Returns all payloads of a split, or several, in file order; tf.data reads them."""
    manifest = Manifest.from_json((folder / "manifest.json").read_bytes())
    packing = "GZIP" if manifest.compression == "gzip" else ""
    shards = [shard for name in split.split("+") for shard in manifest.splits[name].shards]
    return [payload for shard in shards for payload in tf_records(folder / shard.file, packing)]
