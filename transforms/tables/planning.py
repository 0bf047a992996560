"""Plan the number of parts from the sizes of files."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import partial

from shardmill.transforms.sink.census import Census, input_warnings, why_unusable
from shardmill.transforms.sink.division import ShardSpec, count_parts
from shardmill.transforms.sink.placement import REJECTED, Series
from shardmill.transforms.sink.plan import Plan, decide_status
from shardmill.transforms.tables.row_rejects import describe_lost_files
from shardmill.transforms.tables.rows_spec import RowsSpec
from shardmill.transforms.tables.table_source import TableInput

PART_BYTES = 64 << 20  # of uncompressed records; a part is merged in memory
_COMPRESSION_RATIO = 6  # of deflate on rows, with a margin
_REJECT_BYTES = 64 << 20  # of text per part of rejects
_MAX_PARTS = 1 << 16


def count_file(census: Census, file: TableInput) -> None:
    """Add an inspected file to a census; its size is that of its rows."""
    series = REJECTED if file.ref.error else Series(file.ref.split or "rows", "")
    census.add(file.ref, series, file.num_bytes)


def why_files_lost(census: Census, limit: int) -> str:
    """Return why the matched files are unacceptable if too many are rejected, or an empty text.

    A file without bytes loses no rows and is not counted.
    """
    lost = census.errors - Counter(empty=census.errors["empty"])
    if lost.total() <= limit:
        return ""
    key, message = min(census.examples[error][0] for error in lost)
    return f"{describe_lost_files(lost.total(), limit, key, message)}."


def plan_rows(spec: RowsSpec, census: Census) -> Plan:
    """Return the plan for the matched files, after checking the output."""
    problem = why_unusable(census, spec.sink.hooks, spec.sink.root)
    problem = problem or why_files_lost(census, spec.max_rejected_files)
    if problem:
        return Plan("failed", problem)
    splits = spec.sink.place.splits
    parts_of = partial(count_row_parts, spec.sink.shards, spec.growth, spec.row_bytes)
    sizes = {name: size for name, (_, size) in census.series.items() if name != REJECTED}
    total = sum(sizes.values())
    parts: dict[Series, int] = {}
    default_parts = 0
    if spec.table.split_by:
        default_parts = parts_of(total)
    elif splits.mode == "fractions":
        for name, share in splits.shares:
            if share:
                parts[Series(name, "")] = parts_of(int(share * total))
    else:
        parts = {name: parts_of(size) for name, size in sizes.items()}
    one_shard = ShardSpec(spec.sink.shards.template, num_shards=1)
    parts[REJECTED] = count_parts(total, 0, one_shard, _REJECT_BYTES, _MAX_PARTS)
    warnings = (*spec.sink.warnings, *input_warnings(census, spec.sink.hooks))
    plan = Plan("build", "", parts, (), census.input_id, default_parts, warnings)
    return decide_status(spec.sink, plan)


def count_row_parts(shards: ShardSpec, growth: float, row_bytes: float, text_bytes: int) -> int:
    """Return the number of parts of some text.

    Args:
        shards: Number or size of the shards.
        growth: See ``RowsSpec``.
        row_bytes: See ``RowsSpec``.
        text_bytes: Bytes of the text.
    """
    rows = text_bytes / Fraction(row_bytes)
    record_bytes = Fraction(growth) * Fraction(row_bytes)
    return count_parts(
        rows,
        rows * record_bytes / _COMPRESSION_RATIO,
        shards,
        part_refs=PART_BYTES / record_bytes,
        max_parts=_MAX_PARTS * (shards.num_shards or 1),
    )
