"""CountRecords: count the records of TFRecord files into one manifest."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

import shardmill.transforms.build.coders  # noqa: F401 - registers the coders
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.shard_names import MANIFEST
from shardmill.schemas.errors import DeniedError, FormatError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.storage import join, open_storage
from shardmill.schemas.tfrecord.range_scan import RangeCount, scan_range
from shardmill.schemas.tfrecord.ranges import Check, FileRanges, Range, find_ranges
from shardmill.schemas.tfrecord.reader import FileCount, join_ranges
from shardmill.schemas.tfrecord.scanner import FileFault
from shardmill.transforms.build.outcome import Outcome
from shardmill.transforms.count.manifest import CountedFile, CountSpec, make_manifest
from shardmill.transforms.match.counts import Duplicate, MatchCounts
from shardmill.transforms.match.transform import MatchedInputs, find_inputs, sum_match_counts
from shardmill.transforms.runtime import metrics, progress
from shardmill.transforms.runtime.map_do_fn import MapOrdered
from shardmill.transforms.runtime.process_pool import WORTH_PROCESSES, run_all

_RANGE_BYTES = {"records": 64 << 20, "index": 1 << 30}  # per check; "index" skips payloads
_MAX_BUFFERED = 10_000  # elements of a bundle that are processed together
_CONCURRENT_OPENS = 16


@dataclass(eq=False)
class CountRecords(beam.PTransform):
    """Counts the records of TFRecord files: ``MatchFiles(...) | CountRecords(CountSpec(root))``.

    Takes the outputs of ``MatchFiles``, or ``InputRef`` elements, and returns one ``Outcome`` with
    the manifest as text. Damaged files do not fail it: the manifest lists them.

    Args:
        spec: The check, and the path of the manifest.
    """

    spec: CountSpec

    def expand(
        self, inputs: MatchedInputs | beam.PCollection[InputRef]
    ) -> beam.PCollection[Outcome]:
        """Wire the inspection of files, the scan of their ranges and the join of the results."""
        spec, matched = self.spec, MatchedInputs.of(inputs)
        refs, repeated = (
            matched.refs
            | "KeyFiles"
            >> beam.Map(lambda ref: (ref.key, ref)).with_output_types(tuple[str, InputRef])
            | "GroupByKey" >> beam.GroupByKey()
            | "DropDuplicates" >> find_inputs(_drop_duplicates)
        )
        inspected = (
            refs
            | "KeepReadable" >> beam.Filter(lambda ref: not ref.error)
            | "InspectFiles" >> beam.ParDo(MapOrdered(_inspect_file, _CONCURRENT_OPENS), spec.check)
        )
        scanned = (
            inspected
            | "CutRanges" >> beam.FlatMap(_cut_ranges)
            | "SpreadRanges" >> beam.Reshuffle()
            | "ScanRanges" >> beam.ParDo(_ScanRanges(spec.check, spec.processes))
        )
        files = (
            {"found": inspected, "counts": scanned}
            | "GroupByFile" >> beam.CoGroupByKey()
            | "JoinRanges" >> beam.MapTuple(lambda _, sides: _join_ranges(sides, spec.check))
        )
        rejected = (
            refs
            | "KeepRejected" >> beam.Filter(lambda ref: ref.error)
            | "ListRejected" >> beam.Map(_rejected)
        )
        counted = (files, rejected) | "AllFiles" >> beam.Flatten()
        counts = sum_match_counts([matched.counts, repeated])
        return (
            refs.pipeline
            | "Start" >> beam.Create([0])
            | "WriteManifest"
            >> beam.Map(_write_manifest, AsList(counted), AsSingleton(counts), spec)
        )


def _drop_duplicates(entry: tuple[str, Iterable[InputRef]]) -> Iterator[InputRef | Duplicate]:
    """Yield one reference of a key, and a duplicate for each other."""
    key, refs = entry
    first, *others = sorted(refs, key=lambda ref: (bool(ref.error), ref))
    yield first
    for _ in others:
        yield Duplicate(key)


def _rejected(ref: InputRef) -> CountedFile:
    return CountedFile(ref, FileCount(0, ref.size, fault=FileFault(ref.error, 0, 0, ref.message)))


def _cut_ranges(element: tuple[str, tuple[InputRef, FileRanges]]) -> Iterator[tuple[str, Range]]:
    key, (_, file) = element
    for part in file.ranges:
        yield key, part


def _inspect_file(ref: InputRef, check: Check) -> Iterator[tuple[str, tuple[InputRef, FileRanges]]]:
    """Yield the ranges of a file."""
    found = find_ranges(ref.uri, ref.version, check, _RANGE_BYTES[check])
    progress.current().extend("counting", sum(part.end - part.start for part in found.ranges))
    yield ref.key, (ref, found)


class _ScanRanges(beam.DoFn):
    """Scans ranges: one by one, or a bundle at a time in several processes if it is large."""

    def __init__(self, check: Check, processes: int) -> None:
        self._check = check
        self._processes = processes
        self._buffer: list[tuple[str, Range]] = []

    def start_bundle(self) -> None:
        self._buffer = []

    def process(self, element: tuple[str, Range]) -> Iterator[tuple[str, RangeCount]]:
        self._buffer.append(element)
        if len(self._buffer) >= (_MAX_BUFFERED if self._processes > 1 else 1):
            yield from self._scan_all()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for scanned in self._scan_all():
            yield GlobalWindows.windowed_value(scanned)

    def _scan_all(self) -> Iterator[tuple[str, RangeCount]]:
        tasks, self._buffer = sorted(self._buffer, key=lambda item: (-item[1].cost, item)), []
        is_large = sum(part.cost for _, part in tasks) >= WORTH_PROCESSES
        keys = {part: key for key, part in tasks}
        scan = functools.partial(scan_range, check=self._check)
        for part, scanned in run_all(scan, list(keys), self._processes if is_large else 1):
            metrics.RANGES.inc()
            metrics.RECORDS.inc(scanned.records)
            progress.current().add(scanned.end - scanned.start, scanned.fault is not None)
            yield keys[part], scanned


def _join_ranges(
    sides: dict[str, Iterable[tuple[InputRef, FileRanges]] | Iterable[RangeCount]], check: Check
) -> CountedFile:
    ((ref, file),) = sides["found"]  # type: ignore[misc]
    count = join_ranges(file, list(sides["counts"]), check)  # type: ignore[arg-type]
    metrics.FILES.inc()
    if count.fault is not None:
        metrics.DAMAGED.inc()
    return CountedFile(ref, count)


def _write_manifest(
    _: int, files: list[CountedFile], counts: MatchCounts, spec: CountSpec
) -> Outcome:
    outcome = _make_outcome(files, counts, spec)
    if outcome.manifest and spec.manifest:
        open_storage(spec.manifest).replace(spec.manifest, outcome.manifest.encode())
    return outcome


def _make_outcome(files: list[CountedFile], counts: MatchCounts, spec: CountSpec) -> Outcome:
    if counts.fatal:
        return Outcome("failed", counts.fatal)
    if not files:
        others = f", only {counts.skipped:,} of other formats by their names"
        others = others if counts.skipped else ""
        return Outcome(
            "failed", f"There are no TFRecord files in {spec.root}{others}: name them in --input."
        )
    manifest = make_manifest(spec, files, counts, _known_splits(spec.root))
    return Outcome("published", "", matched=manifest.inputs.matched, manifest=manifest.to_json())


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
