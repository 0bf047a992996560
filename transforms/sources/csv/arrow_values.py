"""Values of Arrow types as values of records: the rules for files whose columns have types.

Booleans are 0 and 1. Dates, times, timestamps and durations are int64 in the unit of the file.
Decimals with digits after the point are float32, others int64. Texts, binary values and
enumerations are bytes. A list has 0 to n values; fields of structs are columns named by their path.
``TypedSample`` is the sample of the first rows of such files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.errors import InputError, format_value
from shardmill.schemas.refs import RejectedError
from shardmill.schemas.schema_pbtxt.columns import INT64_MAX, INT64_MIN, Column, TimeKind
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.transforms.sources.csv.cells import to_array
from shardmill.transforms.sources.csv.sample import Sample
from shardmill.transforms.sources.csv.text_parser import (
    EXACT_FLOAT64,
    CellFault,
    Parsed,
    find_missing,
    no_faults,
    to_mask,
)
from shardmill.transforms.tables.table_source import MAX_LABELS, is_list

is_type = pa.types
_TEXTS = (
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
)
_HEAD_ROWS = 2048
_DECIMAL_BITS = 128  # of the smallest decimals that conversions know
_WHOLE = pa.decimal256(76, 0)
_LEAST, _MOST = (pa.scalar(Decimal(number), _WHOLE) for number in (INT64_MIN, INT64_MAX))
PANDAS_INDEX = "__index_level_"  # pandas writes an index without a name as such a column


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
    table = flatten_structs(table)
    return {
        name: encode_cells(to_array(column))
        for name, column in zip(table.column_names, table.columns, strict=True)
        if name in names
    }


def flatten_structs(table: pa.Table) -> pa.Table:
    """Return a table with the fields of structs as columns, whose names are paths."""
    while any(is_type.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def find_type(kind: pa.DataType) -> tuple[Kind, bool] | None:
    """Return the type of the feature, and whether values are lists; None if no feature fits."""
    several = is_list(kind)
    single = kind.value_type if several else kind
    feature_kind = _find_kind(single)
    if feature_kind:
        return (feature_kind, several)
    return None


def _find_kind(kind: pa.DataType) -> Kind | None:
    kind = _plain(kind)
    is_time = is_type.is_temporal(kind) and not is_type.is_interval(kind)
    if is_type.is_integer(kind) or is_type.is_boolean(kind) or is_time:
        return "int64"
    if is_type.is_floating(kind):
        return "float32"
    if is_type.is_decimal(kind):
        if kind.scale > 0:
            return "float32"
        return "int64"
    if kind == pa.binary():
        return "bytes"
    return None


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
        return number_rows(values.cast(pa.list_(_plain(kind.value_type))))
    values = values.cast(_plain(kind))
    head = values.slice(0, _HEAD_ROWS)
    if pc.count_distinct(head).as_py() > max(MAX_LABELS, 3 * len(head) // 4):
        return number_rows(values)  # to find the few that are equal takes longer
    return pc.dictionary_encode(values, null_encoding="encode")


def number_rows(values: pa.Array) -> pa.DictionaryArray:
    """Return values as cells that each refer to their own value."""
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
    if is_type.is_decimal(kind) and kind.bit_width < _DECIMAL_BITS:
        return pa.decimal128(kind.precision, kind.scale)
    if is_text(kind) or is_type.is_null(kind):
        return pa.binary()
    return kind


def to_texts(values: pa.Array) -> pa.Array:
    """Return values as binary texts, for messages, keys and columns that a schema makes BYTES."""
    if is_list(values.type):
        return pa.nulls(len(values), pa.binary())
    if values.type == pa.binary():
        return values
    return values.cast(pa.string()).cast(pa.binary())


def text_cells(cells: pa.DictionaryArray) -> pa.BinaryArray:
    """Return cells as texts that decide placement; a missing value is an empty text."""
    return pc.fill_null(to_texts(cells.dictionary), b"").take(cells.indices)


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
        values = _numbers(values)
    if kind == "float32":
        doubles = pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy()
        with np.errstate(over="ignore"):
            floats = doubles.astype(np.float32)
        faults[np.isinf(floats) & np.isfinite(doubles)] = CellFault.OVERFLOW
        return Parsed(floats, faults)
    if is_type.is_decimal(values.type):
        whole = values.cast(_WHOLE, safe=False)
        inside = pc.and_(pc.greater_equal(whole, _LEAST), pc.less_equal(whole, _MOST))
        in_range = to_mask(pc.fill_null(inside, True))
        is_whole = to_mask(pc.fill_null(pc.equal(pc.trunc(values), values), True))
        faults[~in_range] = CellFault.OVERFLOW
        faults[in_range & ~is_whole] = CellFault.CAST
        values = whole
    elif is_type.is_floating(values.type):
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


def _numbers(values: pa.Array) -> pa.Array:
    """Return dates and times as integers in their unit."""
    integers = pa.int32() if values.type.bit_width == 32 else pa.int64()
    return values.view(integers)


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


_COMPARED = 10_000  # distinct numbers of a column, as float32
_FEW_MERGED = 0.01


class TypedProfile(NamedTuple):
    """The type of a column.

    Attributes:
        path: Name of the column, or names of the structs around it and of its field.
        kind: Its Arrow type.
        full: Whether no value is missing in the rows that were examined.
        rounding: An integer that float32 rounds, or numbers that become equal, as a clause; or
            empty.
        example: A value and the type, for people; no text if all values are missing.
    """

    path: tuple[str, ...]
    kind: pa.DataType
    full: bool = False
    rounding: str = ""
    example: str = ""

    @property
    def is_text(self) -> bool:
        """Whether a cell is a text that could be a number."""
        return False


def same_type(first: pa.DataType, second: pa.DataType) -> bool:
    """Return whether values of two types have the same meaning in records."""
    if is_type.is_null(first) or is_type.is_null(second):
        return True
    return _meaning(first) == _meaning(second)


def _meaning(kind: pa.DataType) -> object:
    unit = kind if is_type.is_temporal(kind) else None
    return find_type(kind), unit


def profile_rows(profiles: Mapping[str, TypedProfile], table: pa.Table) -> dict[str, TypedProfile]:
    """Add the values of some rows to the profiles of their columns."""
    usable = {name for name, profile in profiles.items() if find_type(profile.kind)}
    cells = flatten_columns(table, usable)
    profiled = dict(profiles)
    for name, profile in profiles.items():
        if name in cells:
            profiled[name] = _profile_cells(profile, cells[name])
    return profiled


def _profile_cells(profile: TypedProfile, cells: pa.DictionaryArray) -> TypedProfile:
    """Add some cells to the profile of their column.

    Args:
        profile: The profile.
        cells: The cells, as from ``encode_cells``.
    """
    values = cells.dictionary.drop_null()
    full = not find_missing(cells.dictionary).any()
    if not len(values):
        return profile
    try:
        value = values[0].as_py()
    except (OverflowError, ValueError):  # a date that Python does not have, such as an infinite one
        value = _numbers(values)[0].as_py()
    text = value if isinstance(value, str | bytes) else str(value)
    rounding = ""
    is_float = is_type.is_floating(values.type)
    if is_float or is_type.is_integer(values.type) or is_type.is_decimal(values.type):
        doubles = values.cast(pa.float64(), safe=False).to_numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            floats = doubles.astype(np.float32)
        differs = floats != doubles
        if not is_float:  # such numbers may have been rounded to doubles
            differs |= np.abs(doubles) >= EXACT_FLOAT64
        bad = np.flatnonzero((doubles == np.trunc(doubles)) & np.isfinite(floats) & differs)
        for row in bad.tolist():
            number, becomes = int(values[row].as_py()), int(floats[row])
            if number != becomes:
                rounding = f"{number} becomes {becomes}"
                break
        rounding = rounding or _describe_merged(doubles[:_COMPARED], floats[:_COMPARED])
    return profile._replace(
        full=full, rounding=rounding, example=f"{format_value(text)} ({profile.kind})"
    )


def _describe_merged(doubles: npt.NDArray[Any], floats: npt.NDArray[Any]) -> str:
    """Return a clause with two numbers that become equal as float32, unless few numbers do.

    Of ten thousand random numbers some pairs always do; of times in seconds since 1970 most do.
    """
    values = np.unique(doubles[np.isfinite(floats)])
    merged = np.flatnonzero(np.diff(values.astype(np.float32)) == 0)
    if len(merged) <= len(values) * _FEW_MERGED:
        return ""
    first, second = values[merged[0] : merged[0] + 2].tolist()
    return f"{first} and {second} become equal"


@dataclass(frozen=True)
class TypedSample(Sample):
    """The sample of files whose columns have types; ``profiles`` has a ``TypedProfile`` of each."""

    @staticmethod
    def infer_column(name: str, profile: Any, given: Column | None = None) -> Column:
        """Return the column of a type, or of a given type that replaces it.

        Raises:
            InputError: Records cannot hold such values.
        """
        feature_type = find_type(profile.kind)
        if feature_type is None:
            raise InputError(
                f"The column {name!r} has the type {profile.kind}, which a feature cannot hold "
                "(lists of lists, maps, intervals, lists of structs): leave it out with "
                f"--drop={name}, or of a listing with --features."
            )
        kind, several = feature_type
        column = given or Column(name, kind)
        required = profile.full and not several
        return replace(column, name=name, required=required, several=several)

    @staticmethod
    def merge_profiles(first: Any, second: Any) -> Any:
        """Return the profile of a column of two files.

        Raises:
            RejectedError: They have different types.
        """
        if not same_type(first.kind, second.kind):
            raise RejectedError(
                "read",
                "columns",
                f"its column {'.'.join(second.path)!r} is {second.kind}, and {first.kind} in "
                "other files: give them one type, or state it with --schema",
            )
        kept = second if is_type.is_null(first.kind) else first
        return kept._replace(
            full=first.full and second.full,
            rounding=first.rounding or second.rounding,
            example=first.example or second.example,
        )

    def describe(self, column: Column, *, missing: bool) -> str:  # noqa: ARG002 - not counted
        """Return the type of a column and an example; missing values were not counted."""
        profile = self.profiles.get(column.name)
        example = profile.example if profile else ""
        if example:
            return f"{column.kind}, such as: {example}"
        return column.kind

    def list_findings(self, columns: Sequence[Column]) -> Iterable[str]:  # noqa: ARG002
        """Return nothing: no type was guessed."""
        return ()

    def exact(self, columns: Sequence[Column]) -> tuple[str, ...]:  # noqa: ARG002
        """Return nothing: that decimals become float32 is the rule of their type."""
        return ()


def profiles_of(fields: Iterable[pa.Field]) -> dict[str, TypedProfile]:
    """Return the profile of each column of a schema by its name.

    Raises:
        RejectedError: Two columns have one name.
    """
    profiles: dict[str, TypedProfile] = {}
    for path, kind in flatten_fields(fields):
        name = ".".join(path)
        if name in profiles:
            message = f"it has two columns named {format_value(name)}: rename one of them"
            raise RejectedError("read", "columns", message)
        profiles[name] = TypedProfile(path, kind)
    return profiles
