"""Plan the number of parts from the sizes of files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from shardmill.transforms.build.census import Census, input_warnings, why_unusable
from shardmill.transforms.build.make_plan import adjust_plan
from shardmill.transforms.build.placement import REJECTED, Series
from shardmill.transforms.build.planning import Plan, ShardSpec, count_parts
from shardmill.transforms.build.spec import SinkSpec
from shardmill.transforms.rows.row_rejects import describe_lost_files
from shardmill.transforms.rows.runs.run_writer import CsvFile

TABLE = "a table (.csv or .tsv, also .gz, .bz2, .xz, .zst)"
PART_BYTES = 64 << 20  # of uncompressed records; a part is merged in memory
_COMPRESSION_RATIO = 6  # of deflate on rows, with a margin
_REJECT_BYTES = 64 << 20  # of text per part of rejects
_MAX_PARTS = 1 << 16


@dataclass(frozen=True)
class RowsPlanSpec:
    """Facts about rows that planning needs.

    Attributes:
        sink: What is written, and where.
        growth: Estimated bytes of records per byte of text.
        row_bytes: Estimated bytes of text per row.
        named_by_rows: Whether a column names the split of each row.
        max_rejected_files: Largest accepted number of files that are rejected as a whole.
    """

    sink: SinkSpec
    growth: float
    row_bytes: float
    named_by_rows: bool = False
    max_rejected_files: int = 0


def count_file(census: Census, file: CsvFile) -> None:
    """Add an inspected file to a census; its size is that of its text."""
    series = REJECTED if file.ref.error else Series(file.ref.split or "rows", "")
    census.add(file.ref, series, file.text_bytes)


def why_files_lost(census: Census, limit: int) -> str:
    """Return why the matched files are unacceptable if too many are rejected, or an empty text.

    A file without bytes loses no rows and is not counted.
    """
    lost = census.errors - Counter(empty=census.errors["empty"])
    if lost.total() <= limit:
        return ""
    key, message = min(census.examples[error][0] for error in lost)
    return f"{describe_lost_files(lost.total(), limit, key, message)}."


def plan_rows(spec: RowsPlanSpec, census: Census) -> Plan:
    """Return the plan for the matched files, after checking the output."""
    problem = why_unusable(census, TABLE, spec.sink.root)
    problem = problem or why_files_lost(census, spec.max_rejected_files)
    if problem:
        return Plan("failed", problem)
    splits = spec.sink.place.splits
    sizes = {name: size for name, (_, size) in census.series.items() if name != REJECTED}
    total = sum(sizes.values())
    parts: dict[Series, int] = {}
    default_parts = 0
    if spec.named_by_rows:
        default_parts = count_row_parts(spec, total)
    elif splits.mode == "fractions":
        for name, share in splits.shares:
            if share:
                parts[Series(name, "")] = count_row_parts(spec, int(share * total))
    else:
        parts = {name: count_row_parts(spec, size) for name, size in sizes.items()}
    one_shard = ShardSpec(spec.sink.shards.template, num_shards=1)
    parts[REJECTED] = count_parts(total, 0, one_shard, _REJECT_BYTES, _MAX_PARTS)
    warnings = (*spec.sink.warnings, *input_warnings(census))
    plan = Plan("build", "", parts, (), census.input_id, default_parts, warnings)
    return adjust_plan(spec.sink, plan)


def count_row_parts(spec: RowsPlanSpec, text_bytes: int) -> int:
    """Return the number of parts of some text."""
    shards = spec.sink.shards
    rows = text_bytes / Fraction(spec.row_bytes)
    record_bytes = Fraction(spec.growth) * Fraction(spec.row_bytes)
    return count_parts(
        rows,
        rows * record_bytes / _COMPRESSION_RATIO,
        shards,
        part_refs=PART_BYTES / record_bytes,
        max_parts=_MAX_PARTS * (shards.num_shards or 1),
    )
