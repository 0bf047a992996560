"""ParquetSource: the rows of Parquet files as typed columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.sources.csv.arrow_values import flatten_columns
from shardmill.transforms.sources.csv.cell_rules import CellRules
from shardmill.transforms.sources.csv.cells import Cells
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.file_source import FileSource, check_unchanged
from shardmill.transforms.sources.csv.sample import Sample, open_start
from shardmill.transforms.sources.csv.typed_sample import TypedSample, profile_rows, same_type
from shardmill.transforms.sources.parquet.parquet_file import (
    Footer,
    Group,
    open_parquet,
    read_footer,
    read_tables,
)
from shardmill.transforms.tables.table_source import TableInput, TypedBatch, Unit

BATCH_BYTES = 4 << 20  # of decoded rows
RECORD = "record"  # key of all files with the records of a Python source
_MAX_STEP = 1 << 16
_SAMPLE_ROWS = 10_000


def sample_parquet(ref: InputRef, dialect: Dialect, rules: CellRules, sample_bytes: int) -> Sample:
    """Return what the footer of a file and its first rows say of its columns."""
    del dialect, rules, sample_bytes
    ref, footer = open_start(ref, lambda: read_footer(ref))
    if footer is None:
        return TypedSample((ref,))
    rows = sum(group.rows for group in footer.groups)
    size = sum(group.num_bytes for group in footer.groups)
    names = tuple(footer.profiles)
    return TypedSample((ref,), names, footer.profiles, {}, rows, size, complete=False)


def measure(sample: Sample) -> Sample:
    """Return a sample with the decoded size and examples of the first rows of a file."""
    for ref in sample.refs:
        # A file with damaged rows is reported when it is read.
        with contextlib.suppress(RejectedError):
            groups = () if ref.error else read_footer(ref).groups
            if groups:
                with open_parquet(ref) as (file, _):
                    table = next(read_tables(file, groups[0], None, _SAMPLE_ROWS, 1), None)
                if table:
                    profiles = profile_rows(sample.profiles, table)
                    size = sample.rows * table.nbytes // len(table)
                    return replace(sample, profiles=profiles, text_bytes=size)
    return sample


@dataclass(frozen=True)
class ParquetSource(FileSource):
    """The ``TableSource`` of Parquet files: a unit is a row group."""

    range_bytes: int = BATCH_BYTES

    def inspect(self, ref: InputRef) -> TableInput:
        """Return a file with its row groups, or rejected."""
        ref, footer = open_start(self.with_split(ref), lambda: self._check(ref))
        if footer is None:
            return TableInput(ref)
        size = sum(map(self._decoded_bytes, footer.groups))
        if footer.of_python:  # the place of a record must not depend on the files
            ref = ref._replace(key=RECORD)
        return TableInput(ref, size, tuple(map(tuple, footer.groups)))

    def _check(self, ref: InputRef) -> Footer:
        """Return the footer of a file.

        Raises:
            RejectedError: It does not have the columns of the table.
        """
        footer = read_footer(ref)
        self.check_names(ref, [*footer.profiles])
        for column in self.table.columns:
            found = footer.profiles.get(column.name)
            wanted = self.profiles.get(column.name)
            if found and self.base and wanted and not same_type(found.kind, wanted.kind):
                message = (
                    f"its column {column.name!r} is {found.kind}, and {wanted.kind} in most files:"
                    " give the files one type"
                )
                raise RejectedError("read", "columns", message)
        return footer

    def _decoded_bytes(self, group: Group) -> int:
        return max(group.num_bytes, int(group.rows * self.row_bytes))

    def units(self, item: TableInput) -> Iterator[Unit]:
        """Yield the row groups of a file."""
        check_unchanged(item.ref)
        for group in map(Group._make, item.detail):
            size = self._decoded_bytes(group)
            single = size <= self.range_bytes
            step = max(1, min(_MAX_STEP, group.rows * self.range_bytes // (4 * size)))
            detail = (*group, step, 0 if single else self.range_bytes)
            batches = 1 if single else -(-size // self.range_bytes)
            yield Unit(tuple(item.ref), group.first, size // batches, single, detail, detail)

    def read(self, unit: Unit) -> Iterator[TypedBatch]:
        """Yield the rows of a row group, as many at a time as fit in memory."""
        ref, first = InputRef(*unit.ref), unit.start
        check_unchanged(ref)
        for table, content in self._tables(unit):
            check_unchanged(ref)
            rows = np.arange(first, first + len(table))
            names = {*self.table.named, *(column.name for column in self.table.columns)}
            lines = rows + (ref.key != RECORD)  # indices start at 0, lines at 1
            cells = Cells(flatten_columns(table, names), rows, lines, [], content)
            first += len(table)
            batch = self.type_cells(ref, cells)
            del table, cells
            yield batch

    def _tables(self, unit: Unit) -> Iterator[tuple[pa.Table, str]]:
        """Yield rows of a unit, and the BLAKE3 of what was read of the file up to them."""
        ref, (*group, step, size) = InputRef(*unit.ref), unit.detail
        profiles = read_footer(ref).profiles
        names = [*self.table.named, *(column.name for column in self.table.columns)]
        found = [profiles[name].path[0] for name in names if name in profiles]
        top = found or [next(iter(profiles.values())).path[0]]  # its rows are counted
        with open_parquet(ref) as (file, content):

            def with_content(table: pa.Table) -> tuple[pa.Table, str]:
                return table, content.hexdigest()

            tables = read_tables(file, Group(*group), sorted({*top}), step, size)
            # Unlike a loop, it keeps no reference to a table while its rows are encoded.
            yield from map(with_content, tables)

    def content(self, unit: Unit) -> str:
        """Return the BLAKE3 of what is read of the file for a unit."""
        *_, (_, content) = self._tables(unit)
        return content
