"""Verify that a dataset matches its manifest and schema, to the last byte.

The default checks the bytes of records and their schema; ``check_records``, of ``shardmill verify
--deep``, compares the records with the catalogs and with the statistics in the manifest.
"""

from __future__ import annotations

import functools
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.catalog import annotation_of, read_table
from shardmill.schemas.dataset.dataset_files import read_dataset_file
from shardmill.schemas.dataset.manifest import Manifest, Shard, Split
from shardmill.schemas.dataset.read_manifest import open_manifest
from shardmill.schemas.dataset.statistics import FeatureStatistics
from shardmill.schemas.errors import FormatError, StorageError, UsageError
from shardmill.schemas.example.parse import FeatureValues, parse_example
from shardmill.schemas.numbers import plural
from shardmill.schemas.refs import InputRef, Linked
from shardmill.schemas.schema_pbtxt.image_features import (
    CLASS_TEXT,
    ENCODED,
    HEIGHT,
    IMAGE_HASH,
    KEY,
    VALUES,
    WIDTH,
)
from shardmill.schemas.storage import join
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES
from shardmill.schemas.tfrecord.reader import INFLATE_COST, FileCount, count_file, open_records
from shardmill.transforms.match.walk import first_level, walk
from shardmill.transforms.publish.check_version import (
    Finding,
    check_numbers,
    check_outer,
    check_version,
)
from shardmill.transforms.publish.generation import FORMAT_VERSION, compare_shard, config_id
from shardmill.transforms.runtime.process_pool import run_all
from shardmill.transforms.runtime.progress import Progress
from shardmill.transforms.statistics.sums import (
    Summary,
    Sums,
    compute_statistics,
    merge_summaries,
    sum_values,
)
from shardmill.transforms.verify.example_checker import ExampleChecker

_MAX_EXAMPLES = 3  # violations of one shard that are reported one by one


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
        unlisted = [
            Finding(file, "it is not in the manifest") for file in _unlisted(dataset.root, listed)
        ]
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


_BATCH = 4096  # records whose values are summed at a time
_CLOSE = 1e-9  # floats are summed in another order than by the build
_BOXES = "image/object/bbox/xmin"
_BOX_TEXT = "image/object/class/text"
_LEFT_OUT = ("boxes_outside", "boxes_empty", "boxes_swapped", "boxes_cropped")
_FACTS = ("key", "label", "record_bytes", "pixels", IMAGE_HASH, "boxes")
_CONTENTS = ("key", "content_hash", "label", VALUES, "input_bytes", "input_version")
_Features = dict[str, FeatureValues]


@dataclass
class RecordTotals:
    """Totals over the records of some shards.

    Attributes:
        problems: Contradictions to the catalog, as the shard's findings.
        labels: Number of records by label.
        several: Whether a record has several labels.
        summary: Sums over the values of features, where the manifest has statistics of them.
    """

    problems: list[Finding] = field(default_factory=list)
    labels: Counter[str] = field(default_factory=Counter)
    several: bool = False
    summary: Summary = field(default_factory=Summary)

    def merge(self, other: RecordTotals) -> None:
        """Add the totals of other shards."""
        self.problems += other.problems
        self.labels.update(other.labels)
        self.several = self.several or other.several
        self.summary = merge_summaries((self.summary, other.summary))


def check_records(root: str, manifest: Manifest, processes: int = 1) -> list[Finding]:
    """Return contradictions to the records of a dataset whose other checks found nothing.

    Args:
        root: Folder of the shards.
        manifest: The manifest.
        processes: Number of processes that read at the same time.
    """
    findings = [*_check_identity(root, manifest)]
    read = functools.partial(read_shard, root=root, manifest=manifest)
    totals = dict(run_all(read, manifest.shards, processes, lambda shard: shard.bytes))
    for name, split in manifest.splits.items():
        total = RecordTotals()
        for shard in split.shards:
            total.merge(totals[shard])
        findings += total.problems
        findings += _compare_split(name, split, total, manifest)
    return findings


def read_shard(shard: Shard, root: str, manifest: Manifest) -> RecordTotals:
    """Return the totals over the records of a shard, and contradictions to its catalog."""
    totals = RecordTotals()
    names = {
        feature.get("source", feature["name"]): feature["name"] for feature in manifest.features
    }
    rows = _read_rows(root, shard, _FACTS)
    label_name = str(manifest.build.config.get("label") or "")
    batch: list[_Features] = []
    with open_records(join(root, shard.file)) as records:
        for number, payload in enumerate(records):
            features = parse_example(payload)
            if rows:
                problem = _find_difference(rows[number], payload, features, names, manifest)
                if problem and not totals.problems:
                    file = shard.catalog.file if shard.catalog else shard.file
                    totals.problems.append(Finding(file, f"row {number:,}: {problem}"))
                boxes = features.get(names.get(_BOX_TEXT, ""))
                if boxes:
                    # A label counts once a record, not once a box.
                    totals.labels.update({_one_text(value) for value in boxes.values})
                continue
            label = features.get(label_name)
            labels = label.values if label is not None else []
            totals.several = totals.several or len(labels) > 1
            totals.labels.update(map(_one_text, labels))
            batch.append(features)
            if len(batch) == _BATCH:
                totals.summary = merge_summaries((totals.summary, _sum(batch, manifest)))
                batch = []
    if batch:
        totals.summary = merge_summaries((totals.summary, _sum(batch, manifest)))
    if shard.label is not None and not rows and {*totals.labels} - {shard.label}:
        message = f"it has records with other labels than {shard.label!r}, that of the shard"
        totals.problems.append(Finding(shard.file, message))
    return totals


def _read_rows(root: str, shard: Shard, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return columns of the catalog of a shard; no rows if it has no catalog."""
    if shard.catalog is None:
        return []
    data = read_dataset_file(join(root, shard.catalog.file))
    rows: list[dict[str, Any]] = read_table(data, names).to_pylist()
    return rows


def _find_difference(
    row: dict[str, Any],
    payload: bytes,
    features: _Features,
    names: dict[str, str],
    manifest: Manifest,
) -> str:
    """Return how a row of the catalog differs from its record, or an empty text."""
    from blake3 import blake3

    values = {source: features[name].values for source, name in names.items() if name in features}
    expected: dict[str, Any] = {"record_bytes": HEADER_BYTES + len(payload) + FOOTER_BYTES}
    if KEY in values:
        expected["key"] = "".join(map(_one_text, values[KEY]))
    if CLASS_TEXT in values:
        expected["label"] = manifest.label_separator.join(map(_one_text, values[CLASS_TEXT]))
    elif CLASS_TEXT in names:
        expected["label"] = None
    image = values[ENCODED][0] if values.get(ENCODED) else None
    if isinstance(image, bytes):
        expected[IMAGE_HASH] = blake3(image).hexdigest()
    if values.get(HEIGHT) and values.get(WIDTH):
        expected["pixels"] = int(values[HEIGHT][0]) * int(values[WIDTH][0])
    if _BOXES in names:
        expected["boxes"] = len(values.get(_BOXES, ()))
    for name, value in expected.items():
        if row[name] != value:
            return f"its {name} is {row[name]!r:.99}, but {value!r:.99} in the record"
    return ""


def _one_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def _sum(batch: Sequence[_Features], manifest: Manifest) -> Summary:
    """Return the sums over the values of the features of some records."""
    sums = {}
    for feature in manifest.features:
        name = feature["name"]
        lists = [features[name].values for features in batch if name in features]
        lists = [values for values in lists if values]
        number = sum(map(len, lists))
        if feature["type"] == "bytes":
            sums[name] = Sums("bytes", len(lists), number)
            continue
        dtype = np.int64 if feature["type"] == "int64" else np.float32
        flat = np.array([value for values in lists for value in values], dtype)
        sums[name] = sum_values(flat, len(lists))
    return Summary(sums)


def _compare_split(
    name: str, split: Split, totals: RecordTotals, manifest: Manifest
) -> Iterator[Finding]:
    """Yield how the label counts and statistics of a split differ from its records."""
    file = shard_names.MANIFEST
    of_boxes = any(feature.get("source") == _BOX_TEXT for feature in manifest.features)
    of_boxes = of_boxes and bool(manifest.build.config.get("annotations"))
    if (manifest.catalogs and not of_boxes) or not split.num_examples:
        return  # catalogs have been compared
    is_counted = bool(split.label_counts or manifest.labels) and not totals.several
    # An image counts for the classes of its annotation, also of boxes that its record leaves out.
    left_out = sum(manifest.inputs.counts.get(kind, 0) for kind in _LEFT_OUT) if of_boxes else 0
    if of_boxes or (is_counted and manifest.build.config.get("label")):
        for label in {**split.label_counts, **totals.labels}:
            stated, actual = split.label_counts.get(label, 0), totals.labels[label]
            if not 0 <= stated - actual <= left_out:
                message = f"{name} counts {stated:,} of the label {label!r}, its records {actual:,}"
                yield Finding(file, message)
                break
    if manifest.catalogs:
        return
    if split.statistics is None:
        if "rows" in manifest.build.versions:
            yield Finding(file, f"the statistics of {name} are missing")
        return
    computed = compute_statistics(totals.summary, split.num_examples)
    actual_features = computed.features if computed is not None else {}
    stated_features = split.statistics.features
    for feature in {**stated_features, **actual_features}:
        stated_values = stated_features.get(feature)
        actual_values = actual_features.get(feature)
        if not _is_close(stated_values, actual_values):
            message = f"the statistics of {feature!r} in {name} are not those of the records"
            yield Finding(file, message)


def _is_close(stated: FeatureStatistics | None, actual: FeatureStatistics | None) -> bool:
    """Return whether statistics are equal but for the order in which floats were added."""
    if stated is None or actual is None:
        return False
    for name, value in vars(actual).items():
        other = getattr(stated, name)
        if name not in ("mean", "std") or value is None or other is None:
            if value != other:
                return False
            continue
        scale = max(abs(value), abs(actual.max or 0), abs(actual.min or 0))
        if type(other) not in (int, float) or abs(value - other) > _CLOSE * scale:
            return False
    return True


def _check_identity(root: str, manifest: Manifest) -> Iterator[Finding]:
    """Yield copies and identities that do not follow from options and catalogs."""
    file = shard_names.MANIFEST
    build = manifest.build
    if build.record_id:  # of images
        possible = {
            config_id("images", build.versions, build.config, number)
            for number in range(1, FORMAT_VERSION + 1)
        }
        if build.config_id not in possible:
            yield Finding(file, f"its config_id {build.config_id} is not that of its options")
    rows = [*_read_inputs(root, manifest)]
    if len(rows) != manifest.written or not rows:
        return
    config = build.config
    copies = _count_copies(rows, config)
    inputs = manifest.inputs
    stated = inputs.copies, inputs.copies_across_splits, inputs.copies_with_other_labels
    # 0.2.0, whose manifests have no checksums, took a missing label for another one.
    comparable = 3 if manifest.checksums else 2
    compared = slice(comparable)
    if stated[compared] != copies[compared]:
        message = f"its copies, copies_across_splits and copies_with_other_labels are {stated}"
        yield Finding(file, f"{message}, but {copies} in the catalogs")
    keys = Counter(row["key"] for _, row in rows)
    key, number = keys.most_common(1)[0]
    if number > 1:
        yield Finding(file, f"{number:,} records have the key {key!r}")
    if _can_check_input_id(manifest, rows):
        possible = {f"{sum(digests) % (1 << 128):032x}" for digests in _digests(rows)}
        if build.input_id not in possible:
            message = f"its input_id {build.input_id} is not that of the inputs in the catalogs"
            yield Finding(file, message)


def _read_inputs(root: str, manifest: Manifest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the split and the row of each record."""
    for name, split in manifest.splits.items():
        for shard in split.shards:
            for row in _read_rows(root, shard, _CONTENTS):
                yield name, row


def _count_copies(
    rows: Sequence[tuple[str, dict[str, Any]]], config: Mapping[str, Any]
) -> tuple[int, int, int]:
    """Return the numbers of copies, of contents in several splits and labeled differently."""
    contents: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for split, row in rows:
        annotation = annotation_of(row["label"], row[VALUES], config)
        contents[row["content_hash"]].append((split, annotation))
    copies = across = differ = 0
    for group in contents.values():
        splits, annotations = map(set, zip(*group, strict=True))
        copies += len(group) - 1
        across += len(splits) > 1
        differ += len(annotations - {""}) > 1
    return copies, across, differ


def _can_check_input_id(manifest: Manifest, rows: Sequence[tuple[str, dict[str, Any]]]) -> bool:
    """Return whether the catalogs record everything that the identity of the inputs covers."""
    config, inputs = manifest.build.config, manifest.inputs
    is_plain = not config.get("group_pattern") and config.get("duplicates", "keep") == "keep"
    is_complete = not inputs.rejected and not inputs.duplicates and bool(inputs.root)
    return is_plain and is_complete and not any(row[VALUES] for _, row in rows)


def _digests(rows: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[list[int]]:
    """Yield the digests of all inputs, if their splits were placed and if they were named."""
    for is_named in (False, True):
        digests = []
        for split, row in rows:
            placed = split if is_named else ""
            facts = row["key"], "", row["input_bytes"], row["input_version"], row["label"], placed
            digests.append(InputRef(*facts).digest())
        yield digests
