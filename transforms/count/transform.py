"""CountRecords: refs to TFRecord files become one manifest of their records."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from shardmill.schemas.storage import join, open_storage, scheme_of
from shardmill.schemas.tfrecord.range_scan import RangeCount, scan_range
from shardmill.schemas.tfrecord.ranges import Check, FileRanges, Range, find_ranges
from shardmill.schemas.tfrecord.reader import FileCount, join_ranges
from shardmill.schemas.tfrecord.scanner import FileFault
from shardmill.transforms.build.outcome import Outcome
from shardmill.transforms.count.manifest import CountedFile, CountSpec, make_manifest
from shardmill.transforms.match.counts import Duplicate, MatchCounts
from shardmill.transforms.match.transform import MatchedInputs, find_inputs, sum_match_counts
from shardmill.transforms.runtime import metrics, progress
from shardmill.transforms.runtime.process_pool import WORTH_PROCESSES, run_all

_HOP_RANGE_BYTES = 1 << 30  # where payloads are skipped
_RANGE_BYTES = 64 << 20
_HELD = 10_000
_REMOTE_LOOKS = 16


@dataclass(eq=False)
class CountRecords(beam.PTransform):
    """Counts the records of TFRecord files: ``MatchFiles(...) | CountRecords(CountSpec(root))``.

    Takes the outputs of ``MatchFiles``, or ``InputRef`` elements, and gives one ``Outcome`` with
    the manifest's text. Damaged files do not fail it: the manifest lists them.

    Args:
        spec: What is counted, and where the manifest goes.
    """

    spec: CountSpec

    def expand(
        self, inputs: MatchedInputs | beam.PCollection[InputRef]
    ) -> beam.PCollection[Outcome]:
        """Wires looking at files, scanning their ranges and joining what was found."""
        spec, matched = self.spec, MatchedInputs.of(inputs)
        refs, repeated = (
            matched.refs
            | "KeyFiles"
            >> beam.Map(lambda ref: (ref.key, ref)).with_output_types(tuple[str, InputRef])
            | "GroupByKey" >> beam.GroupByKey()
            | "DropDuplicates" >> find_inputs(_drop_duplicates)
        )
        found = (
            refs
            | "KeepReadable" >> beam.Filter(lambda ref: not ref.error)
            | "InspectFiles" >> beam.ParDo(_Look(spec.check))
        )
        counts = (
            found
            | "CutRanges" >> beam.FlatMap(_ranges)
            | "SpreadRanges" >> beam.Reshuffle()
            | "ScanRanges" >> beam.ParDo(_Scan(spec.check, spec.processes))
        )
        files = (
            {"found": found, "counts": counts}
            | "GroupByFile" >> beam.CoGroupByKey()
            | "JoinRanges" >> beam.MapTuple(lambda _, sides: _join(sides, spec.check))
        )
        rejected = (
            refs
            | "KeepRejected" >> beam.Filter(lambda ref: ref.error)
            | "ListRejected" >> beam.Map(_rejected)
        )
        results = (files, rejected) | "AllFiles" >> beam.Flatten()
        counts = sum_match_counts([matched.counts, repeated])
        return (
            refs.pipeline
            | "Start" >> beam.Create([0])
            | "WriteManifest" >> beam.Map(_finish, AsList(results), AsSingleton(counts), spec)
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


def _ranges(element: tuple[str, tuple[InputRef, FileRanges]]) -> Iterator[tuple[str, Range]]:
    key, (_, found) = element
    for part in found.ranges:
        yield key, part


class _Look(beam.DoFn):
    """Looks at each file's beginning; at remote ones several at a time."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._range_bytes = _HOP_RANGE_BYTES if check == "index" else _RANGE_BYTES
        self._held: list[InputRef] = []

    def start_bundle(self) -> None:
        self._held = []

    def process(self, ref: InputRef) -> Iterator[tuple[str, tuple[InputRef, FileRanges]]]:
        if not scheme_of(ref.uri):
            yield self._look(ref)
            return
        self._held.append(ref)
        if len(self._held) >= _HELD:
            yield from self._look_all()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for found in self._look_all():
            yield GlobalWindows.windowed_value(found)

    def _look_all(self) -> Iterator[tuple[str, tuple[InputRef, FileRanges]]]:
        held, self._held = self._held, []
        if held:
            with ThreadPoolExecutor(min(_REMOTE_LOOKS, len(held))) as threads:
                yield from threads.map(self._look, held)

    def _look(self, ref: InputRef) -> tuple[str, tuple[InputRef, FileRanges]]:
        found = find_ranges(ref.uri, ref.version, self._check, self._range_bytes)
        size = sum(part.end - part.start for part in found.ranges)
        progress.current().extend("counting", size)
        return ref.key, (ref, found)


class _Scan(beam.DoFn):
    """Scans ranges: each as it comes, or many together in processes where that is worth while."""

    def __init__(self, check: Check, processes: int) -> None:
        self._check = check
        self._processes = processes
        self._held: list[tuple[str, Range]] = []

    def start_bundle(self) -> None:
        self._held = []

    def process(self, element: tuple[str, Range]) -> Iterator[tuple[str, RangeCount]]:
        self._held.append(element)
        if len(self._held) >= (_HELD if self._processes > 1 else 1):
            yield from self._scan_all()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for scanned in self._scan_all():
            yield GlobalWindows.windowed_value(scanned)

    def _scan_all(self) -> Iterator[tuple[str, RangeCount]]:
        held, self._held = sorted(self._held, key=lambda item: (-item[1].cost, item)), []
        worth = sum(part.cost for _, part in held) >= WORTH_PROCESSES
        keys = {part: key for key, part in held}
        scan = functools.partial(scan_range, check=self._check)
        for part, scanned in run_all(scan, list(keys), self._processes if worth else 1):
            metrics.RANGES.inc()
            metrics.RECORDS.inc(scanned.records)
            progress.current().add(scanned.end - scanned.start, scanned.fault is not None)
            yield keys[part], scanned


def _join(
    sides: dict[str, Iterable[tuple[InputRef, FileRanges]] | Iterable[RangeCount]], check: Check
) -> CountedFile:
    ((ref, found),) = sides["found"]  # type: ignore[misc]
    count = join_ranges(found, list(sides["counts"]), check)  # type: ignore[arg-type]
    metrics.FILES.inc()
    if count.fault is not None:
        metrics.DAMAGED.inc()
    return CountedFile(ref, count)


def _finish(_: int, files: list[CountedFile], counts: MatchCounts, spec: CountSpec) -> Outcome:
    outcome = _outcome(files, counts, spec)
    if outcome.manifest and spec.manifest:
        open_storage(spec.manifest).replace(spec.manifest, outcome.manifest.encode())
    return outcome


def _outcome(files: list[CountedFile], counts: MatchCounts, spec: CountSpec) -> Outcome:
    if counts.fatal:
        return Outcome("failed", counts.fatal)
    if not files:
        skipped = counts.skipped
        passed = f", only {skipped:,} whose names say they are other things" if skipped else ""
        return Outcome(
            "failed", f"There are no TFRecord files in {spec.root}{passed}: name them in --input."
        )
    manifest = make_manifest(spec, files, counts, _known_splits(spec.root))
    return Outcome("published", "", matched=manifest.inputs.matched, manifest=manifest.to_json())


def _known_splits(root: str) -> dict[str, str]:
    """Returns the splits of files that a dataset's own manifest tells, if there is one."""
    path = join(root, MANIFEST)
    try:
        manifest = Manifest.from_json(open_storage(path).read(path))
    except (FileNotFoundError, FormatError, DeniedError):
        return {}
    if manifest.root:  # counted, not made: its splits are guesses from names too
        return {}
    return {s.file: name for name, split in manifest.splits.items() for s in split.shards}
