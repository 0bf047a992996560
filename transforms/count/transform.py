"""CountRecords: count the records of TFRecord files into one manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.pvalue import AsList

from shardmill.schemas.errors import OutputError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.tfrecord.range_scan import RangeCount
from shardmill.schemas.tfrecord.ranges import Check, FileRanges, Range
from shardmill.schemas.tfrecord.reader import join_ranges
from shardmill.transforms.count import counting
from shardmill.transforms.count.counting import CountedFile, CountSpec
from shardmill.transforms.match.counts import MatchCounts
from shardmill.transforms.match.transform import MatchedInputs, MergeRepeated
from shardmill.transforms.runtime import metrics
from shardmill.transforms.runtime.map_do_fn import MapOrdered
from shardmill.transforms.sink.outcome import Outcome

_MAX_BATCH = 10_000  # ranges of a bundle that are scanned together


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
        refs, repeated = matched.refs | "DropDuplicates" >> MergeRepeated()
        inspected = refs | "InspectFiles" >> beam.ParDo(
            MapOrdered(
                lambda ref, check: [(ref.key, counting.inspect_file(ref, check))],
                counting.CONCURRENT_OPENS,
            ),
            spec.check,
        )
        scanned = (
            inspected
            | "CutRanges"
            >> beam.FlatMapTuple(lambda key, file: [(key, each) for each in file[1].ranges])
            | "SpreadRanges" >> beam.Reshuffle()
            | "BatchRanges" >> beam.BatchElements(batch, batch)
            | "ScanRanges" >> beam.FlatMap(_scan_ranges, spec)
        )
        files = (
            {"found": inspected, "counts": scanned}
            | "GroupByFile" >> beam.CoGroupByKey()
            | "JoinRanges" >> beam.MapTuple(lambda _, sides: _join_ranges(sides, spec.check))
        )
        counts = (matched.counts, repeated) | "AllCounts" >> beam.Flatten()
        return (
            refs.pipeline
            | "Start" >> beam.Impulse()
            | "WriteManifest"
            >> beam.Map(
                _write_manifest, AsList(files), MatchedInputs(refs, counts).sum_counts(), spec
            )
        )


def _scan_ranges(
    batch: list[tuple[str, Range]], spec: CountSpec
) -> Iterator[tuple[str, RangeCount]]:
    for key, scanned in counting.scan_ranges(batch, spec):
        metrics.RANGES.inc()
        metrics.RECORDS.inc(scanned.records)
        yield key, scanned


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
    _: bytes, files: list[CountedFile], counts: MatchCounts, spec: CountSpec
) -> Outcome:
    try:
        manifest = counting.write_manifest(files, counts, spec)
    except OutputError as error:
        return Outcome("failed", error.coded)
    matched = manifest.inputs.matched
    return Outcome("published", "", matched=matched, manifest=manifest.to_json())
