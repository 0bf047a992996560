"""Check a version of a dataset without reading its records: ``verify`` and ``rollback`` use it.

Derived values are computed again and compared: sums of the manifest, names of shards, features in
the schema, and label counts and statistics in the catalogs.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.catalog import read_table, shard_crc_of
from shardmill.schemas.dataset.dataset_files import check_dataset_file, read_dataset_file
from shardmill.schemas.dataset.manifest import CatalogFile, Manifest, Shard, Split
from shardmill.schemas.errors import FormatError, StorageError, UsageError
from shardmill.schemas.refs import Reject
from shardmill.schemas.schema_pbtxt.image_features import COUNTS
from shardmill.schemas.schema_pbtxt.schema_text import kind_of, parse_schema_text
from shardmill.schemas.storage import join, map_ordered, open_storage, storage_threads
from shardmill.schemas.tfrecord.framing import crc32c
from shardmill.transforms.statistics.sums import Totals, compute_statistics, sum_rows


class Finding(NamedTuple):
    """A difference between a dataset and its manifest or schema.

    Attributes:
        file: Name relative to the dataset's folder.
        message: The difference, without a full stop.
    """

    file: str
    message: str


_MISSING = "it is missing"
_NOT_LISTED = "it is not in the manifest"
_KINDS = {"int64": "int64", "float": "float32", "float32": "float32", "bytes": "bytes"}
_MAX_DIFFERENCES = 5  # of two manifests that are reported one by one
_MAX_SHOWN = 60  # characters of a value


def check_version(folder: str, manifest: Manifest, stated_crc: str = "") -> list[Finding]:
    """Return the faults in the files of a version, except in the bytes of its shards.

    Args:
        folder: Folder of the files.
        manifest: The manifest inside of the folder.
        stated_crc: CRC-32C of that manifest, or empty if unknown.
    """
    findings = [
        *check_text(folder, stated_crc),
        *check_numbers(manifest),
        *_check_names(manifest),
        *_check_files(folder, manifest),
        *_check_labels(folder, manifest),
        *_check_rejects(folder, manifest),
        *_check_features(folder, manifest),
        *check_catalogs(folder, manifest),
    ]
    # Other findings about a file say more than that its checksum differs.
    reported = {finding.file for finding in findings}
    checksums = _check_checksums(folder, manifest)
    return findings + [finding for finding in checksums if finding.file not in reported]


def check_text(folder: str, stated_crc: str = "") -> Iterator[Finding]:
    """Yield the faults in the text of a manifest: its checksum, unknown and wrong fields.

    Args:
        folder: Folder of the manifest.
        stated_crc: Its CRC-32C, or empty if unknown.
    """
    file = shard_names.MANIFEST
    data = _read(folder, file)
    if isinstance(data, Finding):
        yield data
        return
    if stated_crc and f"{crc32c(data):08x}" != stated_crc:
        yield Finding(file, f"its CRC-32C is not {stated_crc}: it changed after it was published")
    try:
        written = json.loads(Manifest.from_json(data).to_json())
    except FormatError as error:
        yield Finding(file, str(error))
        return
    # Weights follow from counts; names that this release does not know mean nothing to readers.
    body = json.loads(data)
    for path, value, expected in _differences(body, written):
        if expected is None:
            yield Finding(file, f"it has {path}, which is not a field of a manifest")
        elif value is not None:
            yield Finding(
                file, f"its {path} is {_json_text(value)}, and must be {_json_text(expected)}"
            )
        elif ".class_weights" in path:
            yield Finding(file, f"its {path} is missing")


def compare_manifests(outer: Manifest, inner: Manifest) -> Iterator[Finding]:
    """Yield how the manifest of a dataset differs from the one inside of its generation."""
    # As the manifest is written inside of its generation.
    nameless = replace(outer, generation="", previous=(), manifests={}, held=False)
    bodies = [json.loads(manifest.to_json()) for manifest in (nameless, inner)]
    differences = [*_differences(*bodies)]
    for path, value, expected in differences[:_MAX_DIFFERENCES]:
        message = (
            f"its {path} is {_json_text(value)}, but {_json_text(expected)} in {outer.generation}"
        )
        yield Finding(shard_names.MANIFEST, message)
    if len(differences) > _MAX_DIFFERENCES:
        more = len(differences) - _MAX_DIFFERENCES
        message = f"{more:,} more of its values differ from those in {outer.generation}"
        yield Finding(shard_names.MANIFEST, message)
    names = [*outer.splits], [*inner.splits]
    if names[0] != names[1]:
        message = f"its splits are in the order {', '.join(names[0])}, not {', '.join(names[1])}"
        yield Finding(shard_names.MANIFEST, message)


def check_outer(output: str, manifest: Manifest) -> Iterator[Finding]:
    """Yield where a manifest contradicts its generation or earlier ones.

    Args:
        output: Folder of the manifest.
        manifest: The manifest; it names a generation.
    """
    yield from check_text(output)
    path = join(output, manifest.generation)
    inner = _read(path, shard_names.MANIFEST)
    if isinstance(inner, Finding):
        name = f"{manifest.generation}/{shard_names.MANIFEST}"
        yield inner._replace(file=name)
    else:
        with contextlib.suppress(FormatError):  # check_version reports it
            yield from compare_manifests(manifest, Manifest.from_json(inner))
    if manifest.checksums and not manifest.manifests:
        yield Finding(shard_names.MANIFEST, "it has no checksums of the manifests that it names")
    named = (manifest.generation, *manifest.previous)
    for name in sorted({*manifest.manifests} - {*named}):
        yield Finding(shard_names.MANIFEST, f"its manifests names {name}, which it does not keep")
    for name in named:
        file = f"{name}/{shard_names.MANIFEST}"
        data = _read(output, file)
        stated = manifest.manifests.get(name, "")
        if isinstance(data, Finding):
            if name != manifest.generation:
                yield data
        elif manifest.manifests and not stated:
            yield Finding(shard_names.MANIFEST, f"its manifests lacks {name}")
        elif stated and f"{crc32c(data):08x}" != stated and name != manifest.generation:
            yield Finding(file, f"its CRC-32C is not {stated}: it changed after it was published")


def check_numbers(manifest: Manifest) -> Iterator[Finding]:
    """Yield contradictions between the numbers of a manifest."""
    yield from _check_splits(manifest)
    yield from _check_inputs(manifest)
    file = shard_names.MANIFEST
    compression = manifest.build.config.get("compression", manifest.compression)
    if compression != manifest.compression:
        message = f"its compression is {manifest.compression}, but {compression} in its config"
        yield Finding(file, message)
    for damaged in manifest.damaged:
        yield Finding(damaged.file, f"it was damaged when it was counted: {damaged.message}")


def _check_splits(manifest: Manifest) -> Iterator[Finding]:
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


def _check_inputs(manifest: Manifest) -> Iterator[Finding]:
    file = shard_names.MANIFEST
    inputs = manifest.inputs
    accounted = inputs.accepted + inputs.rejected + inputs.skipped + inputs.duplicates
    if inputs.matched != accounted:
        yield Finding(
            file, f"{inputs.matched:,} inputs were matched, but {accounted:,} accounted for"
        )
    if not manifest.root and inputs.accepted != manifest.written:
        message = f"{inputs.accepted:,} inputs were accepted, but {manifest.written:,} written"
        yield Finding(file, message)
    of_images = [
        inputs.multi_frame,
        inputs.copies,
        inputs.copies_across_splits,
        inputs.copies_with_other_labels,
        *inputs.counts.values(),
    ]
    if (any(of_images) or inputs.counts) and not manifest.root and not manifest.build.record_id:
        yield Finding(file, "multi_frame, copies or counts are not 0, which only images have")
    rejected = sum(inputs.rejected_by_reason.values())
    if rejected != inputs.rejected:
        message = f"{inputs.rejected:,} inputs were rejected, but {rejected:,} have a reason"
        yield Finding(file, message)


def _check_names(manifest: Manifest) -> Iterator[Finding]:
    """Yield shards whose names do not follow from their split and place."""
    text = manifest.build.config.get("shard_name")
    if not isinstance(text, str):
        return
    try:
        template = shard_names.shard_template(
            text,
            by_label=manifest.build.config.get("shard_by") == "label",
            compression=manifest.compression,
        )
    except UsageError as error:
        yield Finding(shard_names.MANIFEST, f"its shard_name cannot be read: {error}")
        return
    for name, split in manifest.splits.items():
        totals = Counter(shard.label for shard in split.shards)
        numbers: Counter[str | None] = Counter()
        for shard in split.shards:
            number, total = numbers[shard.label], totals[shard.label]
            numbers[shard.label] += 1
            expected = template.format(name, number, total, shard.records, shard.label or "")
            if shard.file != expected:
                message = f"it is shard {number:,} of {name}, whose name is {expected}"
                yield Finding(shard.file, message)


def _check_files(folder: str, manifest: Manifest) -> Iterator[Finding]:
    """Yield files that are not in the manifest."""
    storage = open_storage(folder)
    listed = {*manifest.files, *shard_names.RESERVED}
    for entry in storage.list_dir(folder):
        if entry.name not in listed and not entry.name.startswith("."):
            yield Finding(entry.name, _NOT_LISTED)
    catalogs = {catalog.file for catalog in manifest.catalogs}
    for entry in storage.list_dir(join(folder, shard_names.CATALOG)):
        name = f"{shard_names.CATALOG}/{entry.name}"
        if name not in catalogs and not entry.name.startswith("."):
            yield Finding(name, _NOT_LISTED)
    if not manifest.side_files and storage.stat(join(folder, shard_names.TRANSFORM)) is not None:
        yield Finding(shard_names.TRANSFORM, _NOT_LISTED)


def _check_checksums(folder: str, manifest: Manifest) -> Iterator[Finding]:
    """Yield side files whose checksum differs from the manifest."""
    if not manifest.checksums:  # a dataset of 0.2.0
        return
    side_files = {shard_names.SCHEMA, shard_names.REJECTS, *manifest.side_files}
    if manifest.labels:
        side_files.add(shard_names.LABELS)
    for name in sorted(side_files - {*manifest.checksums}):
        yield Finding(name, "the manifest has no checksum of it")
    for name in sorted({*manifest.checksums} - side_files):
        yield Finding(name, "the manifest has a checksum of it, but no such file")
    for name, stated in sorted(manifest.checksums.items()):
        path = join(folder, name)
        try:
            check_dataset_file(path)
            checksum = f"{open_storage(path).checksum(path):08x}"
        except FileNotFoundError:
            yield Finding(name, _MISSING)
            continue
        except (FormatError, StorageError):
            continue  # reported where the file is read
        if checksum != stated:
            yield Finding(name, f"its CRC-32C is {checksum}, the manifest says {stated}")


def _check_labels(folder: str, manifest: Manifest) -> Iterator[Finding]:
    labels = manifest.labels
    data = _read(folder, shard_names.LABELS)
    if isinstance(data, Finding):
        if labels or data.message != _MISSING:
            yield data
    elif data != "".join(f"{label}\n" for label in labels).encode():
        yield Finding(shard_names.LABELS, "its labels are not those of the manifest")


def _check_rejects(folder: str, manifest: Manifest) -> Iterator[Finding]:
    file = shard_names.REJECTS
    data = _read(folder, file)
    if isinstance(data, Finding):
        yield data
        return
    reasons: Counter[str] = Counter()
    try:
        for line in data.splitlines():
            reject = Reject(**json.loads(line))
            reasons[reject.error] += reject.inputs
    except (ValueError, TypeError):
        yield Finding(file, "one of its lines is not a reject in JSON")
        return
    rejects, expected = sum(reasons.values()), manifest.inputs.rejected
    if rejects != expected:
        yield Finding(file, f"it has {rejects:,} rejects, the manifest says {expected:,}")
    elif dict(reasons) != manifest.inputs.rejected_by_reason:
        yield Finding(file, "its rejects have other reasons than rejected_by_reason says")


def _check_features(folder: str, manifest: Manifest) -> Iterator[Finding]:
    """Yield features of the manifest that the schema describes otherwise."""
    data = _read(folder, shard_names.SCHEMA)
    if isinstance(data, Finding):
        yield data
        return
    try:
        described = parse_schema_text(data.decode(), shard_names.SCHEMA).feature
    except (FormatError, UnicodeDecodeError) as error:
        yield Finding(shard_names.SCHEMA, f"it cannot be read: {error}")
        return
    kinds = {feature.name: kind_of(feature) for feature in described}
    listed = {
        str(feature["name"]): _KINDS.get(str(feature.get("type"))) for feature in manifest.features
    }
    if len(listed) != len(manifest.features):
        yield Finding(shard_names.MANIFEST, "it lists a feature twice")
    for name, kind in listed.items():
        if name not in kinds:
            message = f"the feature {name!r} is not in {shard_names.SCHEMA}"
            yield Finding(shard_names.MANIFEST, message)
        elif kinds[name] not in (None, kind):
            message = f"the feature {name!r} is {kind}, but {kinds[name]} in {shard_names.SCHEMA}"
            yield Finding(shard_names.MANIFEST, message)
    yield from _check_sources(manifest)
    # TensorFlow Transform describes a sparse feature by several.
    if manifest.side_files:
        return
    for name in sorted(kinds.keys() - listed.keys()):
        yield Finding(shard_names.MANIFEST, f"it does not list the feature {name!r} of the schema")


def _check_sources(manifest: Manifest) -> Iterator[Finding]:
    """Yield features of images whose source is not the one that ``--features`` gives them."""
    if not manifest.build.record_id:
        return
    option = str(manifest.build.config.get("features") or "")
    pairs = [item.strip().partition("=") for item in option.split(",") if item]
    sources = {name: source for name, equals, source in pairs if equals}
    for feature in manifest.features:
        name = feature["name"]
        expected = sources.get(name, name)
        if feature.get("source") != expected:
            message = f"the source of {name!r} is {feature.get('source')!r}, and not {expected!r}"
            yield Finding(shard_names.MANIFEST, message)


def _differences(value: Any, expected: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted path of each value that differs, and both values; a missing one is None."""
    if isinstance(value, dict) and isinstance(expected, dict):
        for name in [*value, *(name for name in expected if name not in value)]:
            below = f"{path}.{name}" if path else name
            if name not in expected:
                yield below, value[name], None
                continue
            yield from _differences(value.get(name), expected.get(name), below)
    elif isinstance(value, list) and isinstance(expected, list) and len(value) == len(expected):
        for number, pair in enumerate(zip(value, expected, strict=True)):
            yield from _differences(*pair, f"{path}[{number}]")
    elif value != expected or type(value) is not type(expected):
        yield path, value, expected


def _json_text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _MAX_SHOWN:
        return text
    return text[:_MAX_SHOWN] + "…"


def _read(root: str, name: str) -> bytes | Finding:
    """Return the content of a file, or why it has none."""
    try:
        return read_dataset_file(join(root, name))
    except FileNotFoundError:
        return Finding(name, _MISSING)
    except (FormatError, StorageError) as error:
        return Finding(name, str(error))


_COLUMNS = ("record", "label", "multi_frame", "pixels", "pixel_sums", "pixel_squares", "record_id")


def check_catalogs(folder: str, manifest: Manifest) -> Iterator[Finding]:
    """Yield catalogs that are damaged, of another shard, or contradict the manifest."""
    if not manifest.catalogs:
        return
    total, is_complete = Totals(), True
    for name, split in manifest.splits.items():
        totals = Totals()
        read_shard = partial(_read_catalog, folder, split=split, manifest=manifest)
        shards = [shard for shard in split.shards if shard.catalog is not None]
        is_whole = len(shards) == sum(bool(shard.records) for shard in split.shards)
        for read in map_ordered(read_shard, shards, storage_threads(folder)):
            if isinstance(read, Finding):
                yield read
                is_whole = False
            else:
                totals.merge(read)
        total.multi_frame += totals.multi_frame
        total.counts.update(totals.counts)
        is_complete = is_complete and is_whole
        if is_whole and totals.records:
            yield from _compare_catalogs(name, split, totals, manifest)
    if is_complete:
        yield from _compare_counts(manifest, total)


def _compare_counts(manifest: Manifest, total: Totals) -> Iterator[Finding]:
    inputs = manifest.inputs
    if inputs.multi_frame != total.multi_frame:
        message = (
            f"multi_frame is {inputs.multi_frame:,}, but {total.multi_frame:,} in the catalogs"
        )
        yield Finding(shard_names.MANIFEST, message)
    for name in {**inputs.counts, **total.counts}:
        stated, actual = inputs.counts.get(name, 0), total.counts[name]
        if stated != actual:
            message = f"the sum of {name} is {stated:,}, but {actual:,} in the catalogs"
            yield Finding(shard_names.MANIFEST, message)


def _read_catalog(folder: str, shard: Shard, split: Split, manifest: Manifest) -> Totals | Finding:
    """Return the totals over the rows of a shard's catalog, or what is wrong with it."""
    file, size, crc = cast("CatalogFile", shard.catalog)
    data = _read(folder, file)
    if isinstance(data, Finding):
        return data
    if len(data) != size or f"{crc32c(data):08x}" != crc:
        return Finding(file, "its size or CRC-32C is not that of the manifest")
    try:
        table = read_table(data, (*_COLUMNS, *COUNTS))
    except FormatError as error:
        return Finding(file, str(error))
    problem = _find_catalog_problem(table, shard, split, manifest)
    if problem:
        return Finding(file, problem)
    return _sum_catalog(table, manifest.label_separator)


def _find_catalog_problem(table: Any, shard: Shard, split: Split, manifest: Manifest) -> str:
    """Return why the rows do not describe the records of a shard, or an empty text."""
    if len(table) != shard.records:
        return f"it has {len(table):,} rows, and the shard {shard.records:,} records"
    if shard_crc_of(table) not in ("", shard.crc32c):
        return f"it is the catalog of another shard, whose CRC-32C is {shard_crc_of(table)}"
    if table["record"].to_pylist() != [*range(len(table))]:
        return "its records are not numbered from 0"
    record_ids = {*table["record_id"].to_pylist()}
    if record_ids != {manifest.build.record_id}:
        return "its record_id is not that of the manifest"
    labels = {*table["label"].to_pylist()}
    if shard.label is not None and labels != {shard.label}:
        return f"it has other labels than {shard.label!r}, that of the shard"
    lists = [*table["pixel_sums"].to_pylist(), *table["pixel_squares"].to_pylist()]
    pixels = split.statistics.pixels if split.statistics else None
    stated = len(pixels.mean) if pixels else 0
    if {*map(len, lists)} != {stated}:
        return "its images have different numbers of channels"
    return ""


def _sum_catalog(table: Any, separator: str) -> Totals:
    """Return the totals over the rows of a catalog."""
    totals = Totals(records=len(table), multi_frame=sum(table["multi_frame"].to_pylist()))
    for label, number in Counter(table["label"].to_pylist()).items():
        if label is None:
            continue
        singles = label.split(separator) if separator else [label]
        for single in singles:
            totals.label_counts[single] += number
    for name in COUNTS:
        values = [value for value in table[name].to_pylist() if value is not None]
        if values:
            totals.counts[name] = sum(values)
    pixels = (table[name].to_pylist() for name in ("pixels", "pixel_sums", "pixel_squares"))
    totals.summary = sum_rows(zip(*pixels, strict=True))
    return totals


def _compare_catalogs(
    name: str, split: Split, totals: Totals, manifest: Manifest
) -> Iterator[Finding]:
    file = shard_names.MANIFEST
    # Labels of boxes are counted by box, and are not in the catalog.
    if not manifest.build.config.get("annotations") and split.label_counts != dict(
        totals.label_counts
    ):
        for label in {**split.label_counts, **totals.label_counts}:
            stated, actual = split.label_counts.get(label, 0), totals.label_counts[label]
            if stated != actual:
                message = (
                    f"{name} counts {stated:,} of the label {label!r}, the catalogs {actual:,}"
                )
                yield Finding(file, message)
                return
    computed = compute_statistics(totals.summary, totals.records)
    if split.statistics != computed:
        message = f"the statistics of {name} are not those of the pixels in the catalogs"
        yield Finding(file, message)
