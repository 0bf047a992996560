"""Descriptions of a dataset or a file: JSON, which a terminal and the page of ``report`` render.

Records are untrusted: only the start of long values is kept, only the headers of images are read,
and numbers that JSON cannot hold become text.
"""

from __future__ import annotations

import base64
import codecs
import itertools
import math
import unicodedata
import warnings
from collections.abc import Iterable
from typing import Any

from shardmill.loaders.selection import find_split
from shardmill.loaders.source import open_catalog
from shardmill.schemas.dataset.catalog import row_columns
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.read_manifest import (
    OpenedManifest,
    default_split,
    describe_manifest,
    open_manifest,
    read_rejects,
)
from shardmill.schemas.dataset.shard_names import REJECTS
from shardmill.schemas.errors import FormatError, InputError, StorageError, UsageError
from shardmill.schemas.example.parse import FeatureValues, looks_like_example, parse_example
from shardmill.schemas.file_signatures import image_format
from shardmill.schemas.storage import join, map_ordered, open_storage, storage_threads
from shardmill.schemas.tfrecord.reader import (
    TooLargeError,
    detect_compression,
    open_file,
    open_records,
)
from shardmill.schemas.tfrecord.scanner import DamagedError

MAX_REJECTS = 5
_MAX_RECORD = 32 << 20  # bytes: parsed values take up to 30 times as much memory
MAX_VALUES = 20  # of a feature
MAX_TEXT = 400  # characters of a value
MAX_BYTES = 64  # of a value that is neither an image nor text
MAX_FEATURES = 200  # of a record


def describe(path: str, *, records: int = 3, split: str = "", key: str = "") -> dict[str, Any]:
    """Describe a dataset or file; ``commands/show.py`` documents the keys.

    Raises:
        InputError: There is nothing, or nothing that can be shown.
        UsageError: The split is unknown, or there are no splits.
    """
    entry = open_storage(path).stat(path) if path else None
    if entry is None:
        missing = path or "the path"
        raise InputError(f"{missing} does not exist: give a dataset or a TFRecord file.")
    if entry.kind == "dir" or path.endswith(".json"):
        return describe_dataset(open_manifest(path), records=records, split=split, key=key)
    if key or split:
        flag = f"--key={key}" if key else f"--split={split}"
        raise UsageError(
            f"{flag}: {path} has no manifest.json, so it has no splits and no catalog."
        )
    return describe_file(path, records)


def describe_file(path: str, records: int) -> dict[str, Any]:
    """Describe one file.

    Raises:
        InputError: It has no TFRecords.
    """
    try:
        with open_file(path, "") as reader:
            report = {"kind": "file", "path": path, "bytes": reader.size}
            report["compression"] = detect_compression(reader)
    except DamagedError as error:
        raise InputError(f"{path} cannot be shown: {error}.") from error
    return {**report, "records": read_records([path], records)}


def describe_dataset(
    opened: OpenedManifest,
    *,
    records: int = 0,
    split: str = "",
    key: str = "",
    rejects: int = MAX_REJECTS,
) -> dict[str, Any]:
    """Return the content of a manifest, and the first records of a split.

    Args:
        opened: The manifest.
        records: Number of records.
        split: Their split, or empty for the default.
        key: Key of one record to describe instead, or empty.
        rejects: Number of rejects.

    Raises:
        InputError: There is no such key, or a catalog is damaged.
        UsageError: The split is unknown.
    """
    base, manifest = opened.base, opened.manifest
    about = {"kind": "dataset", "path": opened.path, "manifest": opened.file}
    report = about | describe_manifest(manifest)
    report["split"] = chosen = split or default_split(manifest)
    lines = () if manifest.root else read_rejects(join(base, REJECTS))
    report["rejects"] = list(itertools.islice(lines, rejects))
    report["found"] = record = find_key(base, manifest, key) if key else None
    if record is not None:
        described = read_records([join(base, record["shard"])], 1, record["record"])
    else:
        shards = find_split(manifest, chosen).shards if chosen else ()
        paths = [join(base, shard.file) for shard in shards if shard.records]
        described = read_records(paths, records, split=chosen)
    return {**report, "records": described}


def find_key(base: str, manifest: Manifest, key: str) -> dict[str, Any]:
    """Return the shard, the number of the record, and the row of the catalog, of an input.

    Args:
        base: Folder of the shards.
        manifest: Their manifest.
        key: Key of the input.

    Raises:
        InputError: There is no catalog, no such input, or a catalog is damaged.
    """
    shards = [shard for shard in manifest.shards if shard.catalog]
    key = unicodedata.normalize("NFC", key)  # as all keys are
    read = lambda shard: open_catalog(base, shard, ["key"]).column("key").to_pylist()  # noqa: E731
    every = map_ordered(read, shards, storage_threads(base))
    for shard, keys in zip(shards, every, strict=True):
        if key in keys:
            record = keys.index(key)
            (row,) = open_catalog(base, shard, row_columns()).slice(record, 1).to_pylist()
            return {"shard": shard.file, "record": record, **row}
    if not manifest.catalogs:
        raise InputError(f"--key={key}: the dataset has no catalog; only images have one.")
    raise InputError(
        f"--key={key}: no record was made of such an input; keys are paths relative to "
        f"{manifest.inputs.root}."
    )


def read_records(
    paths: Iterable[str], count: int, skip: int = 0, split: str | None = None
) -> dict[str, Any] | None:
    """Return the first records of some files, or None if there is no file.

    After ``skip`` records of each file.

    Damage and a record that is too large are reported in the value, with the records before it.
    """
    first: list[dict[str, Any]] = []
    begun = damage = too_large = ""
    for path in paths if count else ():
        begun = begun or path
        try:
            with open_records(path, _MAX_RECORD) as payloads:
                for payload in itertools.islice(payloads, skip, None):
                    first.append({"file": path, **describe_record(payload)})
                    if len(first) == count:
                        break
        except TooLargeError as error:
            too_large = f"{path}: {error}"
        except (FormatError, StorageError, FileNotFoundError) as error:
            damage = f"{path}: {error}"
        if damage or too_large or len(first) == count:
            break
    if not begun:
        return None
    return {"split": split, "file": begun, "first": first, "damage": damage, "too_large": too_large}


def describe_record(payload: bytes) -> dict[str, Any]:
    """Return the content of a record.

    Returns:
        ``bytes`` (length) and ``example`` (whether it is a tf.train.Example). Of an example also
        ``features`` ({name: ``kind``, ``count`` and ``values``, the first ones}, sorted by name)
        and ``more_features`` (how many are left out, if any); of other records the keys of
        ``describe_bytes``.
    """
    if not looks_like_example(payload):
        return {**describe_bytes(payload), "example": False}
    features = parse_example(payload)
    names = sorted(features, key=lambda name: name.encode())
    described = {name: _describe_feature(features[name]) for name in names[:MAX_FEATURES]}
    more = {"more_features": len(names) - MAX_FEATURES} if len(names) > MAX_FEATURES else {}
    return {"bytes": len(payload), "example": True, "features": described, **more}


def describe_bytes(value: bytes) -> dict[str, Any]:
    """Return the length and content of a bytes value.

    Returns:
        ``bytes`` (length) and one of: ``image`` (``format``, ``width``, ``height`` and ``mode``, or
        ``format`` and ``error``), ``text`` (the start of it), ``base64`` (of the first bytes).
    """
    image = describe_image(value)
    if image is not None:
        return {"bytes": len(value), "image": image}
    text = _decode_text(value)
    if text is not None:
        return {"bytes": len(value), "text": text}
    return {"bytes": len(value), "base64": base64.b64encode(value[:MAX_BYTES]).decode()}


def describe_image(value: bytes) -> dict[str, Any] | None:
    """Return format and size of an image, or None if the bytes are not an image of a known format.

    Pixels are not decoded, so that decompression bombs and truncated images do no harm.
    """
    kind = image_format(value).upper()
    if not kind:
        return None
    import io

    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(value), formats=[kind]) as image:
                size = {"width": image.width, "height": image.height, "mode": image.mode}
    except Image.DecompressionBombError:
        return {"format": kind, "error": "too many pixels to open"}
    except Exception:  # noqa: BLE001 - Pillow's plugins raise many types
        if kind == "BMP":  # many texts begin with "BM"
            return None
        return {"format": kind, "error": "does not open"}
    return {"format": kind, **size}


def _describe_feature(feature: FeatureValues) -> dict[str, Any]:
    values = [_describe_value(value) for value in feature.values[:MAX_VALUES]]
    return {"kind": feature.kind, "count": len(feature.values), "values": values}


def _describe_value(value: bytes | float) -> Any:
    if isinstance(value, bytes):
        return describe_bytes(value)
    if isinstance(value, int):
        return value
    import numpy as np

    # The shortest number that rounds to the same float32; JSON has no NaN and no infinities.
    if math.isfinite(value):
        return float(str(np.float32(value)))
    return str(value)


def _decode_text(value: bytes) -> str | None:
    """Return the start of a text, or None if the bytes are not text in UTF-8."""
    start = value[: 4 * MAX_TEXT]
    try:  # the end of start may be inside a character
        text = codecs.getincrementaldecoder("utf-8")().decode(start, len(start) == len(value))
    except UnicodeDecodeError:
        return None
    # Text with terminal escape sequences is more readable as text than as base64.
    if any(ord(char) < 32 and char not in "\t\n\r\x1b" for char in text) or "\x7f" in text:
        return None
    return text[:MAX_TEXT]
