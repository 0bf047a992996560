"""Reads a dataset with nothing of Shardmill: a manifest, gzip, and the TFRecord framing.

usage: python examples/read_by_hand.py DATASET

Checks every shard's size and CRC-32C and every record's two CRCs against the manifest, then shows
the first record. Any language can do the same in about as many lines.
"""

from __future__ import annotations

import gzip
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import google_crc32c


def masked_crc(data: bytes) -> int:
    """Returns the CRC-32C of data as TFRecord files store it."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(path: Path) -> Iterator[bytes]:
    """Yields each payload of a shard, both CRCs checked."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        while header := file.read(12):
            length, length_crc = struct.unpack("<QI", header)
            assert masked_crc(header[:8]) == length_crc, f"{path}: a length is damaged"
            payload = file.read(length)
            (payload_crc,) = struct.unpack("<I", file.read(4))
            assert masked_crc(payload) == payload_crc, f"{path}: a payload is damaged"
            yield payload


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the protobuf varint at a position, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields (field number, content) of a protobuf message of length-delimited fields."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        size, at = varint(data, at)
        yield tag >> 3, data[at : at + size]
        at += size


def features(example: bytes) -> dict[str, bytes | int]:
    """Returns the first value of each feature of a tf.train.Example (bytes or int64)."""
    found: dict[str, bytes | int] = {}
    for _, feature_map in fields(example):
        for _, entry in fields(feature_map):
            parts = dict(fields(entry))
            ((kind, values),) = fields(parts[2])
            content = next(fields(values))[1]
            found[parts[1].decode()] = content if kind == 1 else varint(content, 0)[0]
    return found


def main(folder: Path) -> None:
    """Checks a dataset against its manifest and shows its first record."""
    manifest = json.loads((folder / "manifest.json").read_text())
    first: bytes | None = None
    for name, split in manifest["splits"].items():
        total = 0
        for shard in split["shards"]:
            data = (folder / shard["file"]).read_bytes()
            assert len(data) == shard["bytes"], shard
            assert f"{google_crc32c.value(data):08x}" == shard["crc32c"], shard
            payloads = list(records(folder / shard["file"]))
            assert len(payloads) == shard["records"], shard
            total += len(payloads)
            first = first or (payloads[0] if payloads else None)
        assert total == split["num_examples"], name
        print(f"{name}: {len(split['shards'])} shards, {total:,} records, every checksum right")
    if first is not None:
        print("The first record:")
        for key, value in features(first).items():
            shown = f"{len(value):,} bytes, {value[:12]!r}..." if key == "image/encoded" else value
            print(f"  {key:<18} {shown}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
