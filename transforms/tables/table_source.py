"""TableSource: the interface of sources of typed rows and rejects, and the values they return."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.schemas.refs import InputRef, Reject
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.transforms.sink.placement import PlaceSpec

ARROW_TYPES: dict[Kind, pa.DataType] = {
    "int64": pa.int64(),
    "float32": pa.float32(),
    "bytes": pa.binary(),
}
_MANIFEST_TYPES = {"int64": "int64", "float32": "float", "bytes": "bytes"}
MAX_LISTED = 10_000  # bad rows of one range and step that are reported individually
FEW_ROWS = 10  # or one of a thousand: more rows are never rejected by an inferred rule

Mask = npt.NDArray[np.bool_]


class RowReject(NamedTuple):
    """A row that cannot become cells or a record.

    Attributes:
        offset: Identity of the row, such as the offset of its first byte in the file's text.
        line: Number of its first line, from 1.
        error: A reason, one of ``refs.REASONS``.
        message: The fault, without line and column.
        rows: Number of rows that this reject counts.
        column: Name of the column with a wrong cell; no text for a wrong row.
    """

    offset: int
    line: int
    error: str
    message: str
    rows: int = 1
    column: str = ""


class RejectCollector:
    """Collects rows that are rejected; a row keeps the first reason it got.

    The first rows are reported individually, the others are counted.

    Attributes:
        most: Number of rows that are reported individually.
        ids: int64[rows], identity of each row in its input.
        bad: bool[rows], which rows are rejected.
        lines: int64[rows], number of each row's first line.
        left_out: bool[rows], which rows are not in the sample of ``--limit``, and so no rejects.
        without_cells: Rows that were rejected before and are not counted in ``ids``.

    Args:
        ids: See above.
        lines: See above.
        rejects: Rows that were rejected before and are not counted in ``ids``.
    """

    def __init__(
        self,
        ids: npt.NDArray[np.int64],
        lines: npt.NDArray[np.int64],
        rejects: Sequence[RowReject] = (),
    ) -> None:
        rows, self.most = len(ids), MAX_LISTED
        self.ids = ids
        self.lines = lines
        self.without_cells = rejects
        self.bad, self.left_out = np.zeros((2, rows), bool)
        # For each check that rows failed: the column, the reason, and the message for a row.
        self._checks: list[tuple[str, str, Callable[[int], str]]] = []
        # Index into _checks of each bad row. Messages are made when rejects are listed, so that
        # millions of bad rows cost 4 bytes each.
        self._check_ids = np.zeros(rows, np.int32)

    def add(
        self,
        bad: Mask,
        reasons: str | npt.NDArray[np.str_],
        column: str,
        describe: Callable[[int], str],
    ) -> None:
        """Add the rows that failed a check.

        Args:
            bad: bool[rows], which rows failed.
            reasons: One reason for all rows, or an array with a reason per row, shape [rows].
            column: Name of the column that was checked.
            describe: Returns the message for a row, given its index.
        """
        new = np.flatnonzero(bad & ~self.bad)
        self.bad[new] = True
        of_rows = np.broadcast_to(reasons, bad.shape)[new]
        for reason in np.unique(of_rows).tolist():
            self._check_ids[new[of_rows == reason]] = len(self._checks)
            self._checks.append((column, reason, describe))

    def leave_out(self, rows: Mask, without_cells: Mask) -> int:
        """Leave out rows, and rejects of rows without cells; return the number of rows."""
        rejects, self.left_out = self.without_cells, rows
        self.without_cells = [rejects[n] for n in np.flatnonzero(~without_cells).tolist()]
        before = sum(reject.rows for reject in rejects)
        after = sum(reject.rows for reject in self.without_cells)
        return before - after + int(np.count_nonzero(rows))

    def rejects(self) -> list[RowReject]:
        """Return all rejects, ordered by row."""
        rows = np.flatnonzero(self.bad & ~self.left_out)
        listed, counted = rows[: self.most], rows[self.most :]
        rejects = [*self.without_cells, *self._list(listed)]
        checks = self._check_ids[counted]
        rejects += [self._count(counted[checks == check]) for check in np.unique(checks)]
        return sorted(rejects)

    def _count(self, rows: npt.NDArray[np.int64]) -> RowReject:
        """Return one reject that describes the first row and counts all."""
        (first,) = self._list(rows[:1])
        if len(rows) == 1:
            return first
        last = self.lines[rows[-1]]
        more = f"; {len(rows) - 1:,} more rows up to line {last} are rejected for the same reason"
        return first._replace(message=first.message + more, rows=len(rows))

    def _list(self, rows: npt.NDArray[np.int64]) -> Iterator[RowReject]:
        for row in rows.tolist():
            column, reason, describe = self._checks[self._check_ids[row]]
            offset, line = int(self.ids[row]), int(self.lines[row])
            yield RowReject(offset, line, reason, describe(row), column=column)


def describe_lost_files(count: int, limit: int, key: str, message: str) -> str:
    """Describe rejected files, naming the first."""
    some = "1 file is" if count == 1 else f"{count:,} files are"
    return (
        f"{some} not used completely, more than --max_rejected_files={limit} allows: "
        f"{key}, {message}; fix or exclude such files, or raise the limit"
    )


def to_reject(ref: InputRef, reject: RowReject) -> Reject:
    """Return the reject of a row of a file."""
    # The rest of a compressed file is lost, not one row.
    stage = "read" if reject.error == "compressed" else "decode"
    return Reject(
        f"{ref.key}:{reject.line}",
        ref.uri,
        stage,
        reject.error,
        reject.message,
        reject.rows,
        reject.line,
        reject.column or None,
    )


def list_features(features: Iterable[tuple[str, Kind]]) -> list[dict[str, Any]]:
    """Return the manifest's list of features with these names and kinds, sorted by name."""
    ordered = sorted(features, key=lambda feature: feature[0].encode())
    return [{"name": name, "type": _MANIFEST_TYPES[kind]} for name, kind in ordered]


class TypedColumn(NamedTuple):
    """The values of one column.

    Attributes:
        name: Feature name.
        kind: Value type of the feature.
        values: int64, float32 or binary, or lists of them (0 to n values per row), with one entry
            per row; null where the feature is absent. May be a dictionary: then its values may be
            null, and its indices are not.
    """

    name: str
    kind: Kind
    values: pa.Array

    @property
    def has_lists(self) -> bool:
        """Whether values are lists."""
        kind = self.values.type
        return is_list(kind.value_type if pa.types.is_dictionary(kind) else kind)

    def take(self, order: npt.NDArray[np.int64]) -> pa.Array:
        """Return the values of rows, not as a dictionary.

        Args:
            order: Numbers of the rows; shape [n].
        """
        return decode(self.values.take(pa.array(order)))


def decode(values: pa.Array) -> pa.Array:
    """Return values, not as a dictionary."""
    if isinstance(values, pa.DictionaryArray):
        return values.dictionary.take(values.indices)
    return values


def is_list(kind: pa.DataType) -> bool:
    """Return whether values of a type are lists."""
    types = pa.types
    is_view = types.is_list_view(kind) or types.is_large_list_view(kind)
    is_plain = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_view or is_plain)


MAX_LABELS = 1_000
TOO_MANY_LABELS = "\0"  # replaces the labels of records that have more than MAX_LABELS


class PickledOnce:
    """A frozen dataclass that is pickled once, not for each step: it may name many columns."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, (type(self), self._pickled)

    @cached_property
    def _pickled(self) -> bytes:
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        return zlib.compress(pickle.dumps(values), 9)


@lru_cache(maxsize=8)
def _load(kind: type[Any], data: bytes) -> Any:
    return kind(*pickle.loads(zlib.decompress(data)))  # noqa: S301 - of this job


@dataclass(frozen=True)
class TableSpec(PickledOnce):
    """The schema of rows, and the columns that decide their placement, as inputs name them.

    Attributes:
        columns: The schema.
        place: Splits and seed.
        label: Column whose values are counted as labels, or empty.
        key: Column that identifies rows; if empty, the input and the place in it identify them.
        group_by: Rows with equal texts in this column stay in one split; or empty.
        split_by: Column that names the split, or empty.
        max_labels: Number of distinct labels of a batch from which they are not counted.
        rename: Pairs of a column's name and its feature's name.
    """

    columns: tuple[Column, ...]
    place: PlaceSpec
    label: str = ""
    key: str = ""
    group_by: str = ""
    split_by: str = ""
    max_labels: int = MAX_LABELS
    rename: tuple[tuple[str, str], ...] = ()

    @cached_property
    def features(self) -> tuple[Column, ...]:
        """The schema with the names of the features."""
        return with_names(self.columns, dict(self.rename))

    @property
    def label_feature(self) -> str:
        """Name of the feature with the label, or empty."""
        return dict(self.rename).get(self.label, self.label)

    def columns_of(self, split: str = "") -> tuple[Column, ...]:
        """Return the schema that a source applies: it does not require labels of some splits.

        Args:
            split: Split of all rows of an input; no text if their splits may differ.
        """
        if not self.place.unlabeled or (split and split not in self.place.unlabeled):
            return self.columns
        return without_required(self.columns, self.label)

    @property
    def selected_names(self) -> set[str]:
        """Names of the columns to read: the schema's, and columns that an option names."""
        return {*self.named, *(column.name for column in self.columns)}

    @property
    def named(self) -> list[str]:
        """Columns that each input must have because an option names them."""
        return [name for name in (self.key, self.group_by, self.split_by) if name]


class TextTable:
    """Schema and features of a table whose labels, if they are texts, are texts in the records."""

    table: TableSpec

    def schema(self, labels: Sequence[str]) -> str:  # noqa: ARG002
        """Return the text of ``schema.pbtxt``."""
        return format_schema(self.table.features)

    def features(self) -> list[dict[str, Any]]:
        """Return the manifest's list of features, sorted by name."""
        return list_features((column.name, column.kind) for column in self.table.features)


def with_names(columns: Iterable[Column], names: Mapping[str, str]) -> tuple[Column, ...]:
    """Rename columns."""
    return tuple(replace(column, name=names.get(column.name, column.name)) for column in columns)


def without_required(columns: Iterable[Column], label: str) -> tuple[Column, ...]:
    """Make the label's column optional."""
    return tuple(
        replace(column, required=column.required and column.name != label) for column in columns
    )


class TableInput(NamedTuple):
    """An inspected input.

    Attributes:
        ref: The input; rejected if it cannot be read as a table.
        num_bytes: Estimated size of its rows in bytes.
        detail: Plain values that the source needs to read it.
    """

    ref: InputRef
    num_bytes: int = 0
    detail: tuple[Any, ...] = ()


class Unit(NamedTuple):
    """A range that one call reads, in parallel with other units; crosses a shuffle.

    Attributes:
        ref: The input, as plain values.
        start: Place of the unit in its input; units are ordered by it.
        num_bytes: Approximate bytes that each of its batches takes of the input.
        single: Whether it is exactly one batch, which need not be read if its run exists.
        identity: Plain values that decide its rows, besides the content and the options.
        detail: Plain values that the source needs to read it.
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
        texts: Columns whose texts decide placement, by name: binary; missing texts are empty.
        number: Number of rows that were read, rejected ones included.
        content: BLAKE3 of the bytes that the source read of the unit, up to this batch.
    """

    ref: InputRef
    columns: list[TypedColumn]
    rows: RejectCollector
    texts: Mapping[str, pa.BinaryArray]
    number: int
    content: str


class TableSource(Protocol):
    """Gives the rows of inputs as typed columns; a small picklable value.

    The same unit must give the same batches on every machine, in any process and attempt.
    """

    @property
    def table(self) -> TableSpec:
        """The columns, if values have statistics, and the columns that decide placement."""

    def schema(self, labels: Sequence[str]) -> str:
        """Return the text of ``schema.pbtxt``, given the labels in the order of their ids."""

    def features(self) -> list[dict[str, Any]]:
        """Return the manifest's list of features, sorted by name."""

    def inspect(self, ref: InputRef) -> TableInput:
        """Inspect an input; reject it if it is not a table."""

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

    def content(self, unit: Unit) -> str:
        """Return the ``content`` of the last batch of a unit, which need not be parsed.

        Raises:
            As ``read``, or the storage's errors for an input that is gone or changed.
        """
