"""Tallying: counts of files become a manifest."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import NamedTuple

from shardmill.schemas.dataset.foreign_names import missing_shards, split_of, stated_records
from shardmill.schemas.dataset.manifest import Build, Damaged, Inputs, Manifest, Shard, Split
from shardmill.schemas.refs import InputRef
from shardmill.schemas.tfrecord.ranges import Check
from shardmill.schemas.tfrecord.reader import FileCount
from shardmill.schemas.tfrecord.scanner import FileFault
from shardmill.transforms.match.counts import MatchCounts

PIPELINE = "count"
ALL = "all"  # the split of files whose names tell none
_ORDER = {"train": 0, "validation": 1, "test": 2}


class CountedFile(NamedTuple):
    """A file and what was found in it."""

    ref: InputRef
    result: FileCount


@dataclass(frozen=True)
class CountSpec:
    """What is counted, and where the result goes.

    Attributes:
        root: Folder that the files' names are relative to.
        check: How much of each file is read.
        manifest: Path of the manifest that is written; empty for none.
        processes: How many processes of one worker read side by side.
        runner: Name of the runner.
        invocation: Identity of this run, so that its progress can be watched.
    """

    root: str
    check: Check = "records"
    manifest: str = ""
    processes: int = 1
    runner: str = ""
    invocation: str = ""

    @property
    def config_id(self) -> str:
        """Identity of the options that decide what is counted, as 16 hexadecimal digits."""
        text = f"{PIPELINE} {self.check}"
        return hashlib.blake2b(text.encode(), digest_size=8, person=b"shardmill-conf").hexdigest()


def find_empty(files: Iterable[CountedFile]) -> list[CountedFile]:
    """Returns the files sorted by name, those without bytes marked where others have records."""
    ordered = sorted(files, key=lambda file: file.ref.key.encode())
    if not any(file.result.records for file in ordered):
        return ordered
    fault = FileFault("empty", 0, 0, "it has no bytes where others have records: copy it again")
    return [
        file._replace(result=file.result._replace(fault=fault, crc32c=""))
        if file.result.fault is None and not file.result.num_bytes
        else file
        for file in ordered
    ]


def make_manifest(
    spec: CountSpec, files: Iterable[CountedFile], counts: MatchCounts,
    known: Mapping[str, str],
) -> Manifest:  # fmt: skip
    """Returns the manifest of counted files.

    Args:
        spec: What was counted.
        files: What was found, in any order.
        counts: Matched files that were not read.
        known: Splits that a manifest beside the files tells, by file.
    """
    ordered = find_empty(files)
    sound = [file for file in ordered if file.result.fault is None]
    damaged = tuple(_damaged(file, file.result.fault) for file in ordered if file.result.fault)
    splits = dict(_splits(sound, known))
    packings = {file.result.compression for file in sound if file.result.num_bytes}
    return Manifest(
        splits=splits,
        written=sum(split.num_examples for split in splits.values()),
        compression=packings.pop() if len(packings) == 1 else "mixed" if packings else "none",
        inputs=Inputs(
            root=spec.root,
            matched=len(ordered) + counts.skipped + counts.duplicates,
            accepted=len(sound),
            rejected=len(damaged),
            skipped=counts.skipped,
            duplicates=counts.duplicates,
            rejected_by_reason=dict(sorted(Counter(each.reason for each in damaged).items())),
        ),
        build=Build(
            config_id=spec.config_id,
            input_id=f"{sum(file.ref.digest() for file in ordered) % (1 << 128):032x}",
            config={"pipeline": PIPELINE, "check": spec.check},
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


def _splits(files: Sequence[CountedFile], known: Mapping[str, str]) -> Iterator[tuple[str, Split]]:
    by_split: dict[str, list[CountedFile]] = {}
    for file in files:
        name = known.get(file.ref.key) or split_of(file.ref.key) or ALL
        by_split.setdefault(name, []).append(file)
    for name in sorted(by_split, key=lambda split: (_ORDER.get(split, 9), split)):
        shards = tuple(_shard(file) for file in by_split[name])
        records = sum(shard.records for shard in shards)
        yield name, Split(records, sum(shard.bytes for shard in shards), {}, shards)


def _shard(file: CountedFile) -> Shard:
    count = file.result
    return Shard(file.ref.key, count.records, count.num_bytes, count.crc32c or None)


def _warnings(files: Sequence[CountedFile]) -> Iterator[str]:
    for file in files:
        count = file.result
        yield from (f"{file.ref.key}: {warning}" for warning in count.warnings)
        stated = stated_records(file.ref.key)
        if count.fault is None and stated is not None and stated != count.records:
            yield f"{file.ref.key}: the name says {stated:,} records, it has {count.records:,}"
    yield from missing_shards(file.ref.key for file in files)
    if files and not any(file.result.num_bytes for file in files):
        yield "no file has any bytes"
