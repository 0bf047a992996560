"""CountRecords: count the records of TFRecord files into one manifest."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton

import shardmill.transforms.build.coders  # noqa: F401 - registers the coders
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.shard_names import MANIFEST
from shardmill.schemas.errors import DeniedError, FormatError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.storage import join, open_storage
from shardmill.schemas.tfrecord.range_scan import RangeCount, scan_range
from shardmill.schemas.tfrecord.ranges import Check, FileRanges, Range, find_ranges
from shardmill.schemas.tfrecord.reader import join_ranges
from shardmill.schemas.tfrecord.scanner import FileFault
from shardmill.transforms.build.outcome import Outcome
from shardmill.transforms.count.manifest import CountedFile, CountSpec, make_manifest
from shardmill.transforms.match.counts import DUPLICATE, MatchCounts
from shardmill.transforms.match.transform import MatchedInputs, find_inputs, sum_match_counts
from shardmill.transforms.runtime import metrics, progress
from shardmill.transforms.runtime.map_do_fn import MapOrdered
from shardmill.transforms.runtime.process_pool import WORTH_PROCESSES, run_all

_RANGE_BYTES = {"records": 64 << 20, "index": 1 << 30}  # per check; "index" skips payloads
_MAX_BATCH = 10_000  # ranges of a bundle that are scanned together
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
        batch = _MAX_BATCH if spec.processes > 1 else 1
        refs, repeated = (
            matched.refs
            | "KeyFiles"
            >> beam.Map(lambda ref: (ref.key, ref)).with_output_types(tuple[str, InputRef])
            | "GroupByKey" >> beam.GroupByKey()
            | "DropDuplicates" >> find_inputs(_drop_duplicates)
        )
        inspected = refs | "InspectFiles" >> beam.ParDo(
            MapOrdered(_inspect_file, _CONCURRENT_OPENS), spec.check
        )
        scanned = (
            inspected
            | "CutRanges" >> beam.FlatMap(_cut_ranges)
            | "SpreadRanges" >> beam.Reshuffle()
            | "BatchRanges" >> beam.BatchElements(batch, batch)
            | "ScanRanges" >> beam.FlatMap(_scan_ranges, spec)
        )
        files = (
            {"found": inspected, "counts": scanned}
            | "GroupByFile" >> beam.CoGroupByKey()
            | "JoinRanges" >> beam.MapTuple(lambda _, sides: _join_ranges(sides, spec.check))
        )
        counts = sum_match_counts([matched.counts, repeated])
        return (
            refs.pipeline
            | "Start" >> beam.Create([0])
            | "WriteManifest" >> beam.Map(_write_manifest, AsList(files), AsSingleton(counts), spec)
        )


def _drop_duplicates(entry: tuple[str, Iterable[InputRef]]) -> Iterator[InputRef | MatchCounts]:
    """Yield one reference of a key, and a count for each other."""
    first, *others = sorted(entry[1], key=lambda ref: (bool(ref.error), ref))
    yield first
    yield from [DUPLICATE] * len(others)


def _cut_ranges(element: tuple[str, tuple[InputRef, FileRanges]]) -> Iterator[tuple[str, Range]]:
    key, (_, file) = element
    for part in file.ranges:
        yield key, part


def _inspect_file(ref: InputRef, check: Check) -> Iterator[tuple[str, tuple[InputRef, FileRanges]]]:
    """Yield the ranges of a file; none if it was rejected while matching."""
    if ref.error:
        found = FileRanges(ref.size, fault=FileFault(ref.error, 0, 0, ref.message))
    else:
        found = find_ranges(ref.uri, ref.version, check, _RANGE_BYTES[check])
    progress.current().extend("counting", sum(part.end - part.start for part in found.ranges))
    yield ref.key, (ref, found)


def _scan_ranges(
    batch: list[tuple[str, Range]], spec: CountSpec
) -> Iterator[tuple[str, RangeCount]]:
    """Yield the counts of ranges; scan them in several processes if they are large."""
    tasks = sorted(batch, key=lambda task: (-task[1].cost, task))
    is_large = sum(part.cost for _, part in tasks) >= WORTH_PROCESSES
    keys = {part: key for key, part in tasks}
    scan = functools.partial(scan_range, check=spec.check)
    for part, scanned in run_all(scan, list(keys), spec.processes if is_large else 1):
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
    if counts.fatal:
        return Outcome("failed", counts.fatal)
    if not files:
        others = (
            f", only {counts.skipped:,} of other formats by their names" if counts.skipped else ""
        )
        return Outcome(
            "failed", f"There are no TFRecord files in {spec.root}{others}: name them in --input."
        )
    manifest = make_manifest(spec, files, counts, _known_splits(spec.root))
    text = manifest.to_json()
    if spec.manifest:
        open_storage(spec.manifest).replace(spec.manifest, text.encode())
    return Outcome("published", "", matched=manifest.inputs.matched, manifest=text)


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
