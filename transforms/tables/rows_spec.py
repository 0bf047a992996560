"""RowsSpec: all options of a build of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardmill.schemas.refs import InputRef
from shardmill.schemas.storage import join
from shardmill.transforms.sink.spec import SinkSpec
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.row_ranges import RANGE_BYTES, RowRange
from shardmill.transforms.tables.table import TableSpec
from shardmill.transforms.tables.tft.preprocessing import Preprocessing


@dataclass(frozen=True)
class RowsSpec:
    """All options of a build of rows; a small picklable value that every worker receives.

    Attributes:
        sink: What is written, and where.
        table: Schema and placement of rows.
        dialect: Dialect of the files.
        versions: Versions of all code that decides bytes.
        growth: Estimated bytes of records per byte of text.
        row_bytes: Estimated bytes of text per row.
        threads: Ranges that a worker processes in parallel.
        max_rejected_files: Largest accepted number of files that are rejected as a whole.
        preprocessing: The preprocessing_fn of TensorFlow Transform, if any.
        range_bytes: Bytes of text per run.
    """

    sink: SinkSpec
    table: TableSpec
    dialect: Dialect
    versions: Mapping[str, str]
    growth: float
    row_bytes: float
    threads: int
    max_rejected_files: int = 0
    preprocessing: Preprocessing | None = None
    range_bytes: int = RANGE_BYTES

    @property
    def runs(self) -> str:
        """Path of the folder of runs."""
        return join(self.sink.build, "runs")

    def size_of(self, part: RowRange) -> int:
        """Return the approximate bytes of text of a range, or of one piece of it."""
        return part.end - part.start if part.end >= 0 else self.range_bytes

    def dialect_of(self, ref: InputRef) -> Dialect:
        """Return the dialect of a file: TSV files have tabs instead of commas."""
        return self.dialect.for_name(ref.key)
