"""Verify that a dataset matches its manifest and schema, to the last byte."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.catalog import parse_catalog
from shardmill.schemas.dataset.dataset_files import read_dataset_file
from shardmill.schemas.dataset.manifest import Manifest, Shard
from shardmill.schemas.dataset.read_manifest import open_manifest
from shardmill.schemas.errors import FormatError, StorageError, UsageError
from shardmill.schemas.numbers import plural
from shardmill.schemas.refs import InputRef, Linked, Reject
from shardmill.schemas.storage import join, open_storage
from shardmill.schemas.tfrecord.framing import crc32c
from shardmill.schemas.tfrecord.reader import INFLATE_COST, FileCount, count_file
from shardmill.transforms.match.walk import first_level, walk
from shardmill.transforms.publish.generation import compare_shard
from shardmill.transforms.runtime.process_pool import run_all
from shardmill.transforms.runtime.progress import Progress
from shardmill.transforms.verify.example_checker import ExampleChecker

_MAX_EXAMPLES = 3  # violations of one shard that are reported one by one
_MISSING = "it is missing"
_NOT_LISTED = "it is not in the manifest"


class Finding(NamedTuple):
    """A difference between a dataset and its manifest or schema.

    Attributes:
        file: Name relative to the dataset's folder.
        message: The difference, without a full stop.
    """

    file: str
    message: str


@dataclass(frozen=True)
class Dataset:
    """A dataset to verify.

    Attributes:
        root: Folder of its shards.
        manifest: Its manifest.
        schema: Content of its schema.pbtxt; empty if that is missing or not text.
        output: Folder of the manifest, where a build would repair the dataset.
    """

    root: str
    manifest: Manifest
    schema: str = ""
    output: str = ""

    @property
    def counted(self) -> bool:
        """Whether ``shardmill count`` wrote the manifest."""
        return bool(self.manifest.root)


def find_dataset(path: str) -> Dataset:
    """Return the dataset in a folder, or of a manifest.

    Raises:
        InputError: There is no dataset, or its manifest cannot be read.
    """
    *_, folder, manifest = found = open_manifest(path, counts=False)
    if manifest.root:
        return Dataset(folder, manifest)
    try:
        schema = read_dataset_file(join(folder, shard_names.SCHEMA)).decode()
    except (FileNotFoundError, FormatError, StorageError, UnicodeDecodeError):
        schema = ""  # reported by make_checker
    return Dataset(folder, manifest, schema, found.folder or os.path.dirname(found.file) or ".")


def verify_dataset(
    dataset: Dataset, processes: int = 1, progress: Progress | None = None
) -> list[Finding]:
    """Return all findings of a dataset.

    Args:
        dataset: As returned by ``find_dataset``.
        processes: Number of processes that read at the same time, if there is enough to read.
        progress: Updated in bytes.

    Raises:
        StorageError: A storage call failed.
    """
    progress = progress or Progress()
    findings = check_metadata(dataset)
    checker, _ = make_checker(dataset)
    shards = dataset.manifest.shards
    progress.extend("verifying", sum(shard.bytes for shard in shards))
    check = functools.partial(
        check_shard, root=dataset.root, checker=checker, counted=dataset.counted
    )
    found: dict[str, list[Finding]] = {}
    cost = 1 if dataset.manifest.compression == "none" else INFLATE_COST
    for shard, of_shard in run_all(check, shards, processes, lambda one: cost * one.bytes):
        found[shard.file] = of_shard
        progress.add(shard.bytes, bool(of_shard))
    for shard in shards:
        findings += found[shard.file]
    return findings


def check_metadata(dataset: Dataset) -> list[Finding]:
    """Return the findings of a dataset without reading its shards."""
    findings = [*check_numbers(dataset.manifest), *check_files(dataset)]
    _, problem = make_checker(dataset)
    return findings + ([Finding(shard_names.SCHEMA, problem)] if problem else [])


def make_checker(dataset: Dataset) -> tuple[ExampleChecker | None, str]:
    """Return the checker of a dataset's examples, or None and the problem of the schema."""
    if dataset.counted:
        return None, ""
    if not dataset.schema:
        return None, "it is missing or not text: examples were not checked against it"
    try:
        manifest = dataset.manifest
        labeled = all(split.labeled for split in manifest.splits.values())
        optional = frozenset[str]() if labeled else manifest.label_features
        return ExampleChecker(dataset.schema, manifest.labels, optional), ""
    except UsageError as error:
        return None, str(error)


def check_shard(
    shard: Shard, root: str, checker: ExampleChecker | None, *, counted: bool
) -> list[Finding]:
    """Return the differences between a shard with its catalog, the manifest and the schema.

    Args:
        shard: The entry in the manifest.
        root: Folder of the shards.
        checker: Checks the examples; None to check the records only.
        counted: Whether another program may have written the shard: then constructs that mislead
            other readers are not reported.
    """
    violations: list[str] = []  # the first ones
    records = found = 0

    def check(payload: bytes) -> None:
        nonlocal records, found
        if checker is not None and (violation := checker.find_violation(payload)):
            found += 1
            if found <= _MAX_EXAMPLES:
                violations.append(f"record {records:,}: {violation}")
        records += 1

    count = count_file(join(root, shard.file), take=None if checker is None else check)
    if count.fault is not None and count.fault.reason == "not_found":
        return [Finding(shard.file, "it is missing"), *_check_catalog(shard, root)]
    messages = [*_compare_file(shard, count), *(() if counted else count.warnings), *violations]
    if found > _MAX_EXAMPLES:
        messages.append(f"{found - _MAX_EXAMPLES:,} more of its records do not fit the schema")
    return [*(Finding(shard.file, each) for each in messages), *_check_catalog(shard, root)]


def _compare_file(shard: Shard, count: FileCount) -> Iterator[str]:
    changed = compare_shard(shard, count.num_bytes, count.crc32c)
    if count.num_bytes != shard.bytes:
        yield changed
    if count.fault is not None:
        yield str(count.fault)
    elif count.records != shard.records:
        yield f"it has {plural(count.records, 'record')}, the manifest says {shard.records:,}"
    elif count.num_bytes == shard.bytes and changed:
        yield changed


def check_numbers(manifest: Manifest) -> Iterator[Finding]:
    """Yield contradictions between the numbers of a manifest."""
    file = shard_names.MANIFEST
    for name, split in manifest.splits.items():
        for unit, stated, actual in (
            ("examples", split.num_examples, sum(shard.records for shard in split.shards)),
            ("bytes", split.num_bytes, sum(shard.bytes for shard in split.shards)),
        ):
            if stated != actual:
                message = f"the split {name} has {stated:,} {unit}, but its shards have {actual:,}"
                yield Finding(file, message)
        labelled = sum(split.label_counts.values())
        several = manifest.build.config.get("annotations") or manifest.label_separator
        if split.label_counts and labelled != split.num_examples and not several:
            yield Finding(file, f"{labelled:,} labels for {split.num_examples:,} of {name}")
        listed = manifest.labels or tuple(split.label_counts)  # integer labels are not listed
        for label in sorted(set(split.label_counts) - set(listed))[:1]:
            yield Finding(file, f"the split {name} counts the label {label!r}, which is not listed")
    total = sum(split.num_examples for split in manifest.splits.values())
    if manifest.written != total:
        yield Finding(file, f"written is {manifest.written:,}, its splits sum to {total:,}")
    inputs = manifest.inputs
    known = inputs.accepted + inputs.rejected + inputs.skipped + inputs.duplicates
    if inputs.matched != known:
        yield Finding(file, f"{inputs.matched:,} inputs were matched, but {known:,} accounted for")
    for damaged in manifest.damaged:
        yield Finding(damaged.file, f"it was damaged when it was counted: {damaged.message}")


def check_files(dataset: Dataset) -> Iterator[Finding]:
    """Yield files that are missing, are not in the manifest, or contradict it."""
    manifest = dataset.manifest
    if dataset.counted:
        listed = {*manifest.files, *(each.file for each in manifest.damaged)}
        yield from (Finding(file, _NOT_LISTED) for file in _unlisted(dataset.root, listed))
        return
    listed = {*manifest.files, *shard_names.RESERVED}
    for entry in open_storage(dataset.root).list_dir(dataset.root):
        if entry.name not in listed and not entry.name.startswith("."):
            yield Finding(entry.name, _NOT_LISTED)
    yield from _check_labels(dataset)
    yield from _check_rejects(dataset)


def _check_catalog(shard: Shard, root: str) -> list[Finding]:
    """Return that a catalog is missing, damaged, or has another number of rows than the shard."""
    if shard.catalog is None:
        return []
    file, size, crc = shard.catalog
    data = _read(root, file)
    if isinstance(data, Finding):
        return [data]
    if len(data) != size or f"{crc32c(data):08x}" != crc:
        return [Finding(file, "its size or CRC-32C is not that of the manifest")]
    try:
        rows = len(parse_catalog(data))
    except FormatError as error:
        return [Finding(file, str(error))]
    message = f"it has {rows:,} rows, and the shard {shard.records:,} records"
    return [Finding(file, message)] if rows != shard.records else []


def _unlisted(root: str, listed: set[str]) -> Iterator[str]:
    for task in first_level(root):
        for ref in walk(root, task, follow_links=True, wanted="records"):
            found = ref.ref if isinstance(ref, Linked) else ref
            if isinstance(found, InputRef) and not found.error and found.key not in listed:
                yield found.key


def _check_labels(dataset: Dataset) -> Iterator[Finding]:
    labels = dataset.manifest.labels
    data = _read(dataset.root, shard_names.LABELS)
    if isinstance(data, Finding):
        if labels or data.message != _MISSING:
            yield data
    elif data != "".join(f"{label}\n" for label in labels).encode():
        yield Finding(shard_names.LABELS, "its labels are not those of the manifest")


def _check_rejects(dataset: Dataset) -> Iterator[Finding]:
    data = _read(dataset.root, shard_names.REJECTS)
    if isinstance(data, Finding):
        yield data
        return
    try:
        rejects = sum(Reject(**json.loads(line)).inputs for line in data.splitlines())
    except (ValueError, TypeError):
        yield Finding(shard_names.REJECTS, "one of its lines is not a reject in JSON")
        return
    expected = dataset.manifest.inputs.rejected
    if rejects != expected:
        yield Finding(
            shard_names.REJECTS, f"it has {rejects:,} rejects, the manifest says {expected:,}"
        )


def _read(root: str, name: str) -> bytes | Finding:
    """Return the content of a file, or why it has none."""
    try:
        return read_dataset_file(join(root, name))
    except FileNotFoundError:
        return Finding(name, _MISSING)
    except FormatError as error:
        return Finding(name, str(error))
