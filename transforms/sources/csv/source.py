"""CsvSource: the rows of CSV files as typed columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from blake3 import blake3

from shardmill.schemas.errors import ChangedError, shown
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.schemas.storage import open_storage
from shardmill.transforms.sources.csv import typed_cells
from shardmill.transforms.sources.csv.cells import Cells
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.row_ranges import (
    RANGE_BYTES,
    RowRange,
    hash_range,
    read_range,
    split_ranges,
)
from shardmill.transforms.sources.csv.sample import check_columns, missing_columns, read_start
from shardmill.transforms.sources.csv.typed_cells import Nulls
from shardmill.transforms.tables.row_rejects import RejectCollector
from shardmill.transforms.tables.table_source import (
    PickledOnce,
    TableInput,
    TableSpec,
    TypedBatch,
    TypedColumn,
    Unit,
    list_features,
)

_COMPRESSION_RATIO = 6  # typical for text


@dataclass(frozen=True)
class CsvSource(PickledOnce):
    """The ``TableSource`` of CSV files: a unit is a range of a file.

    Attributes:
        table: See ``TableSource``.
        dialect: Dialect of the files.
        nulls: Texts of missing cells.
        base: Inferred schema: the columns of most files.
        exact: Inferred schema: float32 columns that must not round an integer.
        range_bytes: Bytes of text per batch.
    """

    table: TableSpec
    dialect: Dialect
    nulls: Nulls = field(default_factory=Nulls)
    base: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    range_bytes: int = RANGE_BYTES

    def schema(self, labels: Sequence[str]) -> str:  # noqa: ARG002 - they are texts in the records
        """Return the text of ``schema.pbtxt``."""
        return format_schema(self.table.columns)

    def features(self) -> list[dict[str, Any]]:
        """Return the manifest's list of features, sorted by name."""
        return list_features((column.name, column.kind) for column in self.table.columns)

    def inspect(self, ref: InputRef) -> TableInput:
        """Return a file with the names of its columns, or rejected."""
        table = self.table
        if ref.size and table.place.splits.mode == "directory" and not table.split_by:
            ref = table.place.with_split(ref)
        ref, head = read_start(ref, self.dialect, 0)
        if head is None:
            return TableInput(ref)
        needed = [*missing_columns(table.columns, head.columns), *table.named]
        known = {*table.named, *(column.name for column in table.columns)}
        try:
            check_columns(head.columns, known, needed, self.base, self.dialect.header)
        except RejectedError as rejection:
            return TableInput(ref.rejected(rejection.error, rejection.message))
        ratio = 1 if head.seekable else _COMPRESSION_RATIO
        return TableInput(ref, ref.size * ratio, (head.columns, tuple(map(tuple, head.ranges))))

    def units(self, item: TableInput) -> Iterator[Unit]:
        """Yield the ranges of a file."""
        ref, (columns, known) = item.ref, item.detail
        check_unchanged(ref)
        dialect, ranges = self.dialect.for_name(ref.key), [*map(RowRange._make, known)]
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
            for cells in read_range(ref.uri, dialect, columns, RowRange(*part), self.range_bytes):
                check_unchanged(ref)  # before use: callers take one batch of a single unit
                yield self.type_cells(ref, cells)
        except (FileNotFoundError, ChangedError) as error:
            raise RejectedError("read", "changed", "the file changed while it was read") from error

    def content(self, unit: Unit) -> str:
        """Return the BLAKE3 of the text of a unit."""
        ref = InputRef(*unit.ref)
        return hash_range(ref.uri, self.dialect.for_name(ref.key), RowRange(*unit.detail[1]))

    def type_cells(self, ref: InputRef, cells: Cells) -> TypedBatch:
        """Return rows of a file with the types of the schema.

        Args:
            ref: The file.
            cells: Its rows.
        """
        rejects = RejectCollector(cells.offsets, cells.lines, cells.rejects)
        schema, exact = self.table.columns, {*self.exact}
        texts = [_texts_of(column, self.nulls, cells) for column in schema]
        typed = typed_cells.type_columns(schema, texts, self.nulls)
        columns = [
            _typed_column(column, each, found, rejects, exact=column.name in exact)
            for column, each, found in zip(schema, texts, typed, strict=True)
        ]
        named = {name: cells.columns[name] for name in self.table.named}
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


def _texts_of(column: Column, nulls: Nulls, cells: Cells) -> pa.DictionaryArray:
    """Return the cells of a column; all of them are missing if the file lacks it."""
    found = cells.columns.get(column.name)
    if found is not None:
        return found
    texts = nulls.texts if column.kind == "bytes" else nulls.numbers
    return pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(len(cells.offsets), np.int32)),
        pa.array([min(texts, default=b"")], pa.binary()),
    )


def _typed_column(
    column: Column, texts: pa.DictionaryArray, typed: typed_cells.TypedCells,
    rejects: RejectCollector, *, exact: bool,
) -> TypedColumn:  # fmt: skip
    """Return the values of a column; reject the rows that do not fit."""
    misfits = typed.misfits
    if misfits is not None:
        reasons = typed_cells.reject_reasons(texts, misfits)
        rejects.add(
            reasons != "",
            reasons,
            column.name,
            lambda row: typed_cells.describe_misfit(column, texts, misfits, row),
        )
    if exact:
        rejects.add(
            typed_cells.find_rounded(typed.column, texts),
            "range",
            column.name,
            lambda row: (
                f"{shown(texts[row].as_py())} is rounded by float32: make it BYTES in the "
                "schema, or FLOAT there if it may be rounded"
            ),
        )
    return typed.column
