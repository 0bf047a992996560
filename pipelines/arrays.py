"""The arrays pipeline: NumPy arrays become a published TFRecord dataset.

Run it as ``shardmill arrays``, or use ``build_arrays(root, config)`` in a custom pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from shardmill.pipelines.arrays_config import ArraysConfig
from shardmill.pipelines.build_config import config_id
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.runtime.process_pool import usable_cores
from shardmill.transforms.sink.encoder import Block
from shardmill.transforms.sink.estimate import BuildSample, add_estimate
from shardmill.transforms.sink.outcome import Outcome, RaiseIfFailed
from shardmill.transforms.sink.planning import count_parts
from shardmill.transforms.sources.arrays.array_source import ArraySource
from shardmill.transforms.sources.arrays.encoder import ArrayEncoder, ArraysHooks
from shardmill.transforms.sources.arrays.labels import MAX_TEXTS
from shardmill.transforms.sources.arrays.resolve_input import InputArrays, resolve_input
from shardmill.transforms.sources.arrays.transform import ArraysSpec, WriteArrays
from shardmill.transforms.tables.planning import RowsSpec
from shardmill.transforms.tables.run_writer import encode_blocks
from shardmill.transforms.tables.table import place_batch
from shardmill.transforms.tables.table_source import MAX_LABELS, TableSpec

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
    encoder = ArrayEncoder(found.arrays, found.label)
    texts = bool(found.label and found.label.texts)
    sink = config.sink_spec(
        config_id("arrays", encoder.versions(), config.identity()), found.root,
        config=config.identity(), runner=runner, command=config.command("arrays"),
        hooks=ArraysHooks(text_labels=texts),
    )  # fmt: skip
    counted, limit = "", MAX_LABELS
    if found.label:
        counted, limit = (
            (found.label.text_name, MAX_TEXTS) if texts else (found.label.name, MAX_LABELS)
        )
    table = TableSpec((), config.place_spec, counted, max_labels=limit)
    source = ArraySource(table, found.arrays, found.label, found.rows)
    threads = config.threads or usable_cores()
    rows = RowsSpec(sink, source, encoder.versions(), 1, 1, threads)
    parts = tuple(_count_parts(config, found))
    return ArraysSpec(rows, encoder, found.key, found.files, parts, found.warnings)


def _count_parts(config: ArraysConfig, found: InputArrays) -> Iterator[tuple[str, int]]:
    """Yield the splits that have a share, and the number of their parts."""
    for name, share in config.place_spec.splits.shares:
        rows = share * found.rows
        size, spec = rows * found.row_bytes, config.shard_spec
        if share:
            yield name, count_parts(rows, size, spec, part_refs=None, max_parts=_MAX_PARTS)


def outcomes(
    root: beam.Pipeline | beam.pvalue.PBegin, spec: ArraysSpec
) -> beam.PCollection[Outcome]:
    """Wire the pipeline; it emits one ``Outcome``, also for failures that a retry cannot fix."""
    outcome = root | "WriteArrays" >> WriteArrays(spec)
    if not spec.sink.dry_run:
        return outcome
    return outcome | "Estimate" >> beam.Map(add_estimate, spec.sink.shards, take_sample, spec)


def take_sample(_: Outcome, spec: ArraysSpec) -> BuildSample:
    """Return the first rows of a build as a sample of it.

    Args:
        _: The outcome of the dry run.
        spec: Arrays, encoding and output.
    """

    def encode() -> Iterator[Block]:
        batch = next(spec.source.read(next(spec.source.units(spec.input))))
        return encode_blocks(place_batch(spec.source.table, batch))

    packing: Packing = "deflated" if spec.sink.compression == "gzip" else "none"
    return BuildSample(encode, spec.source.num_rows, packing)


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
