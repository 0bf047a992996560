"""FileSource: what the sources of table files share: columns, typed cells and their rejects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from shardmill.schemas.errors import shown
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.schemas.storage import open_storage
from shardmill.transforms.sources.csv import arrow_values, typed_cells
from shardmill.transforms.sources.csv.cell_rules import CellRules
from shardmill.transforms.sources.csv.cells import Cells
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.infer import infer_column, profile_columns
from shardmill.transforms.sources.csv.row_ranges import RANGE_BYTES
from shardmill.transforms.sources.csv.sample import check_columns, missing_columns
from shardmill.transforms.tables.row_rejects import RejectCollector
from shardmill.transforms.tables.table_source import (
    PickledOnce,
    TableSpec,
    TextTable,
    TypedBatch,
    TypedColumn,
)

_MISSING = (
    "__HIVE_DEFAULT_PARTITION__"  # org.apache.hadoop.hive.conf: hive.exec.default.partition.name
)


@dataclass(frozen=True)
class FileSource(TextTable, PickledOnce):
    """What the ``TableSource`` of each kind of table files has.

    Attributes:
        table: See ``TableSource``.
        dialect: Dialect of the files, of which those that are not CSV have the encoding only.
        rules: How cells are read.
        base: Inferred schema: the columns of most files.
        exact: Inferred schema: float32 columns that must not round an integer.
        profiles: What the sample says of each column, for files whose columns have types.
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
        known = {*table.named, *(column.name for column in table.columns)}
        check_columns(columns, known, needed, self.base, self.dialect.header)

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
        schema, exact = self.table.columns_of(), {*self.exact}
        missing = _constant(None, len(cells.offsets))  # the file lacks the column
        texts = [cells.columns.get(column.name, missing) for column in schema]
        typed = typed_cells.type_columns(schema, texts, self.rules)
        columns = [
            _typed_column(column, each, found, rejects, self.rules, exact=column.name in exact)
            for column, each, found in zip(schema, texts, typed, strict=True)
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
    folders = (folder.partition("=") for folder in key.split("/")[:-1])
    return {
        unquote(name): None if value == _MISSING else unquote(value).encode()
        for name, equals, value in folders
        if name and equals
    }


def partition_columns(refs: Iterable[InputRef], rules: CellRules) -> dict[str, Column]:
    """Return the columns of the partitions of all files, with the types that CSV would give."""
    cells: dict[str, list[bytes]] = defaultdict(list)
    for ref in refs:
        for name, value in partition_values(ref.key).items():
            cells[name].append(value or b"")
    arrays = {name: pa.array(each, pa.binary()).dictionary_encode() for name, each in cells.items()}
    profiles = {name: profile_columns({name: each}, rules)[name] for name, each in arrays.items()}
    return {
        name: replace(infer_column(name, profile), required=False)
        for name, profile in profiles.items()
    }


def _constant(value: bytes | None, rows: int) -> pa.DictionaryArray:
    """Return the cells of a column with the same value in all rows."""
    indices = pa.array(np.zeros(rows, np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.binary()))


def _typed_column(
    column: Column, texts: pa.DictionaryArray, typed: typed_cells.TypedCells,
    rejects: RejectCollector, rules: CellRules, *, exact: bool,
) -> TypedColumn:  # fmt: skip
    """Return the values of a column; reject the rows that do not fit."""
    misfits = typed.misfits
    if misfits is not None:
        reasons = typed_cells.reject_reasons(texts, misfits)
        rejects.add(
            reasons != "",
            reasons,
            column.name,
            lambda row: typed_cells.describe_misfit(column, texts, misfits, row, rules),
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
