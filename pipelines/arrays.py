"""The arrays pipeline: NumPy arrays become a published TFRecord dataset.

Run it as ``shardmill arrays``, or use ``build_arrays(root, config)`` in a custom pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import apache_beam as beam
import deflate

from shardmill.pipelines.arrays_config import ArraysConfig
from shardmill.transforms.publish.generation import config_id
from shardmill.transforms.runtime.beam_steps import RaiseIfFailed
from shardmill.transforms.sink.placement import count_parts
from shardmill.transforms.sink.spec import Outcome
from shardmill.transforms.sources.arrays.array_source import ArraySource
from shardmill.transforms.sources.arrays.resolve_input import MAX_TEXTS, InputArrays, resolve_input
from shardmill.transforms.tables.encoder import RowsHooks
from shardmill.transforms.tables.table import RowsSpec
from shardmill.transforms.tables.table_source import MAX_LABELS, TableSpec
from shardmill.transforms.tables.transform import WriteRows

ARRAYS_VERSION = "1"  # of the encoding; a change makes new records
_MAX_PARTS = 1 << 16


def resolve(config: ArraysConfig, *, runner: str = "") -> RowsSpec:
    """Return what to write, where, and how; reads the headers of all arrays, and all labels.

    Args:
        config: The options.
        runner: Name of the runner, for the manifest.

    Raises:
        ShardmillError: The input is missing or unusable, or an option breaks a rule.
    """
    arrays = resolve_input(config.query)
    versions = {"arrays": ARRAYS_VERSION, "deflate": deflate.__version__}
    texts = arrays.label.texts if arrays.label else ()
    counted, limit = "", MAX_LABELS
    if arrays.label:
        counted = arrays.label.text_name if texts else arrays.label.name
        limit = MAX_TEXTS if texts else MAX_LABELS
    sink = config.sink_spec(
        config_id("arrays", versions, config.identity()),
        arrays.root,
        config=config.identity(),
        runner=runner,
        command=config.command("arrays"),
        hooks=RowsHooks(max_labels=limit),
        warnings=arrays.warnings,
    )
    table = TableSpec((), config.place_spec, counted, max_labels=limit)
    return RowsSpec(
        sink,
        ArraySource(table, arrays),
        versions,
        1,
        1,
        config.threads,
        parts=tuple(_count_parts(config, arrays)),
        labels=texts,
    )


def _count_parts(config: ArraysConfig, arrays: InputArrays) -> Iterator[tuple[str, int]]:
    """Yield the splits that have a share, and the number of their parts."""
    for name, share in config.place_spec.splits.shares:
        rows = share * arrays.rows
        size, spec = rows * arrays.row_bytes, config.shard_spec
        if share:
            yield name, count_parts(rows, size, spec, part_refs=None, max_parts=_MAX_PARTS)


def outcomes(root: beam.Pipeline | beam.pvalue.PBegin, spec: RowsSpec) -> beam.PCollection[Outcome]:
    """Wire the pipeline; it emits one ``Outcome``, also for failures that a retry cannot fix."""
    files = cast("ArraySource", spec.source).input.files
    return root | "ListFiles" >> beam.Create(files) | "WriteRows" >> WriteRows(spec)


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
