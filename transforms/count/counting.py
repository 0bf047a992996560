"""Count the records of TFRecord files: functions of each step, and ``count_now`` without Beam."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.shard_names import MANIFEST
from shardmill.schemas.errors import DeniedError, FormatError, OutputError, ShardmillError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.storage import join, open_storage
from shardmill.schemas.tfrecord.range_scan import RangeCount, scan_range
from shardmill.schemas.tfrecord.ranges import Check, FileRanges, Range, find_ranges
from shardmill.schemas.tfrecord.reader import join_ranges
from shardmill.schemas.tfrecord.scanner import FileFault
from shardmill.transforms.count.manifest import CountedFile, CountSpec, make_manifest
from shardmill.transforms.match.counts import MatchCounts, keep_first, sum_counts
from shardmill.transforms.match.inputs import MatchSpec, match_now
from shardmill.transforms.runtime import progress
from shardmill.transforms.runtime.map_ordered import map_ordered
from shardmill.transforms.runtime.process_pool import WORTH_PROCESSES, run_all

CONCURRENT_OPENS = 16
_RANGE_BYTES = {"records": 64 << 20, "index": 1 << 30}  # per check; "index" skips payloads


def count_now(matches: Iterable[MatchSpec], spec: CountSpec) -> Manifest:
    """Count files in this process and its children, as ``CountRecords`` does on any runner.

    Args:
        matches: Which files to match.
        spec: The check, and the path of the manifest.

    Raises:
        ShardmillError: The input is unusable, or a storage failed.
    """
    refs: dict[str, list[InputRef]] = defaultdict(list)
    counts: list[MatchCounts] = []
    for match in matches:
        try:
            found, skipped = match_now(match)
        except ShardmillError as error:
            found, skipped = [], MatchCounts(fatal=error.coded)
        counts.append(skipped)
        for ref in found:
            refs[ref.key].append(ref)
    once: list[InputRef] = []
    for entry in refs.items():
        for each in drop_duplicates(entry):
            once.append(each) if isinstance(each, InputRef) else counts.append(each)
    ranges = [*map_ordered(lambda ref: inspect_file(ref, spec.check), once, CONCURRENT_OPENS)]
    tasks = [(ref.key, extent) for ref, file in ranges for extent in file.ranges]
    scanned: dict[str, list[RangeCount]] = defaultdict(list)
    for key, count in scan_ranges(tasks, spec):
        scanned[key].append(count)
    files = [
        CountedFile(ref, join_ranges(file, scanned[ref.key], spec.check)) for ref, file in ranges
    ]
    return write_manifest(files, sum_counts(counts), spec)


def drop_duplicates(entry: tuple[str, Iterable[InputRef]]) -> Iterator[InputRef | MatchCounts]:
    """Return one reference of a key, and a count for each other."""
    return keep_first(sorted(entry[1], key=lambda ref: (bool(ref.error), ref)))


def inspect_file(ref: InputRef, check: Check) -> tuple[InputRef, FileRanges]:
    """Return a file with its ranges; without any if it was rejected while matching."""
    if ref.error:
        found = FileRanges(ref.size, fault=FileFault(ref.error, 0, 0, ref.message))
    else:
        found = find_ranges(ref.uri, ref.version, check, _RANGE_BYTES[check])
    progress.current().extend("counting", sum(extent.end - extent.start for extent in found.ranges))
    return ref, found


def scan_ranges(
    batch: Sequence[tuple[str, Range]], spec: CountSpec
) -> Iterator[tuple[str, RangeCount]]:
    """Yield the counts of ranges; scan them in several processes if they are large."""
    tasks = sorted(batch, key=lambda task: (-task[1].cost, task))
    is_large = sum(extent.cost for _, extent in tasks) >= WORTH_PROCESSES
    keys = {extent: key for key, extent in tasks}
    scan = functools.partial(scan_range, check=spec.check)
    for extent, scanned in run_all(scan, list(keys), spec.processes if is_large else 1):
        progress.current().add(scanned.end - scanned.start, scanned.fault is not None)
        yield keys[extent], scanned


def write_manifest(files: Sequence[CountedFile], counts: MatchCounts, spec: CountSpec) -> Manifest:
    """Return the manifest of counted files, and write it if the spec names a path.

    Raises:
        OutputError: The input is unusable, or has no TFRecord files.
    """
    if counts.fatal:
        raise OutputError(counts.fatal)
    if not files:
        others = (
            f", only {counts.skipped:,} of other formats by their names" if counts.skipped else ""
        )
        raise OutputError("count-no-files", root=spec.root, others=others)
    manifest = make_manifest(spec, files, counts, _known_splits(spec.root))
    if spec.manifest:
        open_storage(spec.manifest).replace(spec.manifest, manifest.to_json().encode())
    return manifest


def _known_splits(root: str) -> dict[str, str]:
    """Return the split of each file in the dataset's own manifest; empty if there is none."""
    path = join(root, MANIFEST)
    try:
        manifest = Manifest.from_json(open_storage(path).read(path))
    except (FileNotFoundError, FormatError, DeniedError):
        return {}
    if manifest.root:  # a manifest of a count: its splits are guessed from names too
        return {}
    return {s.file: name for name, split in manifest.splits.items() for s in split.shards}
