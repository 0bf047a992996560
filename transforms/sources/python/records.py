"""Records of any Python source, in units of limited size, as Arrow tables of one schema.

Libraries are recognised by their methods: none is imported. A table gives its columns through
Arrow's C stream interface, as pandas, Polars, PyArrow and DuckDB have it, or in batches, as
Hugging Face ``datasets`` that are not streamed. All others give dicts, one after the other.
"""

from __future__ import annotations

import bisect
import contextlib
import datetime as dt
import os
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from reprlib import repr  # noqa: A004 - which cuts long values
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.errors import InputError, ShardmillError, UsageError, format_names
from shardmill.transforms.sources.csv.arrow_values import PANDAS_INDEX, is_text
from shardmill.transforms.tables.table_source import is_list

UNIT_ROWS, UNIT_BYTES = 1 << 16, 64 << 20
_STEP = 1 << 10  # rows of a table that are measured at a time
_MISFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
_MISREAD = {"Object", "bit", "time with time zone"}  # types of Polars, and of DuckDB
_TIMES = dt.date | dt.time | dt.timedelta | np.datetime64 | np.timedelta64
_LOSSES = {
    "set": "a list, whose order is the same in each run",
    "zone": "a time of day without a time zone",
    "nanoseconds": "one without nanoseconds, which columns of the type datetime64[ns] keep",
}
SAME_TYPE = "give all records values of one type, and None for missing ones"
_REPLACE_SURROGATES = (
    "replace its lone surrogates, as text.encode('utf-8', 'replace').decode() does"
)
_UNITS = {"M": ("Y", "M", "W", "D", "h", "m", "generic"), "m": ("W", "D", "h", "m")}
Record = dict[str, Any]
Batch: TypeAlias = pa.Table | list[Record]
Piece: TypeAlias = tuple[Record, int, int]  # a record, 1, and its bytes


def _to_record(index: int, value: Any, image: str, names: Sequence[str]) -> Record:
    """Return a record as a new dict, since sources may use theirs again.

    Raises:
        InputError: The value is not a dict, or has no image.
    """
    if names and isinstance(value, tuple | list) and len(value) == len(names):
        value = dict(zip(names, value, strict=True))
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _source_record_invalid(index=index, value=repr(value))
    if image and not index and image not in value:
        raise InputError(describe_missing_field(name=image, names=format_names([*value])))
    record = {}
    for name, field in value.items():
        if image and name == image:
            record[name] = to_bytes(index, name, field)
            continue
        try:
            record[name] = _plain(field)
        except (RuntimeError, TypeError, ValueError) as error:  # such as a tensor of bfloat16
            raise _misfit(index, name, field, "one that NumPy can hold") from error
    return record


def to_bytes(index: int, name: str, value: Any) -> Any:
    """Return the bytes of an image of Pillow, or of an array: a file of equal pixels.

    Images are turned upright, as their Exif orientation says. An image that Pillow fails to load
    has no bytes, and becomes a reject. Other values are returned as they are.

    Args:
        index: Place of the record in the source.
        name: Name of the field.
        value: The value; see ``from_pixels``.

    Raises:
        InputError: It is neither, or ``from_pixels`` does not take its type or shape.
    """
    if value is None or isinstance(value, bytes | dict):
        return value
    from shardmill.transforms.sources.python.lossless import (  # slow to import
        encode_lossless,
        from_pixels,
    )

    try:
        image = from_pixels(value)
    except (TypeError, ValueError) as error:
        raise invalid_image(index=index, name=name, kind=_describe_pixels(value)) from error
    if isinstance(image, bytes):
        return image
    try:
        return encode_lossless(image)
    except (OSError, SyntaxError, ValueError):  # it is loaded only now
        return b""


def _describe_pixels(value: Any) -> str:
    """Return the type of a value, with that of its elements and its shape if it is an array."""
    kind = type(value).__name__
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return kind
    mask = " and masked pixels" if np.ma.is_masked(value) else ""
    return f"{kind} of {value.dtype} with the shape {tuple(value.shape)}{mask}"


def read_units(source: Any, image: str, names: Sequence[str]) -> Generator[Batch, None, None]:
    """Yield the records of a source: at most ``UNIT_ROWS`` and about ``UNIT_BYTES`` at a time.

    Args:
        source: The source.
        image: Field of images, if it has any.
        names: Names of the items of records that are tuples, if there are any.

    Raises:
        UsageError: It is not a source.
        InputError: A record is not a dict, or an image not one.
    """
    stored = None if names else find_stored(source)
    if stored is not None:
        yield from _cut(_slices(stored.with_format("arrow").iter(_STEP)))
    elif not names and hasattr(source, "__arrow_c_stream__") and not hasattr(source, "with_format"):
        batches = _open_table(source)
        yield from _cut(_slices(pa.Table.from_batches([batch]) for batch in batches))
    else:
        records = (_to_record(*item, image, names) for item in enumerate(_iterate(source)))
        yield from _cut((record, 1, size_of_value(record)) for record in records)


def find_version(source: Any, used: Collection[str]) -> str | None:
    """Return the fingerprint of Hugging Face ``datasets``, or None.

    Releases before 0.3.0 ignored formats, and wrote images without their other fields: they must
    not make their datasets up to date.

    Args:
        source: The source.
        used: Names of the fields of an image, its key, label and split; empty without images.
    """
    fingerprint: str | None = getattr(source, "_fingerprint", None)
    form = getattr(source, "format", None)
    if fingerprint is None or not isinstance(form, dict):
        return fingerprint
    names = source.column_names if form["output_all_columns"] else form["columns"]
    columns = {*names}
    is_whole = not form["format_kwargs"] and columns == {*source.column_names}
    has_others = bool(used) and not columns <= {*used}
    if has_others or not is_whole:
        return f"{fingerprint} of 0.3"
    return fingerprint


def find_stored(source: Any) -> Any:
    """Return Hugging Face ``datasets`` whose tables have what ``source[index]`` gives, or None.

    A format such as that of NumPy or PyTorch says how values are held, and which columns there are.
    One with options, such as a function of ``set_transform``, makes other values of them.
    """
    if not (hasattr(source, "with_format") and hasattr(source, "__len__")):
        return None
    form = source.format
    if form["format_kwargs"]:
        return None
    if form["output_all_columns"]:
        return source
    return source.select_columns(form["columns"])


def _open_table(source: Any) -> pa.RecordBatchReader:
    """Return a reader of a table.

    Raises:
        UsageError: It is a single column.
        InputError: Arrow has no type for a column, or two have one name.
    """
    source = _with_index(source)
    types = _types_of(source)
    for name, kind in types.items():
        if "\0" in name:  # where the names of Arrow's interface end
            raise invalid_table(f"the name {name!r} has a NUL")
        if not _MISREAD.isdisjoint(_type_names(kind)):
            raise unsupported_column(name=name, kind=kind)
    try:
        reader = pa.RecordBatchReader.from_stream(source)
    except _MISFIT as error:
        raise _explain_table(source, types, error) from error
    if len({*reader.schema.names}) < len(reader.schema.names):
        raise _source_fields_alike(format_names(reader.schema.names))
    check_types(reader.schema, types)
    for name, kind in types.items():
        if str(kind) == "object" and _may_change(reader.schema.field(name).type):  # of pandas
            _check_kinds(name, _objects(source, name), 0)
    return reader


def _with_index(source: Any) -> Any:
    """Return a pandas table with its index stored as values; a range has none.

    Arrow makes a column of an index with a name, but not of a range.
    """
    index = getattr(source, "index", None)
    is_range = hasattr(index, "step") and hasattr(source, "columns")
    if is_range and getattr(index, "name", None) is not None:
        return source.set_axis(source.index.astype("object"))
    return source


def _types_of(source: Any) -> dict[str, Any]:
    """Return the types of the columns of a table, as its library names them."""
    schema = getattr(source, "schema", None)
    dtypes: Any = getattr(source, "dtypes", None)
    if isinstance(schema, Mapping):  # of Polars
        return dict(schema)
    if hasattr(dtypes, "items"):  # of pandas
        return {str(name): kind for name, kind in dtypes.items()}
    if isinstance(dtypes, list):
        columns = getattr(source, "columns", None)
        if isinstance(columns, list):
            return dict(zip(columns, dtypes, strict=True))  # of DuckDB
    return {}


def _type_names(kind: Any) -> Iterator[str]:
    """Yield the names of a type of Polars or DuckDB and of the types in it."""
    name = str(getattr(kind, "id", kind))
    yield name
    if name in ("array", "list", "map", "struct", "union"):  # of DuckDB
        for _, inner in kind.children:
            yield from _type_names(inner)


def _objects(source: Any, name: str) -> list[Any]:
    """Return the values of a column of objects of pandas, and None for missing ones."""
    column = source.iloc[:, [*map(str, source.columns)].index(name)]
    pairs = zip(column, column.notna(), strict=True)
    return [value if is_value else None for value, is_value in pairs]


def _explain_table(source: Any, types: Mapping[str, Any], error: Exception) -> ShardmillError:
    """Describe the first column of a table that Arrow cannot hold alone.

    Raises:
        InputError: The first value of it that does not fit.
    """
    names = [*map(str, getattr(source, "columns", ()))]
    if not names:
        return _not_a_source(source)
    if len({*names}) < len(names):
        return _source_fields_alike(format_names(names))
    selectable = names if hasattr(source, "__getitem__") else ()
    for number, name in enumerate(selectable):
        try:
            pa.RecordBatchReader.from_stream(source[[source.columns[number]]])
        except _MISFIT:
            kind = types.get(name, "")
            if str(kind) == "object":
                _to_array(name, _objects(source, name), 0)
            return unsupported_column(name=name, kind=kind)
    is_text = isinstance(error, UnicodeError)  # whose arguments are the text
    reason = str(error) if is_text else ": ".join(map(str, error.args))
    return invalid_table(reason)


def check_types(schema: Iterable[pa.Field], types: Mapping[str, Any]) -> None:
    """Check that files can hold the types of columns.

    Args:
        schema: Name and type of each.
        types: Types as their library names them, where it does.

    Raises:
        InputError: They cannot.
    """
    for field in schema:
        if not _can_store(field.type):
            kind = types.get(field.name, field.type)
            raise unsupported_column(name=field.name, kind=kind)


def _can_store(kind: pa.DataType) -> bool:
    """Return whether Parquet files can hold values of a type so that they are read again."""
    types = pa.types
    if isinstance(kind, pa.OpaqueType) or types.is_union(kind) or types.is_interval(kind):
        return False
    if isinstance(kind, pa.BaseExtensionType):
        return _can_store(kind.storage_type)
    if types.is_dictionary(kind):
        inner = kind.value_type
        return not isinstance(inner, pa.BaseExtensionType) and _can_store(inner)
    if types.is_decimal(kind):
        return bool(kind.scale >= 0)
    if types.is_struct(kind):
        return all(_can_store(field.type) for field in kind)
    if types.is_map(kind):
        return _can_store(kind.key_type) and _can_store(kind.item_type)
    return not is_list(kind) or _can_store(kind.value_type)


def _iterate(source: Any) -> Iterator[Any]:
    """Return an iterator of the records of a source that has no table.

    Raises:
        UsageError: It is not a source.
    """
    if isinstance(source, Mapping):
        _check_columns(source)
        rows = zip(*source.values(), strict=True)
        return (dict(zip(source, values, strict=True)) for values in rows)
    if not isinstance(source, str | bytes | os.PathLike):
        if hasattr(source, "__iter__"):
            return iter(source)
        if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
            return (source[index] for index in range(len(source)))
    raise _not_a_source(source)


def _check_columns(columns: Mapping[Any, Any]) -> None:
    """Check that the values of a dict are columns of one length.

    Raises:
        UsageError: They are not.
    """
    if not columns:
        raise _not_a_source(columns)
    if {*columns} == {"index", "columns", "data"}:
        raise UsageError(
            "The source is a dict of index, columns and data, as of DataFrame.to_dict('split'): "
            "give the table itself, or its to_dict('list')."
        )
    lengths: dict[Any, int] = {}
    for name, column in columns.items():
        if isinstance(column, Mapping) or hasattr(column, "columns"):  # of tables
            raise UsageError(
                f"The column {name!r} of the source is a {type(column).__name__}, not a list or an "
                "array of one value a record: give a table itself, or its to_dict('list'); of a "
                "dict of records give its values()."
            )
        is_scalar = isinstance(column, str | bytes | AbstractSet) or getattr(column, "ndim", 1) == 0
        if is_scalar or not hasattr(column, "__len__"):
            kind = type(column).__name__
            raise UsageError(
                f"The column {name!r} of the source is {repr(column)} ({kind}), not a list or an "
                "array of one value a record: a dict holds columns; for a single record give a "
                "list of it, write([record], ...)."
            )
        lengths[name] = len(column)
    first, length = next(iter(lengths.items()))
    for name, other in lengths.items():
        if other != length:
            raise UsageError(
                f"The columns of the source have different lengths, {first!r} {length:,} and "
                f"{name!r} {other:,}: give each column one value a record, and None for missing "
                "ones."
            )


def _not_a_source(source: Any) -> UsageError:
    return UsageError(
        f"A {type(source).__name__} is not a source of records: give a table (pandas, Polars, "
        "PyArrow, Hugging Face), a dict of columns of one length, or an iterable or indexable "
        "object of dicts; for files use shardmill.rows, shardmill.images or shardmill.arrays."
    )


def _cut(pieces: Iterable[tuple[Any, int, int]]) -> Iterator[Batch]:
    """Cut consecutive records, or tables, given with their numbers and bytes, into units."""
    held: list[Any] = []
    rows = num_bytes = 0
    for piece, more, size in pieces:
        held.append(piece)
        rows += more
        num_bytes += size
        if rows >= UNIT_ROWS or num_bytes >= UNIT_BYTES:
            yield _join(held)
            held, rows, num_bytes = [], 0, 0
    if held:
        yield _join(held)


def _join(held: list[Any]) -> Batch:
    if isinstance(held[0], dict):
        return held
    return pa.concat_tables(held, promote_options="default")


def _slices(tables: Iterable[pa.Table]) -> Iterator[tuple[pa.Table, int, int]]:
    for table in tables:
        plain = table.drop([name for name in table.column_names if name.startswith(PANDAS_INDEX)])
        plain = plain.replace_schema_metadata(None)
        for start in range(0, len(plain), _STEP):
            piece = plain.slice(start, _STEP)
            yield piece, len(piece), _num_bytes(piece)


def _num_bytes(table: pa.Table) -> int:
    """Return the bytes of a table; Arrow 21 to 23 cannot count those of views of texts."""
    try:
        return int(table.nbytes)
    except pa.ArrowTypeError:
        return sum(without_views(column).nbytes for column in table.columns)


def size_of_value(value: Any) -> int:
    """Return about the bytes of a value, by its content: getsizeof depends on how it was made."""
    if isinstance(value, Mapping):
        return sum(map(size_of_value, value.values()))
    if isinstance(value, list | tuple):
        if not value or isinstance(value[0], int | float):
            return 32 + 8 * len(value)
        return 32 + sum(map(size_of_value, value))
    if isinstance(value, str | bytes | bytearray):
        return 32 + len(value)
    return int(getattr(value, "nbytes", 32))


def _plain(value: Any) -> Any:
    """Return a value, or a copy if the source may change it, or the scalar of a 0-d array."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        if not value or isinstance(value[0], int | float | str | bytes):
            return value.copy()
        return [_plain(element) for element in value]
    if isinstance(value, dt.datetime | dt.timedelta):  # Arrow ignores nanoseconds of pandas
        has_more = getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)
        return getattr(value, "asm8", value) if has_more else value
    if isinstance(value, np.ma.MaskedArray):
        return value.tolist()
    if isinstance(value, set):
        return frozenset(value)  # no type of Arrow: the order of a set differs between runs
    if not hasattr(value, "__array__"):
        return value
    array = np.asarray(value)
    kind = array.dtype.kind
    if kind in _UNITS and np.datetime_data(array.dtype)[0] in _UNITS[kind]:  # not those of Arrow
        return array.tolist()
    if isinstance(value, np.generic):
        return value
    array = array.copy()
    return array if array.ndim else array[()]


def to_table(unit: Batch, schema: pa.Schema | None, first: int) -> pa.Table:
    """Return a unit as a table with the columns and types of earlier units.

    Fields of dicts and structs are columns with their path as name. A column without values has the
    type null.

    Args:
        unit: The records.
        schema: Columns and types of the earlier units; None for the first unit, whose values
            decide them.
        first: Index of the first record in the source.

    Raises:
        InputError: A value does not fit, or a record has a field that earlier units lack.
    """
    count = len(unit)
    if isinstance(unit, list):
        names = dict.fromkeys(chain.from_iterable(unit))
        if not names and schema is None:
            raise _source_record_invalid(index=first, value=repr(unit[0]))
        for name in names:
            if not is_encodable(name):
                index = first + next(n for n, record in enumerate(unit) if name in record)
                raise _source_record_invalid(index=index, value=repr({name: ...}))
        unit = pa.table(_to_arrays(names, unit, first))
    while any(pa.types.is_struct(field.type) for field in unit.schema):
        unit = unit.flatten()
    check_types(unit.schema, {})
    columns = dict(zip(unit.column_names, map(_without_type, unit.columns), strict=True))
    if len(columns) < unit.num_columns:
        raise _source_fields_alike(format_names(unit.column_names))
    if schema is None:
        return pa.table(columns)
    for name, values in columns.items():
        if name not in schema.names and not pa.types.is_null(values.type):
            index = first + pc.index(values.is_valid(), True).as_py()
            raise InputError(
                f"Record {index} has the field {name!r}, which the records of the first file lack: "
                "give it to one of the first records, as None where it has no value."
            )
    missing = pa.chunked_array([pa.nulls(count)])
    pairs = [(field, columns.get(field.name, missing)) for field in schema]
    return pa.table({field.name: _conform(field, values, first) for field, values in pairs})


def is_encodable(text: str) -> bool:
    """Return whether UTF-8 has bytes for a text: it has none for a lone surrogate."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _check_kinds(name: str, values: Sequence[Any], first: int) -> None:
    """Check that a column has no values that Arrow would change in silence.

    Among times without a zone, it takes one with a zone for UTC, and a number for microseconds; of
    a time among dates it takes the day, and a boolean among floats for 1. It drops the zone of a
    time of day, and the nanoseconds of pandas. The order of a set differs between runs.

    Args:
        name: Name of the column.
        values: Its values; lists and dicts are looked into.
        first: Index of the first one in the source.

    Raises:
        InputError: It has one.
    """
    if not _find_conflict(values):
        return
    lengths = range(len(values) + 1)
    row = bisect.bisect_left(lengths, True, key=lambda n: bool(_find_conflict(values[:n]))) - 1
    expected = _find_conflict(values[: row + 1])
    fix = "convert it, or leave it out" if expected in _LOSSES.values() else SAME_TYPE
    raise _misfit(first + row, name, values[row], expected, fix)


def _find_conflict(values: Sequence[Any]) -> str:
    """Return the kind that all values should have, or an empty text if they have one."""
    kinds: dict[str, None] = {}
    types = dict.fromkeys(map(type, values))
    for kind in types:
        has_one = len(types) == 1
        some = values if has_one else [value for value in values if type(value) is kind]
        for inner in _inner_values(kind, some):
            conflict = _find_conflict(inner)
            if conflict:
                return conflict
        kinds |= dict.fromkeys(_kinds_of(kind, some))
    kinds.pop("", None)
    rule = next((kind for kind in kinds if kind in _LOSSES), "")
    if rule or len(kinds) < 2:
        return _LOSSES.get(rule, "")
    return f"{next(iter(kinds))} as those before it"


def _inner_values(kind: type, values: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the contents of dicts or lists: the values of each name, or of all lists."""
    if issubclass(kind, Mapping):
        for name in dict.fromkeys(chain.from_iterable(values)):
            yield [value[name] for value in values if name in value]
    elif issubclass(kind, np.ndarray):
        yield [*chain.from_iterable(array.tolist() for array in values if array.dtype == object)]
    elif issubclass(kind, list | tuple):
        yield [*chain.from_iterable(values)]


def _kinds_of(kind: type, values: Sequence[Any]) -> Iterable[str]:
    """Return the kinds of values of one type that Arrow may change to those of others."""
    if issubclass(kind, _TIMES):
        return map(_kind_of_time, values)
    if issubclass(kind, bool | np.bool_):
        return ["a boolean"]
    if issubclass(kind, int | float | np.number):
        return ["a number"]
    if issubclass(kind, set | frozenset):
        return ["set"]
    return []


def _kind_of_time(value: Any) -> str:
    """Return the kind of a date, time or duration; empty for one that is missing."""
    if value != value:  # noqa: PLR0124 - NaT
        return ""
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        return "nanoseconds"
    if isinstance(value, dt.timedelta | np.timedelta64):
        return "a duration"
    if isinstance(value, np.datetime64):
        has_time = np.datetime_data(value.dtype)[0] not in ("D", "M", "W", "Y")
        if has_time:
            return "a time without a time zone"
        return "a date"
    if isinstance(value, dt.time):
        if value.tzinfo is None:
            return "a time of day"
        return "zone"
    if isinstance(value, dt.datetime):
        if value.tzinfo:
            return "a time with a time zone"
        return "a time without a time zone"
    return "a date"


def _may_change(kind: pa.DataType) -> bool:
    """Return whether Arrow may have changed values of several kinds to those of a type."""
    if pa.types.is_struct(kind):
        return any(_may_change(field.type) for field in kind)
    return is_list(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)


def _to_arrays(
    names: Iterable[str], records: Sequence[Mapping[str, Any]], first: int
) -> dict[str, pa.Array]:
    arrays = {}
    for name in names:
        values = [record.get(name) for record in records]
        arrays[name] = _to_array(name, values, first)
    return arrays


def _to_array(name: str, values: list[Any], first: int) -> pa.Array:
    """Return values of one type, which they decide.

    Raises:
        InputError: They have several types, or one that Arrow does not have.
    """
    with contextlib.suppress(*_MISFIT):
        array = pa.array(values)
        if _may_change(array.type):
            _check_kinds(name, values, first)
        return array
    _check_kinds(name, values, first)
    kind, arrays = pa.null(), []
    for index, value in enumerate(values, first):
        try:
            array = pa.array([value])
        except UnicodeEncodeError as error:
            raise unencodable_text(index, name, repr(value), type(value).__name__) from error
        except _MISFIT as error:
            raise _explain_value(index, name, value) from error
        kind = array.type if pa.types.is_null(kind) else kind
        try:
            arrays.append(_cast(array, kind))
        except _MISFIT as error:
            raise _misfit(index, name, value, kind) from error
    return pa.concat_arrays([chunk.cast(kind) for chunk in arrays])


def _without_type(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a column, or nulls if all are missing or empty lists."""
    if pa.types.is_run_end_encoded(values.type):
        values = without_views(values)
    if pa.types.is_run_end_encoded(values.type):
        values = pc.run_end_decode(values)
    kind = _stored_type(values.type)
    if values.type != kind:
        values = values.cast(kind)
    empty = values.null_count == len(values)
    if is_list(values.type) and pa.types.is_null(values.type.value_type):
        empty = not pc.sum(pc.list_value_length(values)).as_py()
    if empty:
        return pa.chunked_array([pa.nulls(len(values))])
    return values


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """Return a type of the same values that PyArrow writes to Parquet and reads again."""
    if pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type):  # of Polars
        return pa.dictionary(kind.index_type, pa.string())
    if is_list(kind):
        inner = _stored_type(kind.value_type)
        if inner != kind.value_type or pa.types.is_fixed_size_list(kind):  # which may be missing
            return pa.large_list(inner)
    return kind


def to_storable(table: pa.Table) -> pa.Table:
    """Return a table with columns of equal values, which PyArrow writes to Parquet."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = without_views(column).combine_chunks()
        if pa.types.is_dictionary(values.type) and values.dictionary.null_count:
            values = values.dictionary_decode()
        columns[name] = values
    return pa.table(columns)


def without_views(values: Any) -> Any:
    """Return an array or a column without Arrow's views, for which Arrow has few kernels."""
    kind = _without_views(values.type)
    if kind == values.type:
        return values
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([without_views(chunk) for chunk in values.chunks], kind)
    if pa.types.is_run_end_encoded(values.type):
        return pa.array(values.to_pylist(), kind)
    if is_list(kind):  # Arrow casts some views of lists to invalid arrays
        sizes = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]))
        items = without_views(values.flatten())
        return pa.LargeListArray.from_arrays(offsets, items, kind, mask=values.is_null())
    return values.cast(kind)


def _without_views(kind: pa.DataType) -> pa.DataType:
    """Return a type of the same values without views of texts, bytes and lists."""
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_views(kind.value_type), kind.ordered)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), _without_views(kind.item_type))
    if is_list(kind):
        inner = _without_views(kind.value_type)
        is_view = types.is_list_view(kind) or types.is_large_list_view(kind)
        if is_view or inner != kind.value_type:
            return pa.large_list(inner)
        return kind
    if types.is_run_end_encoded(kind):
        inner = _without_views(kind.value_type)
        if inner == kind.value_type:
            return kind
        return inner
    return kind


def _conform(field: pa.Field, values: pa.ChunkedArray, first: int) -> pa.ChunkedArray:
    """Return values of a column with its type; with their own if it has none yet."""
    kind = field.type
    if pa.types.is_null(kind) or values.type == kind:
        return values
    with contextlib.suppress(*_MISFIT):
        return _cast(values, kind)
    for row, value in enumerate(values):
        try:
            _cast(without_views(values).take([row]), kind)  # a slice would cast all items of lists
        except _MISFIT as error:
            raise _misfit(first + row, field.name, value.as_py(), kind) from error
    raise AssertionError(f"each value of {field.name!r} is of {kind}, but not all")


def _explain_value(index: int, name: str, value: Any) -> InputError:
    """Return why Arrow cannot hold a value of a record."""
    reported = value
    while isinstance(reported, list | tuple | Mapping):
        items = [*reported.values()] if isinstance(reported, Mapping) else reported
        bad = [item for item in items if not _is_storable(item)]
        if not bad:  # each item fits, but they have several types
            return _misfit(index, name, value, "a list of values of one type")
        reported = bad[0]
    is_integer = isinstance(reported, int | np.integer)
    is_long = is_integer and abs(int(reported)) >> 256  # Python formats up to 4,300 digits
    text = "an integer of over 256 bits" if is_long else repr(reported)
    text = f"{text} ({type(reported).__name__})"
    rule = "a field is a number, a text, bytes, a time, or a list of one of these"
    fix = "convert it, as with str() or float(), or leave it out"
    if is_integer:
        rule = "integers are those of 64 bits, from -2**63 to 2**63 - 1"
        fix = "give this field as text, str(value), or as float(value), which rounds it"
    if isinstance(reported, np.ndarray) and reported.ndim > 1:
        text = f"an array of the shape {reported.shape} and the type {reported.dtype}"
        rule = "a field is a value or a list of values"
        fix = f"give value.reshape(-1), and for images image={name!r}"
    return InputError(
        f"Record {index}: the field {name!r} is {text}, which a dataset cannot hold: {rule}; {fix}."
    )


def _is_storable(value: Any) -> bool:
    """Return whether Arrow has a type for a value."""
    try:
        pa.array([value])
    except _MISFIT:
        return False
    return True


def _misfit(
    index: int, name: str, value: Any, kind: pa.DataType | str, fix: str = SAME_TYPE
) -> InputError:
    expected = kind if isinstance(kind, str) else f"of {kind}"
    return invalid_value(index, name, repr(value), type(value).__name__, expected, fix)


def invalid_table(reason: object) -> InputError:
    """Return the error for columns that do not fit into a table of Arrow."""
    return InputError(
        f"The columns of the source do not fit into a table of Arrow ({reason}): convert or rename "
        "such a column, or leave it out."
    )


def invalid_value(
    index: object,
    name: object,
    value: object,
    kind: object,
    expected: object,
    fix: str = SAME_TYPE,
) -> InputError:
    """Return the error for a value that its field cannot hold."""
    return InputError(
        f"Record {index}: the field {name!r} is {value} ({kind}), not {expected}: {fix}."
    )


def unencodable_text(index: object, name: object, value: object, kind: object) -> InputError:
    """Return the error for a text with lone surrogates."""
    expected = "a text that UTF-8 can encode"
    return invalid_value(index, name, value, kind, expected, _REPLACE_SURROGATES)


def _source_fields_alike(names: object) -> InputError:
    return InputError(f"The source has two fields of one name among {names}: rename one.")


def _source_record_invalid(index: object, value: object) -> InputError:
    return InputError(
        f"Record {index} is {value}: each must be a dict with texts as names of fields, or a tuple "
        "of which fields=(...) names the items."
    )


def describe_missing_field(name: object, names: object) -> str:
    """Return the sentence for a field that the source lacks."""
    return f"The source has no field {name!r}, only {names}: change image, key, label or split."


def invalid_image(index: object, name: object, kind: object) -> InputError:
    """Return the error for a field that is not an image."""
    return InputError(
        f"Record {index}: the field {name!r} is a {kind}, not an image: give the bytes of an image "
        "file, an image of Pillow, or an array of uint8 or uint16 with the shape [height, width] "
        "or [height, width, channels] and 1 to 4 channels."
    )


def unsupported_column(name: object, kind: object) -> InputError:
    """Return the error for a column with a type that a dataset cannot hold."""
    return InputError(
        f"The column {name!r} of the source has the type {kind}, which a dataset cannot hold: "
        "convert it to numbers, texts, times or lists of one of these, or leave it out."
    )


def _cast(values: Any, kind: pa.DataType) -> Any:
    """Return values with another type of equal meaning.

    Raises:
        ArrowException: A value would change.
    """
    if values.null_count < len(values) and _meaning(values.type) != _meaning(kind):
        raise pa.ArrowInvalid(f"{values.type} is not {kind}")
    return values.cast(kind)


def _meaning(kind: pa.DataType) -> object:
    """Return a key that types share if Arrow converts their values without changing them."""
    if is_list(kind):
        return "list", _meaning(kind.value_type)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if pa.types.is_timestamp(kind):  # Arrow would take times without a zone for times in UTC
        return "timestamp", kind.tz is None
    if is_text(kind):
        return "text"
    return kind.id
