"""The arrays pipeline: NumPy arrays become a published TFRecord dataset.

Run it as ``shardmill arrays``, or use ``build_arrays(root, config)`` in a custom pipeline.
"""

from __future__ import annotations

import apache_beam as beam

from shardmill.pipelines.arrays_config import ArraysConfig
from shardmill.pipelines.build_config import config_id
from shardmill.schemas.refs import ArrayRef
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.sink.estimate import BuildSample, add_estimate
from shardmill.transforms.sink.outcome import Outcome, RaiseIfFailed
from shardmill.transforms.sink.planning import count_parts
from shardmill.transforms.sources.arrays.encoder import ArrayEncoder, ArraysHooks
from shardmill.transforms.sources.arrays.resolve_input import InputArrays, resolve_input
from shardmill.transforms.sources.arrays.row_index import RowPlacement
from shardmill.transforms.sources.arrays.transform import ArraysSpec, WriteArrays

_MAX_PARTS = 1 << 16


def resolve(config: ArraysConfig, *, runner: str = "") -> ArraysSpec:
    """Return what to write, where, and how; reads the headers of all arrays, and all labels.

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
    sink = config.sink_spec(
        config_id("arrays", encoder.versions(), config.identity()), found.root,
        config=config.identity(), runner=runner, command=config.command("arrays"),
        hooks=ArraysHooks(text_labels=bool(found.label and found.label.texts)),
    )  # fmt: skip
    return ArraysSpec(sink, encoder, found.files, found.warnings)


def _place_rows(config: ArraysConfig, found: InputArrays) -> RowPlacement:
    shares = config.place_spec.splits.shares
    parts = []
    for _, share in shares:
        rows = share * found.rows
        size = rows * found.row_bytes
        count = count_parts(rows, size, config.shard_spec, part_refs=None, max_parts=_MAX_PARTS)
        parts.append(count if share else 0)
    return RowPlacement(found.key, found.rows, config.seed, shares, tuple(parts))


def outcomes(
    root: beam.Pipeline | beam.pvalue.PBegin, spec: ArraysSpec
) -> beam.PCollection[Outcome]:
    """Wire the pipeline; it emits one ``Outcome``, also for failures that a retry cannot fix."""
    outcome = root | "WriteArrays" >> WriteArrays(spec)
    if not spec.sink.dry_run:
        return outcome
    return outcome | "Estimate" >> beam.Map(add_estimate, spec.sink.shards, take_sample, spec)


def take_sample(outcome: Outcome, spec: ArraysSpec) -> BuildSample:
    """Return the first part of a build as a sample of it.

    Args:
        outcome: The outcome of the dry run.
        spec: Arrays, encoding and output.
    """
    encoder, place = spec.encoder, spec.encoder.placement
    split, _, _, _, parts = outcome.series[0]
    ref = ArrayRef(place.key, spec.input_id, split, 0, parts)
    return BuildSample(lambda: encoder.encode([ref], outcome.labels), place.rows, encoder.packing)


def build_arrays(
    root: beam.Pipeline | beam.pvalue.PBegin, config: ArraysConfig
) -> beam.PCollection[Outcome]:
    """Wire the pipeline into a custom one, which fails if nothing can be published.

    Args:
        root: A pipeline, or its beginning.
        config: The options.

    Returns:
        One ``Outcome``, when the dataset is published or up to date.

    Raises:
        ShardmillError: The input is missing or unusable, or an option breaks a rule.
    """
    return outcomes(root, resolve(config)) | "RaiseIfFailed" >> RaiseIfFailed()
