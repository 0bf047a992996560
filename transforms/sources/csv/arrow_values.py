"""Values of Arrow types as values of records: the rules for files whose columns have types.

Booleans are 0 and 1. Dates, times, timestamps and durations are int64 in the unit of the file.
Decimals with digits after the point are float32, others int64. Texts, binary values and
enumerations are bytes. A list has 0 to n values; fields of structs are columns named by their path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.schema_pbtxt.columns import INT64_MAX, INT64_MIN, TimeKind
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.transforms.sources.csv.text_parser import CellFault, Parsed, find_missing, no_faults
from shardmill.transforms.tables.table_source import MAX_LABELS, has_lists

is_type = pa.types
_TEXTS = (
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(),
    pa.binary_view(),
)  # fmt: skip
_HEAD_ROWS = 2048


def flatten_fields(
    fields: Iterable[pa.Field], prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    """Yield path and type of the columns of a schema: those of structs are their fields."""
    for field in fields:
        path = (*prefix, field.name)
        if is_type.is_struct(field.type):
            yield from flatten_fields(field.type, path)
        else:
            yield path, field.type


def flatten_columns(table: pa.Table, names: Collection[str]) -> dict[str, pa.DictionaryArray]:
    """Return the cells of some columns by their names, which are paths such as ``a.b``."""
    while any(is_type.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return {
        name: encode_cells(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())
        for name, column in zip(table.column_names, table.columns, strict=True)
        if name in names
    }


def find_type(kind: pa.DataType) -> tuple[Kind, bool] | None:
    """Return the type of the feature, and whether values are lists; None if none can hold them."""
    several = is_list(kind)
    found = _find_kind(kind.value_type if several else kind)
    return (found, several) if found else None


def is_list(kind: pa.DataType) -> bool:
    """Return whether values of a type are lists."""
    return any(
        check(kind)
        for check in (is_type.is_list, is_type.is_large_list, is_type.is_fixed_size_list)
    )


def _find_kind(kind: pa.DataType) -> Kind | None:
    if isinstance(kind, pa.BaseExtensionType):
        return _find_kind(kind.storage_type)
    if is_type.is_dictionary(kind):
        return _find_kind(kind.value_type)
    is_time = is_type.is_temporal(kind) and not is_type.is_interval(kind)
    if is_type.is_integer(kind) or is_type.is_boolean(kind) or is_time:
        return "int64"
    if is_type.is_floating(kind):
        return "float32"
    if is_type.is_decimal(kind):
        return "float32" if kind.scale > 0 else "int64"
    return "bytes" if is_text(kind) or is_type.is_null(kind) else None


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of a type are texts or binary."""
    return kind in _TEXTS or bool(is_type.is_fixed_size_binary(kind))


def encode_cells(values: pa.Array) -> pa.DictionaryArray:
    """Return the cells of a column as distinct values and their indices; a null is a value."""
    if isinstance(values, pa.ExtensionArray):
        return encode_cells(values.storage)
    kind = values.type
    if is_type.is_dictionary(kind):
        return encode_cells(values.dictionary_decode())
    if is_list(kind):
        return _number_rows(values.cast(pa.list_(_plain(kind.value_type))))
    values = values.cast(_plain(kind))
    head = values.slice(0, _HEAD_ROWS)
    if pc.count_distinct(head).as_py() > max(MAX_LABELS, 3 * len(head) // 4):
        return _number_rows(values)  # to find the few that are equal takes longer
    return pc.dictionary_encode(values, null_encoding="encode")


def _number_rows(values: pa.Array) -> pa.DictionaryArray:
    rows = pa.array(np.arange(len(values), dtype=np.int32))
    return pa.DictionaryArray.from_arrays(rows, values)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type with the same values that conversions know."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if is_type.is_dictionary(kind):
        return _plain(kind.value_type)
    if is_type.is_floating(kind):
        return pa.float64()
    return pa.binary() if is_text(kind) or is_type.is_null(kind) else kind


def to_texts(values: pa.Array) -> pa.Array:
    """Return values as binary texts, for messages, keys and columns that a schema makes BYTES."""
    if has_lists(values):
        return pa.nulls(len(values), pa.binary())
    if values.type == pa.binary():
        return values
    return values.cast(pa.string()).cast(pa.binary())


def text_cells(cells: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return cells as texts that decide placement; a missing value is an empty text."""
    texts = pc.fill_null(to_texts(cells.dictionary), b"")
    merged = pc.dictionary_encode(texts)  # a null and an empty text are equal
    indices = merged.indices.take(cells.indices)
    return pa.DictionaryArray.from_arrays(indices, merged.dictionary)


def convert_values(kind: Kind, values: pa.Array) -> Parsed:
    """Convert values of an Arrow type to those of a feature of numbers.

    Args:
        kind: int64 or float32.
        values: Values as from ``encode_cells``; those of lists may be missing.
    """
    faults = no_faults(values)
    missing = find_missing(values)
    faults[missing] = CellFault.MISSING
    if is_type.is_temporal(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    if kind == "float32":
        doubles = pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy()
        with np.errstate(over="ignore"):
            floats = doubles.astype(np.float32)
        faults[np.isinf(floats) & np.isfinite(doubles)] = CellFault.OVERFLOW
        return Parsed(floats, faults)
    if is_type.is_floating(values.type) or is_type.is_decimal(values.type):
        doubles = pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy()
        inside = (doubles >= INT64_MIN) & (doubles < -INT64_MIN)
        faults[~inside & ~missing] = CellFault.OVERFLOW
        faults[inside & (np.floor(doubles) != doubles)] = CellFault.CAST
    elif is_type.is_uint64(values.type):
        faults[pc.fill_null(values, 0).to_numpy() > INT64_MAX] = CellFault.OVERFLOW
    usable = pa.array(faults != CellFault.NONE)
    values = pc.if_else(usable, pa.scalar(None, values.type), values)
    if is_type.is_boolean(values.type):
        values = values.cast(pa.int8())
    return Parsed(pc.fill_null(values.cast(pa.int64()), 0).to_numpy(), faults)


def in_unit(values: pa.Array, time: TimeKind) -> pa.Array:
    """Return timestamps and dates in the unit of a column of times, and other values as they are.

    Args:
        values: Values as from ``encode_cells``.
        time: See ``Column``.
    """
    kind = values.type
    if not time or not (is_type.is_timestamp(kind) or is_type.is_date(kind)):
        return values
    if time == "date":
        return values.cast(pa.date32(), safe=False)
    if is_type.is_timestamp(kind):
        values = pc.floor_temporal(values, unit="second")
    return values.cast(pa.timestamp("s", getattr(kind, "tz", None)), safe=False)
