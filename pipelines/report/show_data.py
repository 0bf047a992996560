"""The value that ``shardmill show --json`` prints: a dataset, a folder or a file."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from shardmill.loaders.html.facts import default_split, describe_manifest, read_rejects
from shardmill.loaders.steps import files_folder, find_manifest, read_manifest
from shardmill.pipelines.report.describe_record import describe_record
from shardmill.schemas.dataset.catalog import parse_catalog
from shardmill.schemas.dataset.foreign_names import claims_other
from shardmill.schemas.dataset.generations import check_not_lost
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.shard_names import MANIFEST, REJECTS
from shardmill.schemas.errors import FormatError, InputError, StorageError, UsageError
from shardmill.schemas.storage import Entry, Storage, join, open_storage
from shardmill.schemas.tfrecord.reader import TooLargeError, open_records
from shardmill.schemas.tfrecord.scanner import DamagedError

MAX_FILES = 20
MAX_REJECTS = 5
_MAX_RECORD = 32 << 20  # bytes: parsed values take up to 30 times as much memory
_MAX_OPENED = 200  # files that are opened to find those with records
_MAX_WALKED = 10_000


def describe_path(path: str, *, records: int = 3, split: str = "", key: str = "") -> dict[str, Any]:
    """Return what is at a path; ``commands/show.py`` documents the keys.

    Raises:
        InputError: There is nothing, or nothing that can be shown.
        UsageError: The split is unknown, or there are no splits.
    """
    storage = open_storage(path)
    entry = storage.stat(path) if path else None
    if entry is None:
        raise InputError("show-path-missing", path=path or "the path")
    if _is_dataset(storage, path) if entry.kind == "dir" else path.endswith(".json"):
        return describe_dataset(path, records, split, key)
    if key:
        raise UsageError("show-key-without-manifest", key=key, path=path)
    if split:
        raise UsageError("show-split-without-manifest", split=split, path=path)
    if entry.kind == "dir":
        return describe_folder(storage, path, records)
    return describe_file(path, records)


def describe_file(path: str, records: int) -> dict[str, Any]:
    """Return what is in one file.

    Raises:
        InputError: It has no TFRecords.
    """
    try:
        with open_records(path) as reader:
            report = {"kind": "file", "path": path, "bytes": reader.size}
            report["compression"] = reader.compression
    except DamagedError as error:
        raise InputError("show-unreadable", path=path, error=error) from error
    return {**report, "records": read_records([path], records)}


def describe_folder(storage: Storage, path: str, records: int) -> dict[str, Any]:
    """Return the TFRecord files below a folder.

    Raises:
        InputError: There are none, or they are of a dataset that has lost its manifest.
    """
    check_not_lost(join(path, MANIFEST))
    entries = sorted(_walk(storage, path), key=lambda entry: entry.path)
    files: list[dict[str, Any]] = []
    left = entries[:]
    for entry in entries[:_MAX_OPENED]:
        if len(files) == MAX_FILES:
            break
        left.remove(entry)
        try:
            with open_records(entry.path) as reader:
                packed = reader.compression
        except (DamagedError, StorageError, FileNotFoundError):
            continue
        name = entry.path[len(path.rstrip("/")) + 1 :]
        files.append({"file": name, "bytes": entry.size, "compression": packed})
    if not files:
        raise InputError("show-nothing", path=path)
    body: dict[str, Any] = {"kind": "folder", "path": path, "files": files, "more_files": len(left)}
    body["records"] = read_records([join(path, files[0]["file"])], records)
    return body


def describe_dataset(path: str, records: int, split: str, key: str = "") -> dict[str, Any]:
    """Return the content of a manifest, and the first records of a split.

    Raises:
        InputError: The manifest cannot be read.
        UsageError: The split is unknown.
    """
    folder, file = find_manifest(path)
    manifest = read_manifest(folder, file)
    report = describe_manifest(manifest, file)
    if split and split not in manifest.splits:
        known = ", ".join(manifest.splits) or "none"
        raise UsageError("show-split-unknown", split=split, known=known)
    base = files_folder(folder, file, manifest)
    report = {"kind": "dataset", "path": folder or file, "manifest": file, **report}
    report["split"] = chosen = split or default_split(manifest)
    rejects = () if manifest.root else read_rejects(join(base, REJECTS))
    report["rejects"] = list(itertools.islice(rejects, MAX_REJECTS))
    report["found"] = found = find_key(base, manifest, key) if key else None
    if found is not None:
        shown = read_records([join(base, found["shard"])], 1, found["record"])
        report["records"] = None if shown is None else {**shown, "split": None}
        return report
    shards = manifest.splits[chosen].shards if chosen else ()
    paths = [join(base, shard.file) for shard in shards if shard.records]
    shown = read_records(paths, records)
    report["records"] = None if shown is None else {**shown, "split": chosen}
    return report


def find_key(base: str, manifest: Manifest, key: str) -> dict[str, Any]:
    """Return the shard, the number of the record, and the row of the catalog, of an input.

    Args:
        base: Folder of the shards.
        manifest: Their manifest.
        key: Key of the input.

    Raises:
        InputError: There is no catalog, no such input, or a catalog is damaged.
    """
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    for shard in shards:
        if shard.catalog is None:
            continue
        path = join(base, shard.catalog.file)
        try:
            rows = parse_catalog(open_storage(path).read(path))
        except (FormatError, FileNotFoundError) as error:
            raise InputError("show-catalog-unreadable", path=path, error=error) from error
        for number, row in enumerate(rows):
            if row.key == key:
                columns = {**row._asdict(), **row.features}
                del columns["features"]
                return {"shard": shard.file, "record": number, **columns}
    if not manifest.catalogs:
        raise InputError("show-key-without-catalog", key=key)
    raise InputError("show-key-unknown", key=key, root=manifest.inputs.root)


def read_records(paths: Iterable[str], count: int, skip: int = 0) -> dict[str, Any] | None:
    """Return the first records of some files, or None if there is no file.

    After ``skip`` records of each file.

    Damage and a record that is too large are reported in the value, with the records before it.
    """
    first: list[dict[str, Any]] = []
    begun = damage = too_large = ""
    for path in paths if count else ():
        begun = begun or path
        try:
            with open_records(path, _MAX_RECORD) as reader:
                for payload in itertools.islice(reader, skip, None):
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
    return {"split": None, "file": begun, "first": first, "damage": damage, "too_large": too_large}


def _is_dataset(storage: Storage, path: str) -> bool:
    return storage.stat(join(path, MANIFEST)) is not None


def _walk(storage: Storage, path: str) -> Iterator[Entry]:
    """Yield files that may hold records, below a folder; links to files, but not to folders."""
    base = len(path.rstrip("/")) + 1
    for item in itertools.islice(storage.walk(path), _MAX_WALKED):
        names = item.path[base:].rstrip("/").split("/")
        if any(name.startswith(".") for name in names) or claims_other(names[-1]):
            continue
        entry: Entry | None = item
        if item.kind == "other":
            with contextlib.suppress(StorageError):  # a dangling link
                entry = storage.stat(item.path)
        if entry is not None and entry.kind == "file" and entry.size:
            yield entry
