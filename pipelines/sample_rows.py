"""Sample the files of a table: what kind they are, and which columns they have."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from shardmill.pipelines.rows_config import RowsConfig, check_options
from shardmill.schemas.errors import InputError, format_names
from shardmill.schemas.errors.catalogue import coded
from shardmill.schemas.refs import InputRef, MatchCounts
from shardmill.schemas.schema_pbtxt.columns import Column, check_texts
from shardmill.transforms.sink.census import Census, why_unusable
from shardmill.transforms.sink.placement import REJECTED, Series
from shardmill.transforms.sources.csv.sample import (
    MIN_FILE_BYTES,
    Sample,
    missing_columns,
    sample_file,
    sample_files,
    sample_size,
)
from shardmill.transforms.sources.jsonl.jsonl_source import sample_jsonl
from shardmill.transforms.sources.parquet.parquet_source import measure, sample_parquet
from shardmill.transforms.tables.encoder import RowsHooks
from shardmill.transforms.tables.planning import why_files_lost
from shardmill.transforms.tables.table_source import without_required

_SAMPLERS: dict[str, Callable[..., Sample]] = {
    "csv": sample_file, "parquet": sample_parquet, "jsonl": sample_jsonl
}  # fmt: skip


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
        error = sample_file(first, config.dialect, config.cell_rules, size).ref.error
    kind = error if error in _SAMPLERS else "csv"
    if kind == "csv":
        check_texts(given or (), f"--schema={config.schema}")
    check_options(config, kind)
    return kind


def sample_input(
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
