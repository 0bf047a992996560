"""The rows pipeline: CSV, Parquet and JSON Lines files become a published TFRecord dataset.

Run it as ``shardmill rows``, or use ``build_rows(root, config)`` in a custom pipeline.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import apache_beam as beam

from shardmill.pipelines.build_config import resolve_splits
from shardmill.pipelines.rows_config import RowsConfig, check_named, check_options, codec_versions
from shardmill.pipelines.split_places import why_unused
from shardmill.schemas.errors import InputError, UsageError, format_names
from shardmill.schemas.refs import InputRef, MatchCounts
from shardmill.schemas.schema_pbtxt.columns import Column, check_texts, format_schema
from shardmill.transforms.match.inputs import MatchSpec, match_now
from shardmill.transforms.match.transform import MatchFiles
from shardmill.transforms.publish.generation import config_id
from shardmill.transforms.runtime.beam_steps import RaiseIfFailed
from shardmill.transforms.sink.census import Census, why_unusable
from shardmill.transforms.sink.placement import REJECTED, Series, check_unlabeled
from shardmill.transforms.sink.spec import Outcome, SinkSpec
from shardmill.transforms.sources.csv.arrow_values import PANDAS_INDEX
from shardmill.transforms.sources.csv.sample import (
    MIN_FILE_BYTES,
    Sample,
    missing_columns,
    sample_file,
    sample_files,
    sample_size,
)
from shardmill.transforms.sources.csv.source import CsvSource, partition_columns
from shardmill.transforms.sources.jsonl.jsonl_source import JsonLinesSource, sample_jsonl
from shardmill.transforms.sources.parquet.parquet_source import (
    ParquetSource,
    measure,
    sample_parquet,
)
from shardmill.transforms.tables.encoder import RowsHooks
from shardmill.transforms.tables.table import RowsSpec, why_files_lost
from shardmill.transforms.tables.table_source import TableSpec, without_required
from shardmill.transforms.tables.tft.preprocessing import Preprocessing
from shardmill.transforms.tables.transform import WriteRows

_TRANSFORM = ("tensorflow", "tensorflow-transform")
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_ENTRY_BYTES = 14  # of a feature in a record, without its name and value
_SAMPLERS: dict[str, Callable[..., Sample]] = {
    "csv": sample_file,
    "parquet": sample_parquet,
    "jsonl": sample_jsonl,
}


def first_bytes(
    config: RowsConfig, refs: Sequence[InputRef], given: Sequence[Column] | None
) -> int:
    """Return the number of bytes of each file that are sampled."""
    if given is None:
        return sample_size(refs, config.sample_bytes)
    return MIN_FILE_BYTES


def find_kind(config: RowsConfig, refs: Sequence[InputRef], given: Sequence[Column] | None) -> str:
    """Return what the files are, by the content of the first one with bytes.

    Raises:
        UsageError: The schema or an option is for files of another kind.
    """
    first = next((ref for ref in refs if not ref.error and ref.size), None)
    error = ""
    if first is not None:
        size = first_bytes(config, refs, given)
        error = sample_file(first, config.dialect, config.cell_rules, size).ref.error
    kind = error if error in _SAMPLERS else "csv"
    if kind == "csv":
        check_texts(given or (), f"--schema={config.schema}")
    check_options(config, kind)
    return kind


def sample_input(
    config: RowsConfig,
    refs: Sequence[InputRef],
    counts: MatchCounts,
    given: Sequence[Column] | None,
    kind: str,
) -> Sample:
    """Return a sample of the files' beginnings; of the first file only if it fits a given schema.

    Raises:
        InputError: No file can be read as rows, none has the columns of the schema, or too many
            files are rejected.
    """
    usable = [ref for ref in refs if not ref.error]
    header = config.dialect.header_mode

    def sample_one(ref: InputRef) -> Sample:
        return _SAMPLERS[kind](ref, config.dialect, config.cell_rules, size)

    needed = config.named[bool(config.unlabeled_splits) :]  # without the label
    if given and config.unlabeled_splits:
        given = without_required(given, config.named[0])
    size = first_bytes(config, refs, given)
    if given is not None:
        sample = sample_files(usable[:1], sample_one, (), header)
        if sample.base and not missing_columns(given, sample.base):
            return measure(sample) if kind == "parquet" else sample
        needed = missing_columns(given, ())
    sample = sample_files(refs, sample_one, filter(None, needed), header)
    missing = missing_columns(given or (), sample.base)
    if sample.base and missing:
        raise InputError(
            f"No file of --input={config.source} has the columns of --schema={config.schema}: most "
            f"have no column {format_names(missing)}, only {format_names(sample.base)}; change one "
            "of them, or make such columns optional in the schema."
        )
    if given is None and sample.rows:
        problem = why_files_lost(_census(sample), config.max_rejected_files)
        if problem:
            raise InputError(problem)
    if sample.rows or (given is not None and sample.base):
        if kind == "parquet":
            return measure(sample)
        return sample
    raise InputError(_explain_no_rows(config, sample, counts, {ref.key for ref in usable}))


def _census(sample: Sample) -> Census:
    census = Census()
    for ref in sample.refs:
        census.add(ref, REJECTED if ref.error else Series("rows", ""))
    return census


def _explain_no_rows(
    config: RowsConfig, sample: Sample, counts: MatchCounts, opened: Container[str]
) -> str:
    """Return why no row can be read.

    Args:
        config: The options.
        sample: The sample of all files.
        counts: Matched files that are not inputs.
        opened: Keys of the files that were opened.
    """
    if sample.problem:
        return (
            f"No row of --input={config.source} can be read: {sample.problem}; check --input, "
            "--delimiter and --quote."
        )
    census = _census(sample)
    problem = why_unusable(census.with_counts(counts), RowsHooks(), config.source)
    if not problem:
        if sample.columns:
            names = f", only {format_names(sample.columns)} as names of columns"
        else:
            names = ""
        return (
            f"--input={config.source} has no rows{names}: check --input, --header and --skip_lines."
        )
    rejected = sorted(ref for ref in sample.refs if ref.error and ref.key in opened)
    if not rejected or census.counts.fatal:
        return problem
    first = rejected[0]
    step = RowsHooks().next_step(first.key, "check --input")
    return f"No input can be used: {first.key}, {first.message}; {step}."


@dataclass(frozen=True)
class RowsJob:
    """A config with its resolved input and output.

    Attributes:
        match: Which files to match.
        spec: What the build writes, where, and how.
        columns: Type and an example of each column, by name, for people.
    """

    match: MatchSpec
    spec: RowsSpec
    columns: Mapping[str, str]

    @property
    def sink(self) -> SinkSpec:
        """What the build writes, and where."""
        return self.spec.sink


def resolve(config: RowsConfig, *, runner: str = "") -> RowsJob:
    """Return the job of a config; finds the input, and reads or infers the schema.

    Args:
        config: The options.
        runner: Name of the runner, for the manifest.

    Raises:
        ShardmillError: The input is missing or unusable, or an option breaks a rule.
    """
    match = config.find_inputs(wanted="rows", follow_links=config.follow_links)
    config, notes = (config, ()) if config.split_by else resolve_splits(config, match)
    if not config.split_by:
        check_unlabeled(config.unlabeled_splits, config.shares)
    chosen = config.column_options
    given = config.read_schema()
    preprocessing = config.read_preprocessing()
    refs, counts = match_now(match)
    used = {place for ref in refs for place in config.place_spec.places_of(ref.key)}
    problem = why_unused(config.shares, used, match, config.sources) if refs else ""
    if problem:
        raise UsageError(problem)
    kind = find_kind(config, refs, given)
    partitions = partition_columns(refs, config.cell_rules) if config.partitions else {}
    if config.partitions and not partitions:
        notes = (
            *notes,
            "--partitions had no effect: no file is in a folder named NAME=VALUE below the input",
        )
    in_files = given and tuple(column for column in given if column.name not in partitions)
    sample = sample_input(config, refs, counts, in_files, kind)
    _check_partitions(partitions, sample)
    # A preprocessing_fn must know what is required before all rows are read.
    # Cells of files with types ignore --null_values.
    counts_missing = sample.complete and (kind == "csv" or config.null_values is None)
    strict = preprocessing is not None or counts_missing
    table = config.table(given or _infer(config, sample, partitions, strict=strict))
    check_named(config, table.features, chosen.check([*sample.columns, *partitions]))
    _check_train_split(config, preprocessing)
    typed = {*chosen.typed_columns, *partitions}
    untyped = [column for column in table.columns if column.name not in typed]
    sampled_from = ((), ()) if given else (sample.base, sample.exact(untyped))
    source = _make_source(config, kind, table, sample, sampled_from, tuple(partitions))
    versions = _versions(preprocessing)
    options = config.identity_of(format_schema(table.features), preprocessing)
    identity = {name: value for name, value in options.items() if name != "limit" or value}
    if given is None and not sample.complete:
        identity["exact"] = source.exact_texts  # rules of no schema
    sink = config.sink_spec(
        config_id("rows", versions, identity),
        match.root,
        runner=runner,
        command=config.command("rows"),
        config={name: value for name, value in options.items() if name != "schema"},
        hooks=RowsHooks(
            config.label,
            preprocessing is not None,
            inferred=given is None,
            finds_gaps=given is None and not strict,
            max_rejected_files=config.max_rejected_files,
            label=table.label,
        ),
        warnings=(*notes, *_warnings(config, table.columns, untyped, sample, kind)),
    )
    spec = RowsSpec(
        sink,
        source,
        versions,
        _growth(table.columns, sample),
        sample.row_bytes,
        config.threads,
        config.max_rejected_files,
        preprocessing=None if config.dry_run else preprocessing,  # an analysis writes to the output
        limit=config.limit,
    )
    described = [sample.describe(column, missing=config.dry_run) for column in table.columns]
    columns = dict(zip((column.name for column in table.features), described, strict=True))
    return RowsJob(match, spec, columns)


def _infer(
    config: RowsConfig, sample: Sample, partitions: Mapping[str, Column], *, strict: bool
) -> tuple[Column, ...]:
    """Return the columns that the files and their folders have, without those left out."""
    chosen, (label, *_, split) = config.column_options, config.named
    names = [*sample.columns, *partitions]
    omitted = {name for name in names if not chosen.keeps(name, label)}
    if split:  # a column of a typed file may have an empty name
        omitted.add(split)
    of_folders = (column for name, column in partitions.items() if name not in omitted)
    return (*sample.infer(label, omitted, chosen.typed_columns, strict=strict), *of_folders)


def _make_source(
    config: RowsConfig,
    kind: str,
    table: TableSpec,
    sample: Sample,
    sampled_from: tuple[tuple[str, ...], tuple[str, ...]],
    partitions: tuple[str, ...],
) -> Any:
    """Return the source of the files of a kind."""
    made: Any = {"parquet": ParquetSource, "jsonl": JsonLinesSource}.get(kind, CsvSource)
    rules = config.cell_rules
    if kind == "csv":  # whose columns have no types
        return made(table, config.dialect, rules, *sampled_from, partitions=partitions)
    # An empty text is a value where a missing one is not written as text.
    rules = rules if config.null_values is not None else replace(rules, texts=frozenset())
    return made(
        table,
        config.dialect,
        rules,
        *sampled_from,
        sample.profiles,
        sample.row_bytes,
        partitions=partitions,
    )


def outcomes(root: beam.Pipeline | beam.pvalue.PBegin, job: RowsJob) -> beam.PCollection[Outcome]:
    """Wire the pipeline; it emits one ``Outcome``, also for failures that a retry cannot fix."""
    return root | "MatchFiles" >> MatchFiles(job.match) | "WriteRows" >> WriteRows(job.spec)


def build_rows(
    root: beam.Pipeline | beam.pvalue.PBegin, config: RowsConfig
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


def _check_partitions(partitions: Mapping[str, Column], sample: Sample) -> None:
    twice = sorted(partitions.keys() & sample.profiles.keys())
    if twice:
        raise UsageError(
            f"The column {twice[0]!r} is in the files and in the names of folders: leave "
            "--partitions out, or rename one of them."
        )


def _check_train_split(config: RowsConfig, preprocessing: Preprocessing | None) -> None:
    if preprocessing is None or config.split_by or config.shares.mode == "directory":
        return
    if "train" not in config.place_spec.splits.required:
        raise UsageError(
            "--preprocessing analyzes the split train, which is missing from "
            f"--splits={config.splits}: add it."
        )


def _versions(preprocessing: Preprocessing | None) -> dict[str, str]:
    versions = codec_versions()
    if preprocessing is None:
        return versions
    try:
        return {**versions, **{name: version(name) for name in _TRANSFORM}}
    except PackageNotFoundError as error:
        raise UsageError(
            "--preprocessing needs TensorFlow Transform: pip install 'shardmill[tft]'."
        ) from error


def _growth(columns: Sequence[Column], sample: Sample) -> float:
    """Return the expected bytes of records per byte of text."""
    framing = sum(len(column.name.encode()) + _ENTRY_BYTES for column in columns)
    return (framing + sample.row_bytes) / sample.row_bytes


def _warnings(
    config: RowsConfig,
    columns: Sequence[Column],
    untyped: Sequence[Column],
    sample: Sample,
    kind: str,
) -> list[str]:
    chosen, warnings = config.column_options, []
    column_names = {column.name for column in columns} | {chosen.original(config.split_by)}
    kept = (name for name in sample.columns if chosen.keeps(name, chosen.original(config.label)))
    omitted = [name for name in kept if name not in column_names]
    if omitted:
        names = ", ".join(omitted)
        warnings.append(f"columns that the schema does not name were left out: {names}")
    given = {name: name.rpartition("_")[0] for name in sample.repeated}
    numbers = [name for name in sample.base if _NUMBER.fullmatch(given.get(name, name))]
    over = [name for name in numbers if not sample.profiles[name].is_text]
    has_header = kind == "csv" and config.dialect.header_mode == "first"
    if has_header and (over or 2 * len(numbers) >= len(sample.base) > 0):
        first = (over or numbers)[0]
        above = f" over numbers such as {sample.profiles[over[0]].example}" if over else ""
        warnings.append(
            f"{len(numbers)} of {len(sample.base)} columns have numbers as names, such as "
            f"{given.get(first, first)!r}{above}: set --header=none if the first row is data"
        )
    elif has_header and sample.cells:
        warnings.append(
            f"{len(sample.cells)} of {len(sample.base)} names of columns are also cells below "
            f"them, such as {sample.cells[0]!r}: set --header=none if the first row is data"
        )
    warnings += [] if config.schema else sample.list_findings(untyped)
    if sample.repeated:
        warnings.append(
            f"the header repeats names, and columns became {format_names(sample.repeated)}: "
            "--rename gives them other names, and --header=none reads the first row as data"
        )
    indices = [name for name in sample.columns if name.startswith(PANDAS_INDEX)]
    for name in (*sample.indices, *indices):
        if name in column_names and name not in (*config.named, *chosen.new_names):
            drop, rename = shlex.quote(f"--drop={name}"), shlex.quote(f"--rename={name}:NAME")
            warnings.append(
                f"the column {name!r} has no name in the file and seems to be an index, as pandas "
                f"and R write it: {drop} leaves it out, and {rename} says that it is data"
            )
    if sample.totals:
        warnings.append(
            f"the last row, {sample.totals}, has the sums of those above and no name, or that of a "
            "total: delete it if it is a row of totals, or it is a record"
        )
    rounded = [] if config.schema else sample.rounded(untyped)
    if rounded:
        warnings.append(
            f"float32 rounds values of {format_names(rounded)}: "
            f"{sample.profiles[rounded[0]].rounding}; {sample.keep_texts}"
        )
    column_names -= {chosen.original(config.label)} if config.unlabeled_splits else set()
    partial = sorted(column_names & sample.partial.keys())
    if partial:
        warnings.append(
            f"some files lack the column {format_names(partial)}: their rows have no value there, "
            f"such as those of {sample.partial[partial[0]]}"
        )
    return warnings
