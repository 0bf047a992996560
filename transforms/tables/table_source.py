"""TableSource: the interface of what gives typed rows. Text and files are details of a source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from shardmill.schemas.refs import InputRef
from shardmill.transforms.tables.row_rejects import RejectCollector
from shardmill.transforms.tables.table_spec import TableSpec
from shardmill.transforms.tables.typed_column import TypedColumn


class TableInput(NamedTuple):
    """An inspected input.

    Attributes:
        ref: The input; rejected if it cannot be read as a table.
        num_bytes: Estimated size of its rows in bytes.
        detail: What the source needs to read it, as plain values.
    """

    ref: InputRef
    num_bytes: int = 0
    detail: tuple[Any, ...] = ()


class Unit(NamedTuple):
    """What is read by one call, in parallel with other units; crosses a shuffle.

    Attributes:
        ref: The input, as plain values.
        start: Place of the unit in its input; units are ordered by it.
        num_bytes: Approximate bytes that each of its batches takes of the input.
        single: Whether it is exactly one batch, which need not be read if its run exists.
        identity: What decides its rows, apart from the input and the options; plain values.
        detail: What the source needs to read it, as plain values.
    """

    ref: tuple[Any, ...]
    start: int
    num_bytes: int
    single: bool
    identity: tuple[Any, ...] = ()
    detail: tuple[Any, ...] = ()


class TypedBatch(NamedTuple):
    """Typed rows of one input. Their number is limited by memory: each batch becomes a run.

    Attributes:
        ref: The input.
        columns: The features, with a value or none for each row.
        rows: Identity and line of each row, and the rows that are rejected.
        texts: Columns whose texts decide placement, by name: dictionary<int32, binary>, an empty
            text where there is none.
        number: Number of rows that were read, rejected ones included.
    """

    ref: InputRef
    columns: list[TypedColumn]
    rows: RejectCollector
    texts: Mapping[str, pa.DictionaryArray]
    number: int


class TableSource(Protocol):
    """Gives the rows of inputs as typed columns; a small picklable value.

    The same unit must give the same batches on every machine, in any process and attempt.
    """

    @property
    def table(self) -> TableSpec:
        """The schema, and the columns that decide the placement of rows."""

    def inspect(self, ref: InputRef) -> TableInput:
        """Return an input with what is needed to read it, or rejected."""

    def units(self, item: TableInput) -> Iterator[Unit]:
        """Yield the units of an input; none if it has no rows.

        Raises:
            RejectedError: The input cannot be read, or is not the one that was inspected.
        """

    def read(self, unit: Unit) -> Iterator[TypedBatch]:
        """Yield the rows of a unit.

        Raises:
            RejectedError: The input cannot be read, or is not the one that was inspected.
        """
