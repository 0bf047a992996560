"""Verify that a dataset matches its manifest and schema, to the last byte."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.dataset_files import read_dataset_file
from shardmill.schemas.dataset.manifest import Manifest, Shard
from shardmill.schemas.dataset.read_manifest import open_manifest
from shardmill.schemas.errors import FormatError, StorageError, UsageError
from shardmill.schemas.numbers import plural
from shardmill.schemas.refs import InputRef, Linked
from shardmill.schemas.storage import join
from shardmill.schemas.tfrecord.reader import INFLATE_COST, FileCount, count_file
from shardmill.transforms.match.walk import first_level, walk
from shardmill.transforms.publish.check_version import (
    Finding,
    check_numbers,
    check_outer,
    check_version,
)
from shardmill.transforms.publish.generation import compare_shard
from shardmill.transforms.runtime.process_pool import run_all
from shardmill.transforms.runtime.progress import Progress
from shardmill.transforms.verify.deep import check_records
from shardmill.transforms.verify.example_checker import ExampleChecker

_MAX_EXAMPLES = 3  # violations of one shard that are reported one by one
_MISSING = "it is missing"
_NOT_LISTED = "it is not in the manifest"


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
    *_, folder, manifest = opened = open_manifest(path, counts=False)
    if manifest.root:
        return Dataset(folder, manifest)
    try:
        schema = read_dataset_file(join(folder, shard_names.SCHEMA)).decode()
    except (FileNotFoundError, FormatError, StorageError, UnicodeDecodeError):
        schema = ""  # reported by make_checker
    return Dataset(folder, manifest, schema, opened.folder or os.path.dirname(opened.file) or ".")


def verify_dataset(
    dataset: Dataset,
    processes: int = 1,
    progress: Progress | None = None,
    *,
    deep: bool = False,
) -> list[Finding]:
    """Return all findings of a dataset.

    Args:
        dataset: As returned by ``find_dataset``.
        processes: Number of processes that read at the same time, if there is enough to read.
        progress: Updated in bytes.
        deep: Whether records are compared with catalogs and statistics, if nothing else is wrong.

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
    by_file: dict[str, list[Finding]] = {}
    cost = 1 if dataset.manifest.compression == "none" else INFLATE_COST
    for shard, of_shard in run_all(check, shards, processes, lambda one: cost * one.bytes):
        by_file[shard.file] = of_shard
        progress.add(shard.bytes, bool(of_shard))
    for shard in shards:
        findings += by_file[shard.file]
    if deep and not findings and not dataset.counted:
        findings += check_records(dataset.root, dataset.manifest, processes)
    return findings


def check_metadata(dataset: Dataset) -> list[Finding]:
    """Return the findings of a dataset without reading its shards."""
    manifest = dataset.manifest
    if dataset.counted:
        listed = {*manifest.files, *(damaged.file for damaged in manifest.damaged)}
        unlisted = [Finding(file, _NOT_LISTED) for file in _unlisted(dataset.root, listed)]
        return [*check_numbers(manifest), *unlisted]
    findings = check_version(
        dataset.root, manifest, manifest.manifests.get(manifest.generation, "")
    )
    if manifest.generation:
        findings += check_outer(dataset.output, manifest)
    _, problem = make_checker(dataset)
    if problem:
        findings = [finding for finding in findings if finding.file != shard_names.SCHEMA]
        findings.append(Finding(shard_names.SCHEMA, problem))
    return findings


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
    """Return the differences between a shard, the manifest and the schema.

    Args:
        shard: The entry in the manifest.
        root: Folder of the shards.
        checker: Checks the examples; None to check the records only.
        counted: Whether another program may have written the shard: then constructs that mislead
            other readers are not reported.
    """
    violations: list[str] = []  # the first ones
    records = violation_count = 0

    def check(payload: bytes) -> None:
        nonlocal records, violation_count
        violation = "" if checker is None else checker.find_violation(payload)
        if violation:
            violation_count += 1
            if violation_count <= _MAX_EXAMPLES:
                violations.append(f"record {records:,}: {violation}")
        records += 1

    take = None if checker is None else check
    count = count_file(join(root, shard.file), take=take)
    if count.fault is not None and count.fault.reason == "not_found":
        return [Finding(shard.file, "it is missing")]
    warnings = () if counted else count.warnings
    messages = [*_compare_file(shard, count), *warnings, *violations]
    if violation_count > _MAX_EXAMPLES:
        messages.append(
            f"{violation_count - _MAX_EXAMPLES:,} more of its records do not fit the schema"
        )
    return [Finding(shard.file, message) for message in messages]


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


def _unlisted(root: str, listed: set[str]) -> Iterator[str]:
    for task in first_level(root):
        for ref in walk(root, task, follow_links=True, file_kind="records"):
            target = ref.ref if isinstance(ref, Linked) else ref
            if isinstance(target, InputRef) and not target.error and target.key not in listed:
                yield target.key
