"""RowsSpec: all options of a build of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardmill.schemas.storage import join
from shardmill.transforms.sink.spec import SinkSpec
from shardmill.transforms.tables.table_source import TableSource
from shardmill.transforms.tables.table_spec import TableSpec
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
        threads: Ranges that a worker processes in parallel.
        max_rejected_files: Largest accepted number of files that are rejected as a whole.
        preprocessing: The preprocessing_fn of TensorFlow Transform, if any.
    """

    sink: SinkSpec
    source: TableSource
    versions: Mapping[str, str]
    growth: float
    row_bytes: float
    threads: int
    max_rejected_files: int = 0
    preprocessing: Preprocessing | None = None

    @property
    def runs(self) -> str:
        """Path of the folder of runs."""
        return join(self.sink.build, "runs")

    @property
    def table(self) -> TableSpec:
        """Schema and placement of rows."""
        return self.source.table
