"""Verifying: whether a dataset is what its manifest and schema say, to the last byte."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Manifest, Shard
from shardmill.schemas.errors import FormatError, InputError, UsageError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import Reject
from shardmill.schemas.storage import join, open_storage
from shardmill.schemas.tfrecord.ranges import Found, Range, RangeCount, find_ranges, scan_range
from shardmill.schemas.tfrecord.reader import FileCount, join_ranges
from shardmill.transforms.match.walk import first_level, walk
from shardmill.transforms.publish.publish import settle
from shardmill.transforms.runtime.process_pool import WORTH_PROCESSES, run_all
from shardmill.transforms.runtime.progress import Progress
from shardmill.transforms.verify.example_checker import ExampleChecker

_SHOWN = 3  # bad examples of one shard
_LOOKS = 16  # at a time, for shards that lie far away


class Finding(NamedTuple):
    """Something that is not as it should be.

    Attributes:
        file: Name relative to the dataset's folder.
        message: What is wrong with it.
    """

    file: str
    message: str


@dataclass(frozen=True)
class Dataset:
    """A dataset that was found.

    Attributes:
        root: Folder of its shards.
        manifest: What it should be.
        schema: Text of its schema; empty when it has none.
        counted: Whether the manifest is one of ``shardmill count``.
    """

    root: str
    manifest: Manifest
    schema: str = ""
    counted: bool = False

    @property
    def shards(self) -> list[Shard]:
        """All shards, split by split."""
        return [shard for split in self.manifest.splits.values() for shard in split.shards]


class Checked(NamedTuple):
    """What was found in one range of a shard.

    Attributes:
        shard: Number of the shard.
        scanned: Records and faults.
        bad: How many examples do not fit the schema.
        shown: Number in the range and fault of the first of them.
    """

    shard: int
    scanned: RangeCount
    bad: int
    shown: tuple[tuple[int, str], ...]


def find_dataset(path: str) -> Dataset:
    """Returns the dataset at a folder, or that of a manifest; completes an unfinished publication.

    Raises:
        InputError: There is none, or its manifest cannot be read.
    """
    storage = open_storage(path)
    entry = storage.stat(path)
    if entry is None:
        raise InputError(f"{path} does not exist: give a dataset or its {shard_names.MANIFEST}.")
    folder = path
    if entry.kind == "dir":
        if storage.stat(join(path, shard_names.JOURNAL)) is not None:
            settle(storage, path)
        path = join(path, shard_names.MANIFEST)
    else:
        folder = path.rpartition("/")[0] or "."
    try:
        manifest = Manifest.from_json(storage.read(path))
    except FileNotFoundError as error:
        raise InputError(
            f"{folder} has no {shard_names.MANIFEST}: run `shardmill count --input={folder} "
            "--manifest=FILE` first and verify FILE."
        ) from error
    except FormatError as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    if manifest.root:
        return Dataset(manifest.root, manifest, counted=True)
    try:
        schema = storage.read(join(folder, shard_names.SCHEMA)).decode()
    except (FileNotFoundError, UnicodeDecodeError):
        schema = ""  # a finding, later
    return Dataset(folder, manifest, schema)


def verify_dataset(
    dataset: Dataset, processes: int = 1, watched: Progress | None = None
) -> list[Finding]:
    """Returns all that is wrong with a dataset.

    Args:
        dataset: As ``find_dataset`` gives it.
        processes: How many processes may read side by side.
        watched: Told how far it is, in bytes.

    Raises:
        StorageError: The medium failed.
    """
    findings = [*check_numbers(dataset.manifest), *check_files(dataset)]
    checker, problem = make_checker(dataset)
    findings += [Finding(shard_names.SCHEMA, problem)] if problem else []
    shards = dataset.shards
    paths = [join(dataset.root, shard.file) for shard in shards]
    with ThreadPoolExecutor(_LOOKS) as threads:
        found = list(threads.map(_find_ranges, paths))
    tasks = [(number, part) for number, each in enumerate(found) for part in each.ranges]
    tasks.sort(key=lambda task: -task[1].cost)
    if sum(part.cost for _, part in tasks) < WORTH_PROCESSES:
        processes = 1
    if watched is not None:
        watched.begin("verifying", sum(part.end - part.start for _, part in tasks))
    checked: dict[int, list[Checked]] = {}
    for _, one in run_all(functools.partial(check_range, checker=checker), tasks, processes):
        checked.setdefault(one.shard, []).append(one)
        if watched is not None:
            bad = one.bad > 0 or one.scanned.fault is not None
            watched.add(one.scanned.end - one.scanned.start, bad)
    for number, shard in enumerate(shards):
        parts = sorted(checked.get(number, ()), key=lambda one: one.scanned.start)
        texts = judge(shard, found[number], parts, ours=not dataset.counted)
        findings += [Finding(shard.file, text) for text in texts]
    return findings


def make_checker(dataset: Dataset) -> tuple[ExampleChecker | None, str]:
    """Returns what checks a dataset's examples, and why there is none where one is due."""
    if dataset.counted:
        return None, ""
    if not dataset.schema:
        return None, "it is missing or no text: examples were not checked against it"
    try:
        return ExampleChecker(dataset.schema, dataset.manifest.labels), ""
    except UsageError as error:
        return None, str(error)


def _find_ranges(path: str) -> Found:
    """Returns a shard's ranges; as one where cutting rests on a guess, which examples cannot."""
    found = find_ranges(path, "", "records")
    if found.compression != "none" or len(found.ranges) < 2:
        return found
    return found._replace(ranges=(found.ranges[0]._replace(end=found.size),))


def check_range(task: tuple[int, Range], checker: ExampleChecker | None) -> Checked:
    """Returns what is in one range of a shard, each example checked."""
    shard, part = task
    shown: list[tuple[int, str]] = []
    seen = bad = 0

    def take(payload: bytes) -> None:
        nonlocal seen, bad
        problem = checker.find_violation(payload) if checker is not None else ""
        if problem:
            bad += 1
            if len(shown) < _SHOWN:
                shown.append((seen, problem))
        seen += 1

    count = scan_range(part, "records", take if checker is not None else None)
    return Checked(shard, count, bad, tuple(shown))


def judge(shard: Shard, found: Found, parts: Sequence[Checked], *, ours: bool) -> Iterator[str]:
    """Yields what is wrong with a shard.

    Args:
        shard: What the manifest says.
        found: What a first look at the file said.
        parts: What was found in its ranges, in order.
        ours: Whether Shardmill wrote it: then oddities that mislead others are faults.
    """
    if found.fault is not None and found.fault.reason == "not_found":
        yield "it is missing"
        return
    count = join_ranges(found, [part.scanned for part in parts], "records")
    yield from _judge_file(shard, count)
    if ours:
        yield from count.warnings
    before = bad = 0
    shown: list[str] = []
    for part in parts:
        shown += [f"record {before + number:,}: {problem}" for number, problem in part.shown]
        bad += part.bad
        before += part.scanned.records
    yield from shown[:_SHOWN]
    if bad > _SHOWN:
        yield f"{bad - _SHOWN:,} more of its records do not fit the schema"


def _judge_file(shard: Shard, count: FileCount) -> Iterator[str]:
    sized = count.num_bytes == shard.bytes
    if not sized:
        yield f"it has {count.num_bytes:,} bytes, the manifest says {shard.bytes:,}"
    if count.fault is not None:
        yield str(count.fault)
        return
    if count.records != shard.records:
        yield f"it has {count.records:,} records, the manifest says {shard.records:,}"
    elif sized and shard.crc32c is not None and count.crc32c != shard.crc32c:
        yield (
            f"its CRC-32C is {count.crc32c}, the manifest says {shard.crc32c}: "
            "its bytes are others than those that were written"
        )


def check_numbers(manifest: Manifest) -> Iterator[Finding]:
    """Yields where a manifest's own numbers do not add up."""
    file = shard_names.MANIFEST
    for name, split in manifest.splits.items():
        said = {"examples": split.num_examples, "bytes": split.num_bytes}
        summed = {
            "examples": sum(shard.records for shard in split.shards),
            "bytes": sum(shard.bytes for shard in split.shards),
        }
        for what, number in said.items():
            if number != summed[what]:
                text = f"the split {name} says {number:,} {what}, its shards {summed[what]:,}"
                yield Finding(file, text)
        labelled = sum(split.label_counts.values())
        # Rows may lack a label that their schema makes optional.
        few = labelled < split.num_examples and "split_by" not in manifest.build.config
        if split.label_counts and (few or labelled > split.num_examples):
            yield Finding(file, f"{labelled:,} labels for {split.num_examples:,} of {name}")
        listed = manifest.labels or tuple(split.label_counts)  # numbers are not listed
        for label in sorted(set(split.label_counts) - set(listed))[:1]:
            yield Finding(file, f"the split {name} counts the label {label!r}, which is not listed")
    total = sum(split.num_examples for split in manifest.splits.values())
    if manifest.written != total:
        yield Finding(file, f"written is {manifest.written:,}, its splits sum to {total:,}")
    inputs = manifest.inputs
    parts = inputs.accepted + inputs.rejected + inputs.skipped + inputs.duplicates
    if inputs.matched != parts:
        yield Finding(file, f"{inputs.matched:,} inputs were matched, but {parts:,} accounted for")
    for damaged in manifest.damaged:
        yield Finding(damaged.file, f"it was damaged when it was counted: {damaged.message}")


def check_files(dataset: Dataset) -> Iterator[Finding]:
    """Yields files that are missing, stray, or say other things than the manifest."""
    manifest = dataset.manifest
    if dataset.counted:
        known = {shard.file for shard in dataset.shards} | {each.file for each in manifest.damaged}
        yield from (
            Finding(file, "it is not in the manifest") for file in _unknown(dataset.root, known)
        )
        return
    storage = open_storage(dataset.root)
    own = {*manifest.files, *shard_names.RESERVED}
    for entry in storage.list_dir(dataset.root):
        name = entry.path.rpartition("/")[2]
        if name not in own and not name.startswith("."):
            yield Finding(name, "it is not in the manifest")
    yield from _check_labels(dataset)
    yield from _check_rejects(dataset)


def _unknown(root: str, known: set[str]) -> Iterator[str]:
    for task in first_level(root):
        for ref in walk(root, task, follow_links=True, wanted="records"):
            if isinstance(ref, InputRef) and not ref.error and ref.key not in known:
                yield ref.key


def _check_labels(dataset: Dataset) -> Iterator[Finding]:
    labels = dataset.manifest.labels
    data = _read(dataset, shard_names.LABELS)
    if data is None:
        if labels:
            yield Finding(shard_names.LABELS, "it is missing")
    elif data != "".join(f"{label}\n" for label in labels).encode():
        yield Finding(shard_names.LABELS, "it lists other labels than the manifest")


def _check_rejects(dataset: Dataset) -> Iterator[Finding]:
    data = _read(dataset, shard_names.REJECTS)
    if data is None:
        yield Finding(shard_names.REJECTS, "it is missing")
        return
    lines = data.splitlines()
    try:
        rejects = [Reject(**json.loads(line)) for line in lines]
        told = sum(reject.inputs for reject in rejects)
    except (ValueError, TypeError):
        told = -1
    if told < 0:
        yield Finding(shard_names.REJECTS, "a line of it is no JSON object")
    elif told != dataset.manifest.inputs.rejected:
        yield Finding(
            shard_names.REJECTS,
            f"it tells of {told:,} rejects, the manifest says "
            f"{dataset.manifest.inputs.rejected:,} rejects",
        )


def _read(dataset: Dataset, name: str) -> bytes | None:
    path = join(dataset.root, name)
    try:
        return open_storage(path).read(path)
    except FileNotFoundError:
        return None
