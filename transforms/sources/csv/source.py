"""CsvSource: the rows of CSV files as typed columns; FileSource: what all table files share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from blake3 import blake3

from shardmill.schemas.errors import ChangedError, format_value
from shardmill.schemas.refs import InputRef, RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.schemas.storage import open_storage
from shardmill.transforms.sources.csv import arrow_values, typed_cells
from shardmill.transforms.sources.csv.cells import Cells, make_cells
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.infer import infer_column, profile_columns
from shardmill.transforms.sources.csv.row_bounds import Rows
from shardmill.transforms.sources.csv.row_ranges import (
    RANGE_BYTES,
    RowRange,
    hash_range,
    read_range,
    split_ranges,
)
from shardmill.transforms.sources.csv.sample import (
    check_columns,
    check_spellings,
    missing_columns,
    read_start,
)
from shardmill.transforms.sources.csv.text import CsvText
from shardmill.transforms.sources.csv.text_parser import CellFault, CellRules
from shardmill.transforms.tables.table_source import (
    PickledOnce,
    RejectCollector,
    TableInput,
    TableSpec,
    TextTable,
    TypedBatch,
    TypedColumn,
    Unit,
    decode,
)

_MISSING = (
    "__HIVE_DEFAULT_PARTITION__"  # org.apache.hadoop.hive.conf: hive.exec.default.partition.name
)
COMPRESSION_RATIO = 6  # typical for text


@dataclass(frozen=True)
class FileSource(TextTable, PickledOnce):
    """Base of the ``TableSource`` of each kind of table files.

    Attributes:
        table: See ``TableSource``.
        dialect: Dialect of the files; files other than CSV have only its encoding.
        rules: How cells are read.
        base: Inferred schema: the columns of most files.
        exact: Inferred schema: float32 columns that must not round an integer.
        profiles: Profiles of the sampled columns, for files whose columns have types.
        row_bytes: Average bytes of a sampled row.
        range_bytes: Bytes of rows per batch.
        partitions: Columns whose values are in the names of folders.
    """

    table: TableSpec
    dialect: Dialect
    rules: CellRules = field(default_factory=CellRules)
    base: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    profiles: Mapping[str, Any] = field(default_factory=dict)
    row_bytes: float = 1.0
    range_bytes: int = RANGE_BYTES
    partitions: tuple[str, ...] = ()

    @property
    def exact_texts(self) -> tuple[str, ...]:
        """The columns of ``exact`` whose cells are texts."""
        return self.exact

    def with_split(self, ref: InputRef) -> InputRef:
        """Return a file with the split that its path decides, if paths do."""
        if ref.size and not self.table.split_by:
            return self.table.place.of_table(ref)
        return ref

    def check_names(self, ref: InputRef, columns: Sequence[str]) -> None:
        """Check that a file has the columns of the table.

        Args:
            ref: The file, with its split.
            columns: Its columns.

        Raises:
            RejectedError: It does not.
        """
        table, columns = self.table, [*columns, *self.partitions]
        needed = [*missing_columns(table.columns_of(ref.split), columns), *table.named]
        check_spellings(columns, table.selected_names)
        check_columns(columns, table.selected_names, needed, self.base, self.dialect.header_mode)

    def type_cells(self, ref: InputRef, cells: Cells) -> TypedBatch:
        """Return rows of a file with the types of the schema.

        Args:
            ref: The file.
            cells: Its rows.
        """
        values = partition_values(ref.key)
        for name in self.partitions:
            cells.columns[name] = _constant(values.get(name), len(cells.offsets))
        rejects = RejectCollector(cells.offsets, cells.lines, cells.rejects)
        schema, exact = self.table.columns_of(), {*self.exact_texts}
        missing = _constant(None, len(cells.offsets))  # the file lacks the column
        texts = [cells.columns.get(column.name, missing) for column in schema]
        typed = typed_cells.type_columns(schema, texts, self.rules)
        columns = [
            _typed_column(
                column,
                column_texts,
                column_cells,
                rejects,
                self.rules,
                exact=column.name in exact,
                is_label=column.name == self.table.label,
            )
            for column, column_texts, column_cells in zip(schema, texts, typed, strict=True)
        ]
        named = {name: arrow_values.text_cells(cells.columns[name]) for name in self.table.named}
        return TypedBatch(ref, columns, rejects, named, cells.rows, cells.content)


def check_unchanged(ref: InputRef) -> None:
    """Check that a file still is the one that was matched.

    Raises:
        RejectedError: The file changed or does not exist any more.
    """
    entry = open_storage(ref.uri).stat(ref.uri)
    if entry is None:
        raise RejectedError("read", "not_found", "the file is gone")
    if (entry.size, entry.version) != (ref.size, ref.version):
        raise RejectedError(
            "read", "changed", "the file changed between listing and reading: run again"
        )


def partition_values(key: str) -> dict[str, bytes | None]:
    """Return the values of the partition of a file by the names of their columns."""
    values: dict[str, bytes | None] = {}
    for folder in key.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if name and equals:
            values[unquote(name)] = None if value == _MISSING else unquote(value).encode()
    return values


def partition_columns(refs: Iterable[InputRef], rules: CellRules) -> dict[str, Column]:
    """Return the columns of the partitions of all files, with the types that CSV would give."""
    cells: dict[str, list[bytes]] = defaultdict(list)
    for ref in refs:
        for name, value in partition_values(ref.key).items():
            cells[name].append(value or b"")
    arrays = {
        name: pa.array(values, pa.binary()).dictionary_encode() for name, values in cells.items()
    }
    profiles = {name: profile_columns({name: array}, rules)[name] for name, array in arrays.items()}
    return {
        name: replace(infer_column(name, profile), required=False)
        for name, profile in profiles.items()
    }


def _constant(value: bytes | None, rows: int) -> pa.DictionaryArray:
    """Return the cells of a column with the same value in all rows."""
    indices = pa.array(np.zeros(rows, np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.binary()))


def _typed_column(
    column: Column,
    texts: pa.DictionaryArray,
    typed: typed_cells.TypedCells,
    rejects: RejectCollector,
    rules: CellRules,
    *,
    exact: bool,
    is_label: bool,
) -> TypedColumn:
    """Return the values of a column; reject the rows that do not fit."""
    values, faults = typed
    if faults is not None:
        rejects.add(
            faults != CellFault.NONE,
            typed_cells.REASONS[faults],
            column.name,
            lambda row: typed_cells.describe_misfit(
                column, decode(texts[row : row + 1]), faults[row], rules, is_label=is_label
            ),
        )
    if exact:
        rejects.add(
            typed_cells.find_rounded(values, texts),
            "range",
            column.name,
            lambda row: (
                f"{format_value(texts[row].as_py())} is rounded by float32: make it BYTES in the "
                "schema, or FLOAT there if it may be rounded"
            ),
        )
    return TypedColumn(column.name, column.kind, values)


@dataclass(frozen=True)
class CsvSource(FileSource):
    """The ``TableSource`` of CSV files: a unit is a range of a file."""

    def make_cells(self, batches: Sequence[Rows], columns: Sequence[str], text: CsvText) -> Cells:
        """Parse rows into cells; see ``cells.make_cells``."""
        return make_cells(batches, columns, text)

    def inspect(self, ref: InputRef) -> TableInput:
        """Return a file with the names of its columns, or rejected."""
        ref, head = read_start(self.with_split(ref), self.dialect, 0)
        if head is None:
            return TableInput(ref)
        try:
            self.check_names(ref, [*filter(None, head.columns)])
        except RejectedError as rejection:
            return TableInput(ref.rejected(rejection.error, rejection.message))
        ratio = 1 if head.seekable else COMPRESSION_RATIO
        return TableInput(ref, ref.size * ratio, (head.columns, tuple(map(tuple, head.ranges))))

    def units(self, item: TableInput) -> Iterator[Unit]:
        """Yield the ranges of a file."""
        ref, (columns, bounds) = item.ref, item.detail
        check_unchanged(ref)
        dialect, ranges = self.dialect.for_name(ref.key), [*map(RowRange._make, bounds)]
        names = blake3("\0".join(columns).encode()).hexdigest()
        for part in split_ranges(ref.uri, dialect, ranges, self.range_bytes):
            single = part.end >= 0
            size = part.end - part.start if single else self.range_bytes
            identity = (*part, self.range_bytes, names)
            detail = (columns, tuple(part))
            yield Unit(tuple(ref), part.start, size, single, identity, detail)

    def read(self, unit: Unit) -> Iterator[TypedBatch]:
        """Yield the rows of a range, or of each piece of a file that cannot be split."""
        ref, (columns, part) = InputRef(*unit.ref), unit.detail
        dialect = self.dialect.for_name(ref.key)
        check_unchanged(ref)
        try:
            for rows, text in read_range(ref.uri, dialect, RowRange(*part), self.range_bytes):
                cells = self.make_cells(rows, columns, text)
                check_unchanged(ref)  # before use: callers take one batch of a single unit
                yield self.type_cells(ref, cells)
        except (FileNotFoundError, ChangedError) as error:
            raise RejectedError("read", "changed", "the file changed while it was read") from error

    def content(self, unit: Unit) -> str:
        """Return the BLAKE3 of the text of a unit."""
        ref = InputRef(*unit.ref)
        return hash_range(ref.uri, self.dialect.for_name(ref.key), RowRange(*unit.detail[1]))
