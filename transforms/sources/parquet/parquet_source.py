"""ParquetSource: footers and row groups of Parquet files, and their rows as typed columns."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from shardmill.schemas.errors import ChangedError, StorageError
from shardmill.schemas.file_signatures import describe_format
from shardmill.schemas.refs import InputRef, RejectedError
from shardmill.schemas.storage import open_storage
from shardmill.schemas.storage.base import RandomReader, ReaderStream, one_line
from shardmill.transforms.sources.csv.arrow_values import (
    TypedProfile,
    TypedSample,
    find_type,
    flatten_columns,
    profile_rows,
    profiles_of,
    same_type,
)
from shardmill.transforms.sources.csv.cells import Cells
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.sample import Sample, open_start
from shardmill.transforms.sources.csv.source import FileSource, check_unchanged
from shardmill.transforms.sources.csv.text_parser import CellRules
from shardmill.transforms.tables.table_source import TableInput, TypedBatch, Unit

FIRST_RECORD = b"shardmill.first_record"  # index in the Python source of the first row of a file
_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_BUFFERS = 16 << 20  # of the column chunks that are read at a time, together
_MIN_BUFFER, _MAX_BUFFER = 64 << 10, 1 << 20
BATCH_BYTES = 4 << 20  # of decoded rows
RECORD = "record"  # key of all files with the records of a Python source
_MAX_STEP = 1 << 16
_SAMPLE_ROWS = 10_000
_SAMPLE_BYTES = 256 << 20  # decoded bytes of a row group; of larger ones, fewer rows are sampled


class Group(NamedTuple):
    """A row group.

    Attributes:
        number: Its number in the file.
        first: Number of its first row in the file, or in the Python source.
        rows: Number of its rows.
        num_bytes: Uncompressed size of its columns.
    """

    number: int
    first: int
    rows: int
    num_bytes: int


class Footer(NamedTuple):
    """The footer of a file.

    Attributes:
        profiles: Type of each column by its name.
        groups: The row groups that have rows.
        of_python: Whether its rows are records of a Python source.
    """

    profiles: Mapping[str, TypedProfile]
    groups: tuple[Group, ...]
    of_python: bool


class _HashedStream(ReaderStream):
    """A stream that hashes all that is read."""

    def __init__(self, reader: RandomReader) -> None:
        super().__init__(reader)
        self.hash = blake3()

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return the number of bytes."""
        size = super().readinto(buffer)
        self.hash.update(memoryview(buffer)[:size])
        return size


@contextlib.contextmanager
def open_parquet(ref: InputRef) -> Iterator[tuple[pq.ParquetFile, Any]]:
    """Open a Parquet file; the second value is the BLAKE3 of what was read so far.

    Raises:
        RejectedError: It is not a Parquet file, is damaged, or changed.
        MemoryError: Memory ran out, which says nothing about the file.
        StorageError: The storage failed.
    """
    try:
        with open_storage(ref.uri).open_at(ref.uri) as reader:
            head = reader.read_at(0, 64)
            if not head.startswith((_MAGIC, _ENCRYPTED)):
                kind = describe_format(head) or "another kind of file"
                raise RejectedError("read", "other_table", f"it is not a Parquet file but {kind}")
            stream = _HashedStream(reader)
            yield _open(stream), stream.hash
    except (FileNotFoundError, ChangedError) as error:
        raise RejectedError("read", "changed", "the file changed while it was read") from error
    except (MemoryError, StorageError):  # an ArrowMemoryError is both kinds of error
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # raised by Arrow
        check_unchanged(ref)
        why = one_line(error)
        if "encrypt" in why or "decrypt" in why:
            raise RejectedError(
                "read", "parquet", "it is encrypted: write it without encryption"
            ) from error
        message = f"its Parquet data is damaged, cut short or unsupported ({why}): write it again"
        raise RejectedError("read", "parquet", message) from error


def _open(stream: _HashedStream) -> pq.ParquetFile:
    metadata = pq.read_metadata(stream)
    buffer = _BUFFERS // max(1, metadata.num_columns)
    # A buffer makes Arrow read column chunks piece by piece instead of as a whole.
    size = min(max(buffer, _MIN_BUFFER), _MAX_BUFFER)
    return pq.ParquetFile(
        stream,
        metadata=metadata,
        buffer_size=size,
        pre_buffer=False,
        page_checksum_verification=True,
        arrow_extensions_enabled=False,
        coerce_int96_timestamp_unit="us",  # times of Spark exceed the range of nanoseconds
    )


@lru_cache(maxsize=10_000)
def read_footer(ref: InputRef) -> Footer:
    """Return the footer of a file.

    Raises:
        RejectedError: It is not a Parquet file, is damaged, or has two columns of one name.
    """
    with open_parquet(ref) as (file, _):
        metadata, groups = file.metadata, []
        index = (metadata.metadata or {}).get(FIRST_RECORD)
        first = int(index or 0)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if group.num_rows:
                groups.append(Group(number, first, group.num_rows, group.total_byte_size))
            first += group.num_rows
        return Footer(profiles_of(_typed_fields(file)), tuple(groups), index is not None)


def _typed_fields(file: pq.ParquetFile) -> pa.Schema:
    """Return the fields of a file; Arrow reads INTERVAL, as of DuckDB, as 12 bytes."""
    schema: pa.Schema = file.schema_arrow
    columns = [file.schema.column(number) for number in range(len(file.schema))]
    tops = {column.path.partition(".")[0] for column in columns if _is_interval(column)}
    for name in tops:
        place = schema.get_field_index(name)
        schema = schema.set(place, pa.field(name, pa.month_day_nano_interval()))
    return schema


def _is_interval(column: pq.ColumnSchema) -> bool:
    return bool(column.converted_type == "INTERVAL")


def read_tables(
    file: pq.ParquetFile, group: Group, columns: Sequence[str] | None, step: int, size: int
) -> Iterator[pa.Table]:
    """Yield the rows of a row group, some at a time.

    Args:
        file: The file.
        group: The row group.
        columns: Names of the columns to read, those of structs without the path in them, or None
            for all.
        step: Number of rows that are decoded at a time.
        size: Decoded bytes from which rows are yielded; 0: all rows at once.

    Raises:
        ValueError: The file has fewer or more rows, as Arrow raises for other damage.
    """
    held: list[pa.RecordBatch] = []
    rows = num_bytes = 0
    for batch in file.iter_batches(
        batch_size=step, row_groups=[group.number], columns=columns, use_threads=False
    ):
        held.append(batch)
        rows += len(batch)
        num_bytes += _num_bytes(batch)
        if size and num_bytes >= size:
            full, held, num_bytes = [pa.Table.from_batches(held)], [], 0
            del batch
            yield full.pop()  # no reference stays while the rows are encoded
    if rows != group.rows:
        raise ValueError(f"row group {group.number} has {rows} rows, not {group.rows}")
    if held:
        yield pa.Table.from_batches(held)


def _num_bytes(rows: pa.RecordBatch | pa.Table) -> int:
    """Return the bytes that rows use; Arrow 21 to 23 cannot count those of views of texts.

    Polars declares such views for a list of texts that are all null.
    """
    try:
        return int(rows.nbytes)
    except pa.ArrowTypeError:
        return int(rows.get_total_buffer_size())


def sample_parquet(ref: InputRef, dialect: Dialect, rules: CellRules, sample_bytes: int) -> Sample:
    """Sample the columns of a file by its footer and first rows."""
    del dialect, rules, sample_bytes
    ref, footer = open_start(ref, lambda: read_footer(ref))
    if footer is None:
        return TypedSample((ref,))
    rows = sum(group.rows for group in footer.groups)
    size = sum(group.num_bytes for group in footer.groups)
    names = tuple(footer.profiles)
    return TypedSample((ref,), names, footer.profiles, {}, rows, size, complete=False)


def measure(sample: Sample) -> Sample:
    """Return a sample with the decoded size and examples of the first rows of a file.

    Fewer rows of a row group with large values are read. Columns that no feature can hold, or
    with too large a row, are left out: a file of kilobytes may have values of gigabytes.
    """
    for ref in sample.refs:
        # A file with damaged rows is reported when it is read.
        with contextlib.suppress(RejectedError):
            groups = () if ref.error else read_footer(ref).groups
            if groups:
                with open_parquet(ref) as (file, _):
                    columns, step = _bound_sample(file, groups[0], sample.profiles)
                    if columns == []:
                        return sample
                    table = next(read_tables(file, groups[0], columns, step, 1), None)
                if table:
                    names = {*table.column_names}
                    read = {
                        k: profile
                        for k, profile in sample.profiles.items()
                        if profile.path[0] in names
                    }
                    profiles = {**sample.profiles, **profile_rows(read, table)}
                    size = sample.rows * _num_bytes(table) // len(table)
                    if columns is not None:
                        size = max(size, sample.text_bytes)
                    return replace(sample, profiles=profiles, text_bytes=size)
    return sample


def _bound_sample(
    file: pq.ParquetFile, group: Group, profiles: Mapping[str, TypedProfile]
) -> tuple[list[str] | None, int]:
    """Return the columns and the number of first rows to read; None for all columns."""
    rows = min(group.rows, _SAMPLE_ROWS)
    most = _SAMPLE_BYTES * group.rows  # of the bytes of the row group, for each row that is read
    if group.num_bytes * rows <= most:
        return None, _SAMPLE_ROWS
    unusable = {profile.path[0] for profile in profiles.values() if find_type(profile.kind) is None}
    columns, total = [], 0
    for name, size in sorted(_column_bytes(file, group).items(), key=itemgetter(1)):
        if name not in unusable and total + size <= most:
            columns.append(name)
            total += size
    return columns, min(rows, most // max(1, total))


def _column_bytes(file: pq.ParquetFile, group: Group) -> dict[str, int]:
    """Return the decoded bytes of the columns of a row group, those of structs together."""
    chunks, sizes = file.metadata.row_group(group.number), Counter[str]()
    names = file.schema_arrow.names
    for number in range(chunks.num_columns):
        chunk = chunks.column(number)
        path = chunk.path_in_schema
        name = next(column for column in names if path == column or path.startswith(f"{column}."))
        sizes[name] += chunk.total_uncompressed_size
    return sizes


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
            profile = footer.profiles.get(column.name)
            expected = self.profiles.get(column.name)
            if profile and self.base and expected and not same_type(profile.kind, expected.kind):
                message = (
                    f"its column {column.name!r} is {profile.kind}, and {expected.kind} in most "
                    "files: give the files one type"
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
            range_bytes = 0 if single else self.range_bytes
            detail = (*group, step, range_bytes)
            batches = 1 if single else -(-size // self.range_bytes)
            yield Unit(tuple(item.ref), group.first, size // batches, single, detail, detail)

    def read(self, unit: Unit) -> Iterator[TypedBatch]:
        """Yield the rows of a row group, as many at a time as fit in memory."""
        ref, first = InputRef(*unit.ref), unit.start
        check_unchanged(ref)
        for table, content in self._tables(unit):
            check_unchanged(ref)
            rows = np.arange(first, first + len(table))
            lines = rows + (ref.key != RECORD)  # indices start at 0, lines at 1
            cells = Cells(
                flatten_columns(table, self.table.selected_names), rows, lines, [], content
            )
            first += len(table)
            batch = self.type_cells(ref, cells)
            del table, cells
            yield batch

    def _tables(self, unit: Unit) -> Iterator[tuple[pa.Table, str]]:
        """Yield rows of a unit, and the BLAKE3 of what was read of the file up to them."""
        ref, (*group, step, size) = InputRef(*unit.ref), unit.detail
        profiles = read_footer(ref).profiles
        columns = [profiles[name].path[0] for name in self.table.selected_names if name in profiles]
        top = columns or [next(iter(profiles.values())).path[0]]  # its rows are counted
        with open_parquet(ref) as (file, content):

            def with_content(table: pa.Table) -> tuple[pa.Table, str]:
                return table, content.hexdigest()

            tables = read_tables(file, Group(*group), sorted({*top}), step, size)
            # Unlike a loop, it keeps no reference to a table while its rows are encoded.
            yield from map(with_content, tables)

    def content(self, unit: Unit) -> str:
        """Return the BLAKE3 of the bytes that are read of the file for a unit."""
        *_, (_, content) = self._tables(unit)
        return content
