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
from typing import Any

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.dataset_files import check_dataset_file, read_dataset_file
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import FormatError, StorageError, UsageError
from shardmill.schemas.refs import Reject
from shardmill.schemas.schema_pbtxt.schema_text import kind_of, parse_schema_text
from shardmill.schemas.storage import join, open_storage
from shardmill.schemas.tfrecord.framing import crc32c
from shardmill.transforms.publish.check_catalogs import check_catalogs
from shardmill.transforms.publish.finding import Finding

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
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def _read(root: str, name: str) -> bytes | Finding:
    """Return the content of a file, or why it has none."""
    try:
        return read_dataset_file(join(root, name))
    except FileNotFoundError:
        return Finding(name, _MISSING)
    except (FormatError, StorageError) as error:
        return Finding(name, str(error))
