"""The rows pipeline: CSV files become a published TFRecord dataset.

Run it as ``shardmill rows`` or ``python -m shardmill.pipelines.rows``, or put
``build(root, config)`` into a pipeline of your own.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

import apache_beam as beam
import deflate

from shardmill.pipelines.build_config import config_id
from shardmill.pipelines.rows_config import RowsConfig, check_named
from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.transforms.build.census import Census, why_unusable
from shardmill.transforms.build.outcome import Outcome, RaiseIfFailed
from shardmill.transforms.build.placement import REJECTED, Series
from shardmill.transforms.build.planning import parse_bytes
from shardmill.transforms.build.spec import SinkSpec
from shardmill.transforms.match.counts import MatchCounts
from shardmill.transforms.match.transform import (
    MatchFiles,
    MatchSpec,
    absolute,
    find_input,
    match_now,
)
from shardmill.transforms.rows.encoder import RowsHooks
from shardmill.transforms.rows.planning import TABLE, RowsPlanSpec
from shardmill.transforms.rows.probe import format_names, missing_columns
from shardmill.transforms.rows.runs.run_writer import RunSpec
from shardmill.transforms.rows.table import TableSpec
from shardmill.transforms.rows.tft.preprocessing import Preprocessing, load_preprocessing
from shardmill.transforms.rows.transform import RowsSpec, WriteRows
from shardmill.transforms.rows.types.sample import MIN_FILE_BYTES, Sample, sample_files
from shardmill.transforms.runtime.process_pool import usable_cores

_TRANSFORM = ("tensorflow", "tensorflow-transform")
ROWS_VERSION = "1"  # of how cells become values, and values bytes
_ENTRY_BYTES = 14  # of a feature's framing in a record, beside its name and value


@dataclass(frozen=True)
class RowsJob:
    """A config whose input and output were looked at.

    Attributes:
        config: The config.
        match: Where the files are.
        spec: What is written, where, and how.
    """

    config: RowsConfig
    match: MatchSpec
    spec: RowsSpec

    @property
    def sink(self) -> SinkSpec:
        """What is written, and where."""
        return self.spec.sink


def resolve(config: RowsConfig, *, runner: str = "") -> RowsJob:
    """Returns the job of a config; finds the input, and reads or infers the schema.

    Args:
        config: The options.
        runner: Name of the runner, for the manifest.

    Raises:
        ShardmillError: The input is missing or unusable, or an option breaks a rule.
    """
    output = absolute(config.output)
    match = find_input(
        config.input, config.root, follow_links=config.follow_links, exclude=output, wanted="rows"
    )
    given = config.read_schema()
    preprocessing = load_preprocessing(config.preprocessing) if config.preprocessing else None
    refs, counts = match_now(match)
    sample = _sample(config, refs, counts, given)
    columns = given or sample.infer(config.label, {config.split_by})
    check_named(config, columns, sample.columns)
    _check_learning(config, preprocessing)
    schema = format_schema(columns)
    versions = _versions(preprocessing)
    options = config.identity_of(schema, preprocessing.digest if preprocessing else "")
    sink = replace(
        config.sink_spec(config_id("rows", versions, options), match.root),
        config={name: value for name, value in options.items() if name != "schema"},
        runner=runner,
        hooks=RowsHooks(
            _has_text_labels(config, columns) and preprocessing is None, preprocessing is not None
        ),
    )
    table = TableSpec(
        columns, config.place_spec, config.nulls, config.label, config.key, config.group_by,
        config.split_by,
    )  # fmt: skip
    runs = RunSpec(table, config.dialect, sink.config_id, sink.build, versions)
    plan = RowsPlanSpec(
        sink,
        growth=_growth(columns, sample),
        row_bytes=sample.row_bytes,
        named_by_rows=bool(config.split_by),
        warnings=tuple(_warnings(config, columns, sample)),
    )
    threads = config.threads or usable_cores()
    learning = None if config.dry_run else preprocessing  # an analysis writes to the output
    return RowsJob(config, match, RowsSpec(sink, runs, plan, threads, learning))


def outcomes(root: beam.Pipeline | beam.pvalue.PBegin, job: RowsJob) -> beam.PCollection[Outcome]:
    """Wires the pipeline; gives one ``Outcome``, a failure that no retry would mend included."""
    return root | "MatchFiles" >> MatchFiles(job.match) | "WriteRows" >> WriteRows(job.spec)


def build(
    root: beam.Pipeline | beam.pvalue.PBegin, config: RowsConfig
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


def _sample(
    config: RowsConfig, refs: Sequence[InputRef], counts: MatchCounts,
    given: Sequence[Column] | None,
) -> Sample:  # fmt: skip
    """Looks at the beginnings of files; at one alone where the schema is given and fits it.

    Raises:
        InputError: No file can be read as rows, or none has the columns of the schema.
    """
    usable = [ref for ref in refs if not ref.error]
    if given is not None:
        sample = sample_files(usable[:1], config.dialect, config.nulls, MIN_FILE_BYTES)
        if sample.columns and not missing_columns(given, sample.columns):
            return sample
    size = parse_bytes(config.sample_bytes, "sample_bytes") if given is None else MIN_FILE_BYTES
    sample = sample_files(refs, config.dialect, config.nulls, size)
    if sample.columns and given is not None:
        return _fitting(config, given, sample)
    if sample.rows:
        return sample
    raise InputError(_why_no_rows(config, sample, counts, {ref.key for ref in usable}))


def _fitting(config: RowsConfig, given: Sequence[Column], sample: Sample) -> Sample:
    """Returns a sample whose columns are those of the files that fit a schema.

    Raises:
        InputError: None does.
    """
    for columns in sample.layouts:
        if not missing_columns(given, columns):
            return replace(sample, columns=columns, profiles=())
    columns = sample.layouts[0]
    raise InputError(
        f"No file of --input={config.input} has the columns of --schema={config.schema}: "
        f"{'most have' if len(sample.layouts) > 1 else 'it has'} no column "
        f"{format_names(missing_columns(given, columns))}, only {format_names(columns)}; change "
        "one of them, or make such columns optional in the schema."
    )


def _why_no_rows(
    config: RowsConfig, sample: Sample, counts: MatchCounts, looked: Container[str]
) -> str:
    """Returns why there is nothing to work on.

    Args:
        config: The options.
        sample: What was found.
        counts: Matched files that are not inputs.
        looked: Keys of the files that were opened.
    """
    if sample.problem:
        return (
            f"No row of --input={config.input} can be read: {sample.problem}; check --input, "
            "--delimiter and --quote."
        )
    census = Census()
    for ref in sample.refs:
        census.add(ref, REJECTED if ref.error else Series("rows", ""))
    problem = why_unusable(census.with_counts(counts), TABLE, config.input)
    if not problem:
        names = (
            f", only {format_names(sample.columns)} as names of columns" if sample.columns else ""
        )
        return (
            f"--input={config.input} holds no rows{names}: check --input, --header and "
            "--skip_lines."
        )
    refused = sorted(ref for ref in sample.refs if ref.error and ref.key in looked)
    if not refused or census.fatal:
        return problem
    first = refused[0]
    return f"None of the {census.refs:,} inputs can be used: {first.key}, {first.message}."


def _check_learning(config: RowsConfig, preprocessing: Preprocessing | None) -> None:
    if preprocessing is None or config.split_by or config.splits == "directory":
        return
    if "train" not in [name for name, share in config.place_spec.splits.shares if share]:
        raise UsageError(
            f"--preprocessing learns from the split train, which --splits={config.splits} lacks: "
            "add it."
        )


def _versions(preprocessing: Preprocessing | None) -> dict[str, str]:
    found = {"rows": ROWS_VERSION, "deflate": deflate.__version__}
    if preprocessing is None:
        return found
    try:
        return {**found, **{name: version(name) for name in _TRANSFORM}}
    except PackageNotFoundError as error:
        raise UsageError(
            "--preprocessing needs TensorFlow Transform: pip install 'shardmill[tft]'."
        ) from error


def _has_text_labels(config: RowsConfig, columns: Sequence[Column]) -> bool:
    return any(column.name == config.label and column.kind == "bytes" for column in columns)


def _growth(columns: Sequence[Column], sample: Sample) -> float:
    """Returns how many bytes of records one byte of text becomes, about."""
    framing = sum(len(column.name.encode()) + _ENTRY_BYTES for column in columns)
    return (framing + sample.row_bytes) / sample.row_bytes


def _warnings(config: RowsConfig, columns: Sequence[Column], sample: Sample) -> list[str]:
    known = {column.name for column in columns} | {config.split_by}
    left = [name for name in sample.columns if name not in known]
    if not left:
        return []
    return [f"columns that the schema does not name were left out: {', '.join(left)}"]


if __name__ == "__main__":
    import sys

    from shardmill.pipelines.cli import main

    sys.exit(main(["rows", *sys.argv[1:]]))
