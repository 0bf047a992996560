"""RowsSpec: all options of a build of rows; and the plan of its parts, from the sizes of files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from shardmill.schemas.errors.catalogue import coded
from shardmill.transforms.sink.census import MAX_FILES, Census, input_warnings, why_unusable
from shardmill.transforms.sink.placement import REJECTED, Series, ShardSpec, count_parts
from shardmill.transforms.sink.plan import Plan, decide_status
from shardmill.transforms.sink.spec import SinkSpec
from shardmill.transforms.tables.row_rejects import describe_lost_files
from shardmill.transforms.tables.table_source import TableInput, TableSource, TableSpec
from shardmill.transforms.tables.tft.preprocessing import Preprocessing


@dataclass(frozen=True)
class RowsSpec:
    """All options of a build of rows; a small picklable value that every worker receives.

    Attributes:
        sink: What is written, and where.
        source: What gives the rows.
        versions: Versions of all code that decides bytes.
        growth: Estimated bytes of records per byte of text.
        row_bytes: Estimated bytes of text per row.
        threads: Ranges that a worker processes in parallel; 0 for one per core.
        max_rejected_files: Largest accepted number of files that are rejected as a whole.
        preprocessing: The preprocessing_fn of TensorFlow Transform, if any.
        parts: Number of parts of each split, if it is known; else it follows from the sizes above.
        labels: Labels in the order of their class ids, if records have ids.
        limit: Number of rows of a random sample; None for all rows.
    """

    sink: SinkSpec
    source: TableSource
    versions: Mapping[str, str]
    growth: float
    row_bytes: float
    threads: int
    max_rejected_files: int = 0
    preprocessing: Preprocessing | None = None
    parts: tuple[tuple[str, int], ...] = ()
    labels: tuple[str, ...] = ()
    limit: int | None = None

    @property
    def table(self) -> TableSpec:
        """Schema and placement of rows."""
        return self.source.table


PART_BYTES = 64 << 20  # of uncompressed records; a part is merged in memory
_COMPRESSION_RATIO = 6  # of deflate on rows, with a margin
_REJECT_BYTES = 64 << 20  # of text per part of rejects
_MAX_PARTS = 1 << 16
UNPLACED = Series("*", "")  # files whose rows are in different splits


def count_file(census: Census, file: TableInput) -> None:
    """Add an inspected file to a census; its size is that of its rows."""
    series = Series(file.ref.split, "") if file.ref.split else UNPLACED
    series = REJECTED if file.ref.error else series
    census.add(file.ref, series, file.num_bytes)
    if len(census.files) <= MAX_FILES:
        census.files[file.ref.key] = f"{file.ref.digest():032x}"


def why_files_lost(census: Census, limit: int) -> str:
    """Return why the matched files are unacceptable if too many are rejected, or an empty text.

    A file without bytes loses no rows and is not counted.
    """
    lost = census.errors - Counter(empty=census.errors["empty"])
    if lost.total() <= limit:
        return ""
    key, message = min(census.examples[error][0] for error in lost)
    return coded("rows-too-many-files", lost=describe_lost_files(lost.total(), limit, key, message))


def plan_rows(census: Census, spec: RowsSpec) -> Plan:
    """Return the plan for the matched files, after checking the output."""
    problem = why_unusable(census, spec.sink.hooks, spec.sink.input or spec.sink.root)
    problem = problem or why_files_lost(census, spec.max_rejected_files)
    if problem:
        return Plan("failed", problem)
    parts, default_parts = _plan_parts(spec, census)
    warnings = (*spec.sink.warnings, *input_warnings(census, spec.sink.hooks))
    plan = Plan(
        "build", "", parts, spec.labels, census.input_id, default_parts, warnings,
        ctime_id=census.ctime_id,
    )  # fmt: skip
    return decide_status(spec.sink, plan, files=census.known_files)


def _plan_parts(spec: RowsSpec, census: Census) -> tuple[dict[Series, int], int]:
    """Return the number of parts of each series, and that of splits that are not known yet."""
    if spec.parts:
        return {Series(name, ""): count for name, count in spec.parts}, 0
    splits = spec.sink.place.splits
    parts_of = partial(count_row_parts, spec.sink.shards, spec.growth, spec.row_bytes)
    sizes = {name: size for name, (_, size) in census.series.items() if name != REJECTED}
    total = sum(sizes.values())
    one_shard = ShardSpec(spec.sink.shards.template, num_shards=1)
    rejected = {REJECTED: count_parts(total, 0, one_shard, _REJECT_BYTES, _MAX_PARTS)}
    if spec.limit is not None and total:
        share = min(Fraction(1), spec.limit * Fraction(spec.row_bytes) / total)
        sizes = {name: int(share * size) for name, size in sizes.items()}
    if spec.table.split_by:
        return rejected, parts_of(sum(sizes.values()))
    unplaced = sizes.pop(UNPLACED, 0)
    for name, share in splits.shares:
        if share:
            sizes[Series(name, "")] = sizes.get(Series(name, ""), 0) + int(share * unplaced)
    return {name: parts_of(size) for name, size in sizes.items()} | rejected, 0


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
