"""The arrays pipeline: NumPy arrays become a published TFRecord dataset.

Run it as ``shardmill arrays`` or ``python -m shardmill.pipelines.arrays``, or put
``build(root, config)`` into a pipeline of your own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import apache_beam as beam

from shardmill.pipelines.arrays_config import ArraysConfig
from shardmill.pipelines.build_config import config_id
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.arrays.encoder import ArrayEncoder, ArraysHooks
from shardmill.transforms.arrays.resolve_input import InputArrays, resolve_input
from shardmill.transforms.arrays.row_index import RowPlacement
from shardmill.transforms.arrays.transform import ArraysSpec, WriteArrays
from shardmill.transforms.build.outcome import Outcome, RaiseIfFailed
from shardmill.transforms.build.planning import count_parts
from shardmill.transforms.build.spec import SinkSpec

_MAX_PARTS = 1 << 16


@dataclass(frozen=True)
class ArraysJob:
    """A config whose input was looked at.

    Attributes:
        config: The config.
        spec: What is written, where, and how.
    """

    config: ArraysConfig
    spec: ArraysSpec

    @property
    def sink(self) -> SinkSpec:
        """What is written, and where."""
        return self.spec.sink


def resolve(config: ArraysConfig, *, runner: str = "") -> ArraysJob:
    """Returns the job of a config; reads the headers of all arrays, and all labels.

    Args:
        config: The options.
        runner: Name of the runner, for the manifest.

    Raises:
        ShardmillError: The input is missing or unusable, or an option breaks a rule.
    """
    found = resolve_input(config.query)
    packing: Packing = "deflated" if config.compression == "gzip" else "none"
    encoder = ArrayEncoder(
        found.arrays, found.label, _place_rows(config, found), packing, config.threads
    )
    sink = replace(
        config.sink_spec(config_id("arrays", encoder.versions(), config.identity()), found.root),
        config=config.identity(),
        runner=runner,
        hooks=ArraysHooks(text_labels=bool(found.label and found.label.texts)),
    )
    return ArraysJob(config, ArraysSpec(sink, encoder, found.files, found.warnings))


def _place_rows(config: ArraysConfig, found: InputArrays) -> RowPlacement:
    shares = config.place_spec.splits.shares
    parts = []
    for _, share in shares:
        rows = share * found.rows
        size = rows * found.row_bytes
        count = count_parts(rows, size, config.shard_spec, part_refs=None, max_parts=_MAX_PARTS)
        parts.append(count if share else 0)
    return RowPlacement(found.key, found.rows, config.seed, shares, tuple(parts))


def outcomes(root: beam.Pipeline | beam.pvalue.PBegin, job: ArraysJob) -> beam.PCollection[Outcome]:
    """Wires the pipeline; gives one ``Outcome``, a failure that no retry would mend included."""
    return root | "WriteArrays" >> WriteArrays(job.spec)


def build(
    root: beam.Pipeline | beam.pvalue.PBegin, config: ArraysConfig
) -> beam.PCollection[Outcome]:
    """Wires the pipeline into one of your own; it fails when nothing could be published.

    Args:
        root: A pipeline, or its beginning.
        config: The options.

    Returns:
        One ``Outcome``, once the dataset is published or found up to date.

    Raises:
        ShardmillError: The input is missing or unusable, or an option breaks a rule.
    """
    return outcomes(root, resolve(config)) | "RaiseIfFailed" >> RaiseIfFailed()


if __name__ == "__main__":
    import sys

    from shardmill.pipelines.cli import main

    sys.exit(main(["arrays", *sys.argv[1:]]))
