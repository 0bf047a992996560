"""The count pipeline: counts the records of TFRecord files of any origin, and writes a manifest.

Run it as ``shardmill count``, or use ``build_count(root, config)`` in a custom pipeline.
"""

from __future__ import annotations

import apache_beam as beam

from shardmill.pipelines.count_config import CountJob, resolve
from shardmill.pipelines.tool_options import CountConfig
from shardmill.transforms.count.transform import CountRecords
from shardmill.transforms.match.transform import MatchFiles
from shardmill.transforms.runtime.beam_steps import RaiseIfFailed
from shardmill.transforms.sink.spec import Outcome


def outcomes(root: beam.Pipeline | beam.pvalue.PBegin, job: CountJob) -> beam.PCollection[Outcome]:
    """Wire the pipeline; it emits one ``Outcome`` with the manifest's text."""
    return root | "MatchFiles" >> MatchFiles(job.match) | "CountRecords" >> CountRecords(job.spec)


def build_count(
    root: beam.Pipeline | beam.pvalue.PBegin, config: CountConfig
) -> beam.PCollection[Outcome]:
    """Wire the pipeline into a custom one.

    Args:
        root: A pipeline, or its beginning.
        config: The options. More than one process needs a main module that can be imported
            (``if __name__ == "__main__":``).

    Returns:
        One ``Outcome`` with the manifest's text, when it is written. Damaged files are listed in
        the manifest and do not fail the pipeline; an input without files does.

    Raises:
        ShardmillError: The input is missing or an option breaks a rule.
    """
    return outcomes(root, resolve(config)) | "RaiseIfFailed" >> RaiseIfFailed()
