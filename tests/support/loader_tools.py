"""Handmade datasets for the tests of the loaders, the options of shared ones, and expected values."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path

import google_crc32c
import numpy as np

from shardmill.schemas import Manifest, encode_example
from shardmill.schemas.tfrecord.gzip_member import empty_shard
from tests.support.publications import manifest_body
from tests.support.readers import tf_records
from tests.support.record_tools import deflated_member, framed, in_groups, indexed, stored_member

Groups = Sequence[Sequence[bytes]]  # payloads, by member
PACKS = {"stored": stored_member, "deflated": deflated_member, "none": None}
ONE = "presence { min_fraction: 1 } shape { dim { size: 1 } }"
ID = f'feature {{ name: "id" type: INT {ONE} }}'
DATA = f'feature {{ name: "x" type: BYTES {ONE} }}'
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
    """Return a row of the table; every optional column is empty in some rows."""
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


def expected_cells(row: Sequence[object], fill: Mapping[str, object]) -> dict[str, object]:
    """Return the expected values of a loader for a row of the table; lists for lists."""
    cell = dict(zip(CELLS, map(str, row), strict=True))
    return {
        "number": int(cell["number"]),
        "ratio": float(np.float32(cell["ratio"] or fill["ratio"])),
        "count": int(cell["count"] or str(fill["count"])),
        "name": (cell["name"] or str(fill["name"])).encode(),
        "tags": [tag.encode() for tag in cell["tags"].split("|") if tag],
        "sizes": [int(size) for size in cell["sizes"].split("|") if size],
        "kind": (cell["kind"] or "plain").encode(),
        "price": float(np.float32(cell["price"])),
    }


def make_shard(groups: Groups, pack: Callable[[bytes], bytes] | None = stored_member) -> bytes:
    """Return a shard with a member for each group; uncompressed if ``pack`` is None."""
    if pack is None:
        return framed([payload for group in groups for payload in group])
    return indexed(groups, pack) if groups else empty_shard()


def make_dataset(
    folder: Path,
    shards: Mapping[str, bytes],
    counts: Mapping[str, int],
    schema: str,
    *,
    label_counts: Mapping[str, int] | None = None,
    config: Mapping[str, object] | None = None,
    **changes,
) -> Path:
    """Write a dataset with a handmade manifest.

    Args:
        folder: Folder of the dataset.
        shards: Content by file name; the part before the first dash is the split.
        counts: Number of records that the manifest states, by file name.
        schema: Text of schema.pbtxt.
        label_counts: Examples by label that the manifest states for each split.
        config: Options of the build that the manifest states.
        changes: Other top-level values of the manifest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    splits: dict[str, dict] = {}
    for name, data in shards.items():
        (folder / name).write_bytes(data)
        split = splits.setdefault(
            name.split("-")[0],
            {"num_examples": 0, "num_bytes": 0, "label_counts": label_counts or {}, "shards": []},
        )
        split["num_examples"] += counts[name]
        split["num_bytes"] += len(data)
        crc = f"{google_crc32c.value(data):08x}"
        shard = {"file": name, "records": counts[name], "bytes": len(data), "crc32c": crc}
        split["shards"].append(shard)
    body = {**manifest_body(splits, config=config or {}), **changes}
    (folder / "manifest.json").write_text(json.dumps(body))
    (folder / "schema.pbtxt").write_text(schema)
    return folder


def write_dataset(
    folder: Path, shards: Sequence[Groups], schema: str, pack: Callable | None = stored_member
) -> Path:
    """Write an undamaged dataset with one split ``train``."""
    names = [f"train-{number}.tfrecord" for number in range(len(shards))]
    compression = "none" if pack is None else "gzip"
    return make_dataset(
        folder,
        {name: make_shard(groups, pack) for name, groups in zip(names, shards, strict=True)},
        {name: sum(map(len, groups)) for name, groups in zip(names, shards, strict=True)},
        schema,
        compression=compression,
    )


def write_numbered(
    folder: Path,
    sizes: Sequence[int],
    member: int,
    pack: Callable | None = stored_member,
    schema: str = ID,
    example: Callable[[int], Mapping] = lambda number: {"id": number},
) -> Path:
    """Writes a dataset whose records hold their numbers.

    Args:
        folder: Folder of the dataset.
        sizes: Number of records of each shard.
        member: Number of records of each member.
        pack: As in ``make_shard``.
        schema: Text of schema.pbtxt.
        example: Function from the number of a record to its features.
    """
    numbers = iter(range(sum(sizes)))
    shards = [
        in_groups([encode_example(example(n)) for n in islice(numbers, size)], member)
        for size in sizes
    ]
    return write_dataset(folder, shards, schema, pack)


def tf_payloads(folder: Path, split: str) -> list[bytes]:
    """Return all payloads of the splits in file order, as tf.data reads them."""
    manifest = Manifest.from_json((folder / "manifest.json").read_bytes())
    folder = folder / manifest.generation
    packing = "GZIP" if manifest.compression == "gzip" else ""
    shards = [shard for name in split.split("+") for shard in manifest.splits[name].shards]
    return [payload for shard in shards for payload in tf_records(folder / shard.file, packing)]


def import_for_workers() -> None:
    """Import what a worker of a DataLoader else imports in the thread that sends its first batch.

    An import in a thread may end with a KeyError if garbage is collected meanwhile (CPython issue
    106176): torch then waits for this batch forever. For workers that do not end it waits five
    seconds each, which is too long where the collector finds many of them.
    """
    import torch.nested._internal.nested_tensor  # noqa: F401
    from torch.utils.data import _utils

    _utils.MP_STATUS_CHECK_INTERVAL = 0.2
