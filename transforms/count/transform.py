"""CountRecords: count the records of TFRecord files into one manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.pvalue import AsList

from shardmill.schemas.errors import OutputError
from shardmill.schemas.refs import InputRef, MatchCounts
from shardmill.transforms.count import counting
from shardmill.transforms.count.counting import CountedFile, CountSpec
from shardmill.transforms.match.transform import MatchedInputs, MergeRepeated
from shardmill.transforms.runtime import metrics
from shardmill.transforms.sink.spec import Outcome

_MAX_BATCH = 10_000  # files of a bundle that are counted together


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
        """Wire the counting of files."""
        spec, matched = self.spec, MatchedInputs.of(inputs)
        batch = _MAX_BATCH if spec.processes > 1 or spec.check == "index" else 1
        refs, repeated = matched.refs | "DropDuplicates" >> MergeRepeated()
        files = (
            refs
            | "SpreadFiles" >> beam.Reshuffle()
            | "BatchFiles" >> beam.BatchElements(batch, batch)
            | "CountFiles" >> beam.FlatMap(_count_files, spec)
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


def _count_files(batch: list[InputRef], spec: CountSpec) -> Iterator[CountedFile]:
    for file in counting.count_files(batch, spec):
        metrics.FILES.inc()
        metrics.RECORDS.inc(file.result.records)
        if file.result.fault is not None:
            metrics.DAMAGED.inc()
        yield file


def _write_manifest(
    _: bytes, files: list[CountedFile], counts: MatchCounts, spec: CountSpec
) -> Outcome:
    try:
        manifest = counting.write_manifest(files, counts, spec)
    except OutputError as error:
        return Outcome("failed", str(error))
    matched = manifest.inputs.matched
    return Outcome("published", "", matched=matched, manifest=manifest.to_json())
