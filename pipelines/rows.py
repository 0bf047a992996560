"""The rows pipeline: CSV files become a published TFRecord dataset.

Run it as ``shardmill rows``, or use ``build_rows(root, config)`` in a custom pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import apache_beam as beam
import deflate

from shardmill.pipelines.build_config import config_id
from shardmill.pipelines.rows_config import RowsConfig, check_named, check_options
from shardmill.pipelines.split_folders import resolve_splits
from shardmill.schemas.errors import InputError, UsageError, format_names
from shardmill.schemas.errors.catalogue import coded
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import Reject, RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column, check_texts, format_schema
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.match.counts import MatchCounts
from shardmill.transforms.match.inputs import MatchSpec, find_input, match_now
from shardmill.transforms.match.transform import MatchFiles
from shardmill.transforms.runtime.process_pool import usable_cores
from shardmill.transforms.sink.census import Census, why_unusable
from shardmill.transforms.sink.encoder import Block
from shardmill.transforms.sink.estimate import BuildSample, add_estimate
from shardmill.transforms.sink.outcome import Outcome, RaiseIfFailed
from shardmill.transforms.sink.placement import REJECTED, Series
from shardmill.transforms.sink.spec import SinkSpec
from shardmill.transforms.sources.csv.file_source import FileSource
from shardmill.transforms.sources.csv.partitions import partition_columns
from shardmill.transforms.sources.csv.sample import (
    MIN_FILE_BYTES,
    Sample,
    missing_columns,
    sample_file,
    sample_files,
    sample_size,
)
from shardmill.transforms.sources.csv.source import CsvSource
from shardmill.transforms.sources.csv.typed_cells import Nulls
from shardmill.transforms.sources.jsonl.jsonl_source import JsonLinesSource, sample_jsonl
from shardmill.transforms.sources.parquet.parquet_source import (
    ParquetSource,
    measure,
    sample_parquet,
)
from shardmill.transforms.tables.encoder import RowsHooks
from shardmill.transforms.tables.planning import RowsSpec, why_files_lost
from shardmill.transforms.tables.run_writer import encode_blocks
from shardmill.transforms.tables.table import place_batch
from shardmill.transforms.tables.table_source import TableSpec
from shardmill.transforms.tables.tft.preprocessing import Preprocessing, load_preprocessing
from shardmill.transforms.tables.transform import WriteRows

_SAMPLERS: dict[str, Callable[..., Sample]] = {
    "csv": sample_file, "parquet": sample_parquet, "jsonl": sample_jsonl
}  # fmt: skip
_TRANSFORM = ("tensorflow", "tensorflow-transform")
ROWS_VERSION = "2"  # of the conversion from cells to values to bytes
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_SAMPLE_BYTES = 1 << 20  # of text from which a dry run estimates the build
_ENTRY_BYTES = 14  # of a feature in a record, without its name and value


@dataclass(frozen=True)
class RowsJob:
    """A config with its resolved input and output.

    Attributes:
        match: Which files to match.
        spec: What the build writes, where, and how.
        columns: Type and an example of each column, by name, for people.
        sampled: Files of which the largest has the rows for the estimate of a dry run; none with
            preprocessing, which decides the records.
        num_bytes: Size of all files.
    """

    match: MatchSpec
    spec: RowsSpec
    columns: Mapping[str, str]
    sampled: tuple[InputRef, ...]
    num_bytes: int

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
    match = find_input(config.source, config.root, follow_links=config.follow_links, wanted="rows")
    config, notes = (config, ()) if config.split_by else resolve_splits(config, match)
    given = config.read_schema()
    preprocessing = load_preprocessing(config.preprocessing) if config.preprocessing else None
    refs, counts = match_now(match)
    kind = find_kind(config, refs, given)
    partitions = partition_columns(refs, config.nulls) if config.partitions else {}
    sample = _sample(config, refs, counts, _without(given, partitions), kind)
    _check_partitions(partitions, sample)
    # A preprocessing_fn must know what is required before all rows are read.
    strict = sample.complete or preprocessing is not None
    features = (each for each in partitions.values() if each.name != config.split_by)
    columns = given or (*sample.infer(config.label, {config.split_by}, strict=strict), *features)
    check_named(config, columns, (*sample.columns, *partitions))
    _check_train_split(config, preprocessing)
    table = TableSpec(
        columns, config.place_spec, config.label, config.key, config.group_by, config.split_by
    )
    source = _make_source(config, kind, table, sample, given is None, tuple(partitions))
    versions = _versions(preprocessing)
    digest = preprocessing.digest if preprocessing else ""
    options = config.identity_of(format_schema(columns), digest)
    texts = any(column.name == config.label and column.kind == "bytes" for column in columns)
    inexact = given is None and not sample.complete
    identity = {**options, "exact": source.exact} if inexact else options  # rules of no schema
    sink = config.sink_spec(
        config_id("rows", versions, identity), match.root, runner=runner,
        command=config.command("rows"),
        config={name: value for name, value in options.items() if name != "schema"},
        hooks=RowsHooks(
            texts and preprocessing is None, preprocessing is not None, inferred=given is None,
            finds_gaps=given is None and not strict, max_rejected_files=config.max_rejected_files,
            label=config.label,
        ),
        warnings=(*notes, *_warnings(config, columns, sample)),
    )  # fmt: skip
    spec = RowsSpec(
        sink, source, versions, _growth(columns, sample), sample.row_bytes,
        config.threads, config.max_rejected_files,
        preprocessing=None if config.dry_run else preprocessing,  # an analysis writes to the output
    )  # fmt: skip
    described = {column.name: _describe(column, sample) for column in columns}
    sampled, size = () if preprocessing else sample.refs, sum(ref.size for ref in refs)
    return RowsJob(match, spec, described, sampled, size)


def _make_source(
    config: RowsConfig, kind: str, table: TableSpec, sample: Sample, inferred: bool,
    partitions: tuple[str, ...],
) -> Any:  # fmt: skip
    """Return the source of the files of a kind."""
    made: Any = {"parquet": ParquetSource, "jsonl": JsonLinesSource}.get(kind, CsvSource)
    rules = (sample.base, sample.exact(table.columns)) if inferred else ((), ())
    if kind == "csv":  # whose columns have no types
        return made(table, config.dialect, config.nulls, *rules, partitions=partitions)
    # An empty text is a value where a missing one is not written as text.
    nulls = config.nulls if config.null_values is not None else Nulls(texts=frozenset())
    return made(
        table, config.dialect, nulls, *rules, sample.profiles, sample.row_bytes,
        partitions=partitions,
    )  # fmt: skip


def outcomes(root: beam.Pipeline | beam.pvalue.PBegin, job: RowsJob) -> beam.PCollection[Outcome]:
    """Wire the pipeline; it emits one ``Outcome``, also for failures that a retry cannot fix."""
    outcome = root | "MatchFiles" >> MatchFiles(job.match) | "WriteRows" >> WriteRows(job.spec)
    if not (job.sampled and job.sink.dry_run):
        return outcome
    options = job.sink.shards, take_sample, job.spec, job.sampled, job.num_bytes
    return outcome | "Estimate" >> beam.Map(add_estimate, *options)


def take_sample(
    _: Outcome, spec: RowsSpec, files: Sequence[InputRef], num_bytes: int
) -> BuildSample:
    """Return the first rows of the largest file as a sample of a build.

    Args:
        spec: All options of the build.
        files: The files; those with an error cannot be read.
        num_bytes: Size of all files.
    """
    source = cast("FileSource", spec.source)
    file = max(files, key=lambda ref: (not ref.error, ref.size))
    packing: Packing = "deflated" if spec.sink.compression == "gzip" else "none"
    try:
        ratio = source.first_rows(file, _SAMPLE_BYTES)[1]
    except RejectedError as rejected:
        reject = Reject(file.key, file.uri, rejected.stage, rejected.error, rejected.message)
        return BuildSample(lambda: [reject], 1, packing)
    rows = num_bytes * ratio / spec.row_bytes

    def encode() -> Iterator[Block]:
        batch = source.first_rows(file, _SAMPLE_BYTES)[0]
        return encode_blocks(place_batch(spec.table, batch))

    return BuildSample(encode, rows, packing, spec.threads or usable_cores())


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


def first_bytes(
    config: RowsConfig, refs: Sequence[InputRef], given: Sequence[Column] | None
) -> int:
    """Return the number of bytes of each file that are sampled."""
    return sample_size(refs, config.sample_bytes) if given is None else MIN_FILE_BYTES


def find_kind(config: RowsConfig, refs: Sequence[InputRef], given: Sequence[Column] | None) -> str:
    """Return what the files are, by the content of the first one with bytes.

    Raises:
        UsageError: The schema or an option is for files of another kind.
    """
    first = next((ref for ref in refs if not ref.error and ref.size), None)
    error = ""
    if first is not None:
        size = first_bytes(config, refs, given)
        error = sample_file(first, config.dialect, config.nulls, size).ref.error
    kind = error if error in _SAMPLERS else "csv"
    if kind == "csv":
        check_texts(given or (), f"--schema={config.schema}")
    check_options(config, kind)
    return kind


def _sample(
    config: RowsConfig, refs: Sequence[InputRef], counts: MatchCounts,
    given: Sequence[Column] | None, kind: str,
) -> Sample:  # fmt: skip
    """Return a sample of the files' beginnings; of the first file only if it fits a given schema.

    Raises:
        InputError: No file can be read as rows, none has the columns of the schema, or too many
            files are rejected.
    """
    usable = [ref for ref in refs if not ref.error]
    header = config.dialect.header

    def sample_one(ref: InputRef) -> Sample:
        return _SAMPLERS[kind](ref, config.dialect, config.nulls, size)

    needed = [config.label, config.key, config.group_by, config.split_by]
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
            "schema-columns-missing",
            source=config.source,
            schema=config.schema,
            missing=format_names(missing),
            base=format_names(sample.base),
        )
    if given is None and sample.rows:
        problem = why_files_lost(_census(sample), config.max_rejected_files)
        if problem:
            raise InputError(problem)
    if sample.rows or (given is not None and sample.base):
        return measure(sample) if kind == "parquet" else sample
    raise InputError(_explain_no_rows(config, sample, counts, {ref.key for ref in usable}))


def _describe(column: Column, sample: Sample) -> str:
    profile = sample.profiles.get(column.name)
    if profile is None or not profile.example:
        return column.kind
    reason = "not a number" if column.kind == "bytes" and profile.is_text else "such as"
    return f"{column.kind}, {reason}: {profile.example}"


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
        return coded("rows-unreadable", source=config.source, problem=sample.problem)
    census = _census(sample)
    problem = why_unusable(census.with_counts(counts), RowsHooks(), config.source)
    if not problem:
        names = (
            f", only {format_names(sample.columns)} as names of columns" if sample.columns else ""
        )
        return coded("rows-none", source=config.source, names=names)
    rejected = sorted(ref for ref in sample.refs if ref.error and ref.key in opened)
    if not rejected or census.counts.fatal:
        return problem
    first = rejected[0]
    step = RowsHooks().next_step(first.key, "check --input")
    return coded("rows-all-files-rejected", key=first.key, message=first.message, step=step)


def _without(columns: Sequence[Column] | None, names: Container[str]) -> tuple[Column, ...] | None:
    return (
        None if columns is None else tuple(column for column in columns if column.name not in names)
    )


def _check_partitions(partitions: Mapping[str, Column], sample: Sample) -> None:
    twice = sorted(partitions.keys() & sample.profiles.keys())
    if twice:
        raise UsageError("partition-column-twice", name=twice[0])


def _check_train_split(config: RowsConfig, preprocessing: Preprocessing | None) -> None:
    if preprocessing is None or config.split_by or config.shares.mode == "directory":
        return
    if "train" not in [name for name, share in config.place_spec.splits.shares if share]:
        raise UsageError("preprocessing-without-train", splits=config.splits)


def _versions(preprocessing: Preprocessing | None) -> dict[str, str]:
    versions = {"rows": ROWS_VERSION, "deflate": deflate.__version__}
    if preprocessing is None:
        return versions
    try:
        return {**versions, **{name: version(name) for name in _TRANSFORM}}
    except PackageNotFoundError as error:
        raise UsageError("preprocessing-needs-package") from error


def _growth(columns: Sequence[Column], sample: Sample) -> float:
    """Return the expected bytes of records per byte of text."""
    framing = sum(len(column.name.encode()) + _ENTRY_BYTES for column in columns)
    return (framing + sample.row_bytes) / sample.row_bytes


def _warnings(config: RowsConfig, columns: Sequence[Column], sample: Sample) -> list[str]:
    warnings = []
    known = {column.name for column in columns} | {config.split_by}
    omitted = [name for name in sample.columns if name not in known]
    if omitted:
        names = ", ".join(omitted)
        warnings.append(f"columns that the schema does not name were left out: {names}")
    numbers = [name for name in sample.base if _NUMBER.fullmatch(name)]
    if config.dialect.header == "first" and 2 * len(numbers) >= len(sample.base) > 0:
        warnings.append(
            f"{len(numbers)} of {len(sample.base)} columns have numbers as names, such as "
            f"{numbers[0]!r}: set --header=none if the first row is data"
        )
    rounded = [] if config.schema else sample.rounded(columns)
    if rounded:
        warnings.append(
            f"float32 rounds values of {format_names(rounded)}: "
            f"{sample.profiles[rounded[0]].rounding}; make such columns BYTES in a --schema "
            "to keep their texts"
        )
    partial = sorted(known & sample.partial.keys())
    if partial:
        warnings.append(
            f"some files lack the column {format_names(partial)}: their rows have no value there, "
            f"such as those of {sample.partial[partial[0]]}"
        )
    return warnings
