"""Count the records of TFRecord files: functions of each step, and ``count_now`` without Beam.

The result is a manifest of the counted files.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import NamedTuple

from shardmill.schemas.dataset.dataset_files import read_dataset_file
from shardmill.schemas.dataset.foreign_names import missing_shards, split_of, stated_records
from shardmill.schemas.dataset.manifest import (
    COUNT_PIPELINE,
    Build,
    Damaged,
    Inputs,
    Manifest,
    Shard,
    Split,
)
from shardmill.schemas.dataset.shard_names import MANIFEST, is_generation
from shardmill.schemas.dataset.splits import split_order
from shardmill.schemas.errors import DeniedError, FormatError, OutputError, ShardmillError
from shardmill.schemas.numbers import plural
from shardmill.schemas.refs import InputRef, MatchCounts
from shardmill.schemas.storage import join, map_ordered, open_storage
from shardmill.schemas.tfrecord.reader import INFLATE_COST, Check, FileCount, count_file
from shardmill.schemas.tfrecord.scanner import FileFault
from shardmill.transforms.match.inputs import MatchSpec, match_now
from shardmill.transforms.runtime import progress
from shardmill.transforms.runtime.lifeline import end_if_orphaned
from shardmill.transforms.runtime.process_pool import run_all

_CONCURRENT_OPENS = 16
ALL = "all"  # the split of files whose names contain no split


def count_now(match: MatchSpec, spec: CountSpec) -> Manifest:
    """Count files in this process and its children, as ``CountRecords`` does on any runner.

    Args:
        match: Which files to match.
        spec: The check, and the path of the manifest.

    Raises:
        ShardmillError: The input is unusable, or a storage failed.
    """
    try:
        refs, counts = match_now(match)
    except ShardmillError as error:
        refs, counts = [], MatchCounts(fatal=str(error))
    files = [*count_files(refs, spec)]
    return write_manifest(files, counts, spec)


def count_files(refs: Sequence[InputRef], spec: CountSpec) -> Iterator[CountedFile]:
    """Yield the counts of files; read them in several processes if they are large."""
    current_progress = progress.current()
    current_progress.extend("counting", sum(ref.size for ref in refs))
    count = functools.partial(count_ref, check=spec.check)
    if spec.check == "index":  # waits for the storage more than for the processor
        counts: Iterable[tuple[InputRef, FileCount]] = zip(
            refs, map_ordered(count, refs, _CONCURRENT_OPENS), strict=True
        )
    else:
        counts = run_all(count, refs, spec.processes, _cost)
    for ref, counted in counts:
        current_progress.add(ref.size, counted.fault is not None)
        yield CountedFile(ref, counted)


def _cost(ref: InputRef) -> int:
    """Return the work of reading a file: what decides is in it, but its name costs no request."""
    if ref.key.endswith(".gz"):
        return ref.size * INFLATE_COST
    return ref.size


def count_ref(ref: InputRef, check: Check) -> FileCount:
    """Return the count of a matched file; of one that was rejected while matching, its error."""
    if ref.error:
        return FileCount(0, ref.size, fault=FileFault(ref.error, 0, 0, ref.message))
    return count_file(ref.uri, check, version=ref.version, size=ref.size)


def write_manifest(files: Sequence[CountedFile], counts: MatchCounts, spec: CountSpec) -> Manifest:
    """Return the manifest of counted files, and write it if the spec names a path.

    Raises:
        OutputError: The input is unusable, or has no TFRecord files.
    """
    if counts.fatal:
        raise OutputError(counts.fatal)
    if not files:
        others = ""
        if counts.skipped:
            others = f", only {counts.skipped:,} of other formats by their names"
        raise OutputError(
            f"There are no TFRecord files in {spec.root}{others}: name them in --input."
        )
    manifest = make_manifest(spec, files, counts, _read_splits(spec.root))
    if spec.manifest:
        end_if_orphaned()
        open_storage(spec.manifest).replace(spec.manifest, manifest.to_json().encode())
    return manifest


def _read_splits(root: str) -> dict[str, str]:
    """Map files to splits by the dataset's own manifest, if it has one."""
    path = join(root, MANIFEST)
    try:
        manifest = Manifest.from_json(read_dataset_file(path))
    except (FileNotFoundError, FormatError, DeniedError):
        return {}
    if manifest.root:  # a manifest of a count: its splits are guessed from names too
        return {}
    return {s.file: name for name, split in manifest.splits.items() for s in split.shards}


class CountedFile(NamedTuple):
    """A matched file and its count."""

    ref: InputRef
    result: FileCount


@dataclass(frozen=True)
class CountSpec:
    """The parameters of ``CountRecords``.

    Attributes:
        root: Folder that the keys of files are relative to.
        check: How much of each file is read.
        manifest: Path of the manifest to write; empty for none.
        processes: Number of processes that read at the same time on one worker.
        runner: Name of the runner.
    """

    root: str
    check: Check = "records"
    manifest: str = ""
    processes: int = 1
    runner: str = ""

    @property
    def config_id(self) -> str:
        """Identity of the options that affect the counts, as 16 hexadecimal digits."""
        text = f"{COUNT_PIPELINE} {self.check}"
        return hashlib.blake2b(text.encode(), digest_size=8, person=b"shardmill-conf").hexdigest()


def mark_empty(files: Iterable[CountedFile]) -> list[CountedFile]:
    """Return the files sorted by key; empty files are damaged if other files have records."""
    ordered = sorted(files, key=lambda file: file.ref.key.encode())
    if not any(file.result.records for file in ordered):
        return ordered
    fault = FileFault("empty", 0, 0, "it is empty, and other files have records: copy it again")
    for index, file in enumerate(ordered):
        if file.result.fault is None and not file.result.num_bytes:
            ordered[index] = file._replace(result=file.result._replace(fault=fault, crc32c=""))
    return ordered


def make_manifest(
    spec: CountSpec,
    files: Iterable[CountedFile],
    counts: MatchCounts,
    listed_splits: Mapping[str, str],
) -> Manifest:
    """Return the manifest of counted files.

    Args:
        spec: The parameters of the count.
        files: The files, in any order.
        counts: Numbers of matched files that were not read.
        listed_splits: Split of each file that the dataset's own manifest lists.
    """
    ordered = mark_empty(files)
    intact = [file for file in ordered if file.result.fault is None]
    damaged = tuple(_damaged(file, file.result.fault) for file in ordered if file.result.fault)
    splits = dict(_splits(intact, listed_splits))
    compressions = {file.result.compression for file in intact if file.result.num_bytes}
    compression = "mixed" if len(compressions) > 1 else next(iter(compressions), "none")
    return Manifest(
        splits=splits,
        written=sum(split.num_examples for split in splits.values()),
        compression=compression,
        inputs=Inputs(
            root=spec.root,
            matched=len(ordered) + counts.skipped + counts.duplicates,
            accepted=len(intact),
            rejected=len(damaged),
            skipped=counts.skipped,
            duplicates=counts.duplicates,
            rejected_by_reason=dict(sorted(Counter(file.reason for file in damaged).items())),
        ),
        build=Build(
            config_id=spec.config_id,
            input_id=f"{sum(file.ref.digest() for file in ordered) % (1 << 128):032x}",
            config={"pipeline": COUNT_PIPELINE, "check": spec.check},
            versions={"shardmill": version("shardmill")},
            runner=spec.runner,
            finished=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        ),
        warnings=tuple(_warnings(ordered)),
        root=spec.root,
        damaged=damaged,
    )


def _damaged(file: CountedFile, fault: FileFault) -> Damaged:
    size = file.result.num_bytes or file.ref.size
    return Damaged(file.ref.key, size, fault.reason, fault.record, fault.offset, str(fault))


def _splits(
    files: Sequence[CountedFile], listed_splits: Mapping[str, str]
) -> Iterator[tuple[str, Split]]:
    by_split: dict[str, list[CountedFile]] = {}
    for file in files:
        name = listed_splits.get(file.ref.key) or split_of(file.ref.key) or ALL
        by_split.setdefault(name, []).append(file)
    for name in sorted(by_split, key=split_order):
        counts = ((file.ref.key, file.result) for file in by_split[name])
        shards = tuple(Shard(k, c.records, c.num_bytes, c.crc32c or None) for k, c in counts)
        records = sum(shard.records for shard in shards)
        yield name, Split(records, sum(shard.bytes for shard in shards), {}, shards)


def _warnings(files: Sequence[CountedFile]) -> Iterator[str]:
    for file in files:
        count = file.result
        yield from (f"{file.ref.key}: {warning}" for warning in count.warnings)
        stated = stated_records(file.ref.key)
        if count.fault is None and stated is not None and stated != count.records:
            yield f"{file.ref.key}: the name says {stated:,} records, it has {count.records:,}"
    yield from missing_shards(file.ref.key for file in files)
    names = (name for file in files for name in file.ref.key.split("/"))
    versions = {*filter(is_generation, names)}
    if versions:
        yield (
            f"the files of {plural(len(versions), 'version')} of datasets were counted "
            f"({min(versions)}): "
            "give the folder of one dataset to count its current version"
        )
    if files and not any(file.result.num_bytes for file in files):
        yield "all files are empty"
