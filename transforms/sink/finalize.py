"""Check a finished build, write its manifest and publish it."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Build, Inputs, Manifest, Shard, Split
from shardmill.schemas.dataset.splits import Splits, split_order
from shardmill.schemas.errors import (
    LimitError,
    OutputError,
    ResourceError,
    ShardmillError,
    StorageError,
)
from shardmill.schemas.numbers import plural
from shardmill.schemas.refs import Reject
from shardmill.schemas.schema_pbtxt.image_features import COUNTS
from shardmill.schemas.storage import Storage, join, map_ordered, storage_threads
from shardmill.schemas.tfrecord.framing import crc32c
from shardmill.transforms.publish.publish import FinalFile, Publisher
from shardmill.transforms.sink.census import Census, find_remedy, order_reasons, show_examples
from shardmill.transforms.sink.duplicates import Copies
from shardmill.transforms.sink.parts import BuiltShard, parse_sidecar
from shardmill.transforms.sink.placement import REJECTED, Series
from shardmill.transforms.sink.plan import Plan
from shardmill.transforms.sink.spec import (
    Encoder,
    ExtraFiles,
    Outcome,
    SinkSpec,
    Status,
    damaged_part,
)
from shardmill.transforms.statistics.sums import Totals, compute_statistics

_SHOWN_REJECTS = 3
_READ_AHEAD = 256  # sidecars


class Built(NamedTuple):
    """All shards of a build.

    Attributes:
        shards: All shards, sorted by series and index.
        totals: Totals over the parts of each series.
    """

    shards: Sequence[BuiltShard]
    totals: Mapping[Series, Totals]

    def total(self, split: str | None = None) -> Totals:
        """Return the totals over the parts of a split, or over all parts."""
        total = Totals()
        for series, series_totals in self.totals.items():
            if split in (None, series.split):
                total.merge(series_totals)
        return total


def planned_outcome(plan: Plan, census: Census) -> Outcome:
    """Return the outcome of a plan that builds nothing."""
    series = tuple(
        (*name, *census.series.get(name, (0, 0)), parts)
        for name, parts in plan.parts.items()
        if name != REJECTED
    )
    status: Status = "failed" if plan.status == "build" else plan.status
    return Outcome(
        status,
        plan.message,
        matched=census.matched,
        skipped=census.counts.skipped,
        duplicates=census.counts.duplicates,
        series=series,
        changes=plan.changes,
        labels=plan.labels,
    )


def finish(
    storage: Storage,
    spec: SinkSpec,
    encoder: Encoder[Any],
    plan: Plan,
    census: Census,
    built: Built,
    copies: Copies,
) -> Outcome:
    """Check a finished build, write its schema, labels and rejects, and publish it."""
    whole = built.total()
    up_to_date = Outcome(
        "up_to_date",
        parts_made=whole.made,
        parts_reused=whole.reused,
        matched=census.matched,
        skipped=census.counts.skipped,
        duplicates=census.counts.duplicates + whole.duplicates,
    )
    failures = (census.counts.fatal, whole.failure, *(shard.failure for shard in built.shards))
    failure = min(filter(None, failures), default="")
    if failure:
        return replace(up_to_date, status="failed", message=failure)
    try:
        shard_names.check_file_names(
            built_shard.shard.file for built_shard in built.shards if built_shard.shard
        )
        _check_versions(whole.versions)
        extra = spec.hooks.extra_files(spec.build, plan.read_id)
        manifest = make_manifest(spec, encoder, plan, census, built, extra, copies)
        schema = spec.hooks.schema(encoder.schema(manifest.labels), manifest.splits)
        _check_rejects(storage, spec, manifest.inputs, built, schema)
        schema = extra.schema or schema
        files = list(_write_side_files(storage, spec, schema, manifest.labels, built, extra.files))
        manifest = replace(manifest, checksums={file.name: file.crc32c for file in files})
        files += [file for shard in built.shards for file in shard.files]
        publisher = Publisher(storage, spec.output, plan.base, spec.keep, spec.check)
        published = publisher.publish(manifest, files)
    except LimitError as error:
        return replace(up_to_date, status="failed", message=str(error), findings=error.findings)
    except (OutputError, ResourceError, StorageError) as error:
        return replace(up_to_date, status="failed", message=str(error))
    with contextlib.suppress(ShardmillError):  # `clean` finds the rest
        storage.delete_tree(spec.build)
    if published is None:
        return up_to_date
    return replace(
        up_to_date,
        status="published",
        message=published.remark,
        reused=whole.taken,
        changes=plan.changes,
        manifest=published.text,
    )


def make_manifest(
    spec: SinkSpec,
    encoder: Encoder[Any],
    plan: Plan,
    census: Census,
    built: Built,
    extra: ExtraFiles,
    copies: Copies,
) -> Manifest:
    """Return the manifest of a build; every number in it was counted."""
    whole = built.total()
    inputs = Inputs(
        root=spec.kept_root,
        matched=census.matched,
        accepted=whole.records,
        rejected=sum(whole.rejects.values()),
        skipped=census.counts.skipped,
        duplicates=census.counts.duplicates + whole.duplicates,
        rejected_by_reason=dict(sorted(whole.rejects.items())),
        multi_frame=whole.multi_frame,
        copies=copies.records,
        copies_across_splits=copies.across_splits,
        copies_with_other_labels=copies.labels_differ,
        counts={name: whole.counts[name] for name in COUNTS if name in whole.counts},
    )
    total = inputs.accepted + inputs.rejected + inputs.skipped + inputs.duplicates
    if inputs.matched != total:
        raise AssertionError(f"{inputs} does not add up")
    features = tuple(extra.features or encoder.features())
    counted_labels = spec.hooks.labels(whole.label_counts, features)
    labels = plan.labels or counted_labels or ()
    splits = _splits(spec, labels, built)
    warnings = [
        *_warnings(splits, inputs, spec.place.splits),
        *copies.warnings(spec.hooks.inputs, spec.config),
    ]
    for name in spec.place.unlabeled:
        if name not in splits:  # of folders, a listing or a column
            names = ", ".join(splits)
            warnings.append(f"--unlabeled_splits={name} is not a split: the splits are {names}")
    if counted_labels is None:
        warnings.append("the label has too many distinct values: they are not counted")
        splits = {name: replace(split, label_counts={}) for name, split in splits.items()}
    files = {} if spec.source_id else dict(sorted(census.file_ids.items()))
    return Manifest(
        splits=splits,
        written=whole.records,
        compression=spec.compression,
        inputs=inputs,
        build=Build(
            config_id=spec.config_id,
            input_id=plan.input_id,
            config=spec.config,
            versions=encoder.versions(),
            runner=spec.runner,
            finished=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
            command=spec.command,
            record_id=spec.record_id,
            ctime_id=plan.ctime_id,
            content_id=census.content_id,
            files=files,
        ),
        labels=labels,
        features=features,
        warnings=(*plan.warnings, *warnings),
        side_files=tuple(sorted(extra.files)),
    )


def _splits(spec: SinkSpec, listed: Sequence[str], built: Built) -> dict[str, Split]:
    required = [*spec.place.splits.required]
    by_split: dict[str, list[Shard]] = {}
    for built_shard in built.shards:
        if built_shard.shard:
            by_split.setdefault(built_shard.series.split, []).append(built_shard.shard)
    others = set(by_split) - set(required)
    ids = {label: number for number, label in enumerate(listed)}
    last = len(ids)
    splits = {}
    for name in required + sorted(others, key=split_order):
        shards = by_split.get(name, [])
        total = built.total(name)
        labels = total.label_counts
        ordered = sorted(labels, key=lambda x: (ids.get(x, last), x.encode()))
        statistics = None
        if total.records:
            statistics = compute_statistics(total.summary, total.records)
        splits[name] = Split(
            num_examples=sum(shard.records for shard in shards),
            num_bytes=sum(shard.bytes for shard in shards),
            label_counts={label: labels[label] for label in ordered},
            statistics=statistics,
            labeled=name not in spec.place.unlabeled,
            shards=tuple(shards),
        )
    return splits


def _warnings(splits: dict[str, Split], inputs: Inputs, options: Splits) -> Iterator[str]:
    for name, split in splits.items():
        empty = sum(not shard.records for shard in split.shards)
        if not split.num_examples:
            why = "none of its inputs became an example"
            if name in options.names:
                why = "too few examples fell into its share"
            yield f"the split {name} is empty: {why}"
        elif empty:
            yield f"{empty} of {len(split.shards)} shards of {name} are empty: ask for fewer shards"
    if inputs.multi_frame:
        files = plural(inputs.multi_frame, "file")
        yield f"{files} with several frames: only the first of each was used"
    for name, number in inputs.counts.items():
        if number and COUNTS[name]:
            yield f"{COUNTS[name]}: {number:,}"
    if inputs.counts.get("boxes") == 0:
        yield "no record has a box: check --annotations"
    if inputs.counts.get("kept") == 0:
        yield "--encoding=keep kept no file: all differ in size (--resize), rotation or kind"


def _check_versions(versions: set[tuple[tuple[str, str], ...]]) -> None:
    if len(versions) > 1:
        common = set.intersection(*map(set, versions))
        differing = sorted({name for name, _ in set.union(*map(set, versions)) - common})
        codecs = ", ".join(differing)
        raise OutputError(
            f"The parts were made by different versions of {codecs}: install the same "
            "constraints.txt on every worker, run `shardmill clean`, build again."
        )


def _check_rejects(
    storage: Storage, spec: SinkSpec, inputs: Inputs, built: Built, schema: str
) -> None:
    considered = inputs.accepted + inputs.rejected
    rejects = read_rejects(storage, spec, built) if inputs.accepted else iter(())
    problem = spec.hooks.why_unacceptable(rejects, considered)
    # Exact decimal: 0.29 of 100 inputs is 29, but the nearest double is smaller.
    limit = max(Fraction(1), Fraction(repr(spec.max_reject_fraction)) * considered)
    if inputs.accepted and inputs.rejected <= limit and not problem:
        return
    if not considered:
        raise OutputError("The input holds nothing that could become a record: check --input.")
    counts = inputs.rejected_by_reason
    worst = order_reasons(counts)[:_SHOWN_REJECTS]
    reasons = ", ".join(f"{reason} {counts[reason]:,}" for reason in worst)
    report = join(spec.build, shard_names.REJECTS)
    _write_rejects(storage, spec, built, report)
    if problem:
        storage.replace(join(spec.build, shard_names.SCHEMA), schema.encode())
        raise OutputError(f"{problem}; {report} lists each reject.")
    if not inputs.accepted:
        rule, remedy = "none could become a record", "fix them and run again"
    else:
        rule = f"more than --max_reject_fraction={spec.max_reject_fraction:g} allows"
        remedy = "fix or remove them, or raise the limit, and run again: finished parts are kept"
    advice = spec.hooks.advice(read_rejects(storage, spec, built))
    step = f"; {advice}"
    if not advice:
        examples: dict[str, list[tuple[str, str]]] = {}
        for reject in read_rejects(storage, spec, built):
            of_reason = examples.setdefault(reject.error, [])
            of_reason[:] = sorted([*of_reason, (reject.key, reject.message)])[:_SHOWN_REJECTS]
        such_as = show_examples(counts, examples)
        remedy = find_remedy(counts, examples, spec.hooks) or remedy
        notes = "".join(f" ({warning})" for warning in spec.warnings)
        step = f", such as {such_as}; {remedy}{notes}"
    raise OutputError(
        f"{inputs.rejected:,} of {considered:,} inputs were rejected ({reasons}), {rule}: {report} "
        f"lists each with its reason{step}."
    )


def read_rejects(storage: Storage, spec: SinkSpec, built: Built) -> Iterator[Reject]:
    """Yield all rejects in part order; read only the sidecars that have some."""
    sidecars = [join(spec.parts, name) for shard in built.shards for name in shard.rejects]
    read = map_ordered(storage.read, sidecars, storage_threads(spec.parts), window=_READ_AHEAD)
    for shard in built.shards:
        for name in shard.rejects:
            parsed = parse_sidecar(next(read), spec.root)
            if parsed is None:
                raise damaged_part(join(spec.parts, name))
            if spec.source_id:
                yield from map(_without_spool, parsed.rejects)
            else:
                yield from parsed.rejects


def _without_spool(reject: Reject) -> Reject:
    """Return the reject of a record of Python without the path of the file that it was read from.

    Of an image with another key, the place in the source stays.
    """
    is_place = reject.uri.startswith("record:") and reject.uri != reject.key
    if is_place:
        return reject
    return reject._replace(uri="")


def _write_rejects(storage: Storage, spec: SinkSpec, built: Built, path: str) -> int:
    """Write the list of rejects to a file; return its size."""
    with storage.open_write(path) as target:
        return sum(
            target.write(reject.to_json().encode() + b"\n")
            for reject in read_rejects(storage, spec, built)
        )


def _write_side_files(
    storage: Storage,
    spec: SinkSpec,
    schema: str,
    labels: Sequence[str],
    built: Built,
    files: Mapping[str, str],
) -> Iterator[FinalFile]:
    """Write schema, labels and rejects to the build folder; yield all side files."""
    folder = f"final-{uuid.uuid4().hex[:12]}"
    texts = {shard_names.SCHEMA: schema.encode()}
    if labels:
        texts[shard_names.LABELS] = "".join(f"{label}\n" for label in labels).encode()
    for name, data in texts.items():
        storage.replace(join(spec.build, folder, name), data)
        crc = f"{crc32c(data):08x}"
        yield FinalFile(f"{spec.build_name}/{folder}/{name}", name, len(data), crc)
    rejects = shard_names.REJECTS
    path = join(spec.build, folder, rejects)
    size = _write_rejects(storage, spec, built, path)
    crc = f"{storage.checksum(path):08x}"
    yield FinalFile(f"{spec.build_name}/{folder}/{rejects}", rejects, size, crc)
    for name, path in sorted(files.items()):
        entry = storage.stat(join(spec.build, path))
        if entry is None:
            raise FileNotFoundError(join(spec.build, path))
        crc = f"{storage.checksum(join(spec.build, path)):08x}"
        yield FinalFile(f"{spec.build_name}/{path}", name, entry.size, crc)
