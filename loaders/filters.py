"""Filters by column: which records of a selection have some values, from catalogs or records."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from shardmill.loaders.records import Records
from shardmill.loaders.source import LONG_NAMES, Source, record_unlike_schema
from shardmill.loaders.split_statistics import read_catalog_columns
from shardmill.schemas.dataset.catalog import column_names
from shardmill.schemas.errors import FormatError, UsageError, format_names
from shardmill.schemas.example.parse import FeatureValues, parse_example
from shardmill.schemas.numbers import plural
from shardmill.schemas.schema_pbtxt.feature_spec import FeatureSpec
from shardmill.schemas.user_warnings import warn_user

_LISTING = "image/"  # prefix of the features that columns of listings become
_TO_LIST = ("tolist", "to_pylist", "to_list")  # of NumPy and pandas, Arrow, Polars


class ColumnValues(NamedTuple):
    """A column of all records of a source.

    Attributes:
        name: Its name as the filter gives it.
        values: A value of each record: str, int, float, bool, a list of them, or None for no value;
            bytes where these are not UTF-8.
        is_text: Whether the values are text; None without values.
        has_lists: Whether the values are lists.
        is_float32: Whether the values are rounded to float32.
    """

    name: str
    values: list[Any]
    is_text: bool | None
    has_lists: bool = False
    is_float32: bool = False


def filter_records(records: Records, where: Mapping[str, Any]) -> Records:
    """Returns the records whose columns have some values.

    A column is one of the catalog of images, which is read without the records. Or it is a feature
    of the records, as columns of tables and listings are: then all records are read once.

    Args:
        records: The records.
        where: By column, a value, several values, or a predicate on a value. Of a column of lists,
            a value keeps the records whose list is or contains it.

    Raises:
        InputError: A catalog or record cannot be read.
        UsageError: There is no such column or label, a column has values of another type, or a
            predicate failed.
    """
    if not len(records.source):
        return records
    kept = np.ones(len(records.source), bool)
    columns = read_columns(records, list(where))
    for column, condition in zip(columns, where.values(), strict=True):
        keeps = condition if callable(condition) else _matcher(records.source, column, condition)
        kept &= np.array([_evaluate(column.name, keeps, value) for value in column.values], bool)
    filtered = records.keep(kept)
    if len(records) and not len(filtered):
        warn_of_none(records, where)
    return filtered


def warn_of_none(records: Records, where: Callable[[Any], object] | Mapping[str, Any]) -> None:
    """Warns that a filter keeps none of some records."""
    source = records.source
    examples = plural(len(records), "example")
    warn_user(
        f"where={_describe(where):.300} keeps none of the {examples} of {source.selection.split} "
        f"of {source.folder}: check the columns and values that it names."
    )


def _describe(condition: Any) -> str:
    """Returns a filter as text; of a function its place, which a user can find."""
    if isinstance(condition, Mapping):
        items = (f"{name!r}: {_describe(value)}" for name, value in condition.items())
        return f"{{{', '.join(items)}}}"
    code = getattr(condition, "__code__", None)
    if code is None:
        return repr(condition)
    return f"<{condition.__name__} in {code.co_filename}, line {code.co_firstlineno}>"


def _evaluate(name: str, keeps: Callable[[Any], object], value: Any) -> bool:
    try:
        return bool(keeps(value))
    except Exception as error:
        raise UsageError(
            f"where={{{name!r}: ...}} raised {error!r:.200} for the value {value!r:.80}: repair "
            "the function; a record without a value has None."
        ) from error


def read_columns(
    records: Records, names: Sequence[Any], option: str = "where"
) -> list[ColumnValues]:
    """Returns columns of all records of a source.

    Args:
        records: The records.
        names: Names of the columns; see ``filter_records``.
        option: The option that names them, for messages.

    Raises:
        InputError: A catalog or record cannot be read.
        UsageError: There is no such column.
    """
    source = records.source
    has_catalog = bool(source.shards) and all(shard.catalog for shard in source.shards)
    of_catalog = column_names() if has_catalog else []
    specs = {
        name: _spec_of(source, name, of_catalog, option) for name in names if name not in of_catalog
    }
    columns: dict[Any, ColumnValues] = {}
    in_catalog = [name for name in names if name in of_catalog]
    if in_catalog:
        lists = read_catalog_columns(records, in_catalog)
        columns |= {n: _of_catalog(n, values) for n, values in zip(in_catalog, lists, strict=True)}
    if specs:
        lists = _read_features(records, list(specs.values()))
        columns |= {
            name: ColumnValues(
                name, values, spec.kind == "bytes", not spec.single, spec.kind == "float32"
            )
            for (name, spec), values in zip(specs.items(), lists, strict=True)
        }
    return [columns[name] for name in names]


def _of_catalog(name: str, values: list[Any]) -> ColumnValues:
    some = next((value for value in values if value is not None), None)
    is_text = None if some is None else isinstance(some, str)
    return ColumnValues(name, values, is_text, _is_list(some))


def _spec_of(source: Source, name: Any, of_catalog: Sequence[str], option: str) -> FeatureSpec:
    """Returns the feature of a column; the prefix of a listing's column may be left out.

    Raises:
        UsageError: There is none.
    """
    specs = {
        spec.name: spec
        for spec in source.specs
        if not (spec.encoding or spec.value or spec.indices or spec.parts)
    }
    for feature in (name, LONG_NAMES.get(name), f"{_LISTING}{name}"):
        if feature in specs:
            return specs[feature]
    if {name, LONG_NAMES.get(name)} & source.lacking:
        source.check_labeled()
    columns = [*of_catalog, *specs]
    near = difflib.get_close_matches(str(name), columns, 1)
    place = "catalog has" if of_catalog else "records have"
    hint = f"; did you mean {near[0]!r}? The columns are" if near else ", only"
    listed = ", ".join(columns) or "none"
    raise UsageError(f"{option}: the {place} no column {name!r:.80}{hint} {listed}.")


def _read_features(records: Records, specs: Sequence[FeatureSpec]) -> list[list[Any]]:
    """Returns the values of features of all records of a source; reads all records.

    Raises:
        InputError: A record cannot be read.
    """
    columns: list[list[Any]] = [[] for _ in specs]
    for number, part in enumerate(records.source.selection.parts):
        for record, payload in records.files.records(number, part.first, part.stop):
            try:
                features = parse_example(payload)
            except FormatError as error:
                raise record_unlike_schema(
                    path=records.source.paths[number],
                    record=record,
                    error=error,
                    folder=records.source.folder_of(number),
                ) from error
            for spec, column in zip(specs, columns, strict=True):
                column.append(_value_of(spec, features))
    return columns


def _value_of(spec: FeatureSpec, features: Mapping[str, FeatureValues]) -> Any:
    feature = features.get(spec.name)
    values = [] if feature is None else [_to_text(value) for value in feature.values]
    if spec.single:
        if values:
            return values[0]
        return None
    return values


def _to_text(value: bytes | float) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _matcher(source: Source, column: ColumnValues, condition: Any) -> Callable[[Any], bool]:
    """Returns a predicate: whether a column's value meets a condition.

    Raises:
        UsageError: One is of another type, or a label is unknown.
    """
    values = _list_values(condition)
    if column.name == "label" and column.is_text is not False:
        _check_labels(source, condition, values)
    for value in values:
        _check_type(column, value)
    if column.is_float32:
        values = [_to_float32(value) for value in values]
    if column.has_lists:
        return partial(_matches_list, values)
    try:
        chosen: Collection[Any] = frozenset(values)
    except TypeError:  # lists cannot be hashed
        chosen = values
    return lambda value: value in chosen


def _list_values(condition: Any) -> list[Any]:
    """Returns the values of a condition: one, or several in any collection."""
    for name in _TO_LIST:
        if hasattr(condition, name):
            condition = getattr(condition, name)()
            break
    if isinstance(condition, Iterable) and not isinstance(condition, str | bytes):
        return [list(value) if isinstance(value, tuple) else value for value in condition]
    return [condition]


def _check_labels(source: Source, condition: Any, values: Sequence[Any]) -> None:
    if any(value is not None for value in values):
        source.check_labeled()
    if source.manifest.label_separator:
        raise UsageError(
            f"where: label={condition!r} cannot select records that have several labels: give a "
            "predicate on the joined text, or on a record."
        )
    for value in values:
        if isinstance(value, str) and value not in source.manifest.labels:
            names = format_names(source.manifest.labels) or "none"
            raise UsageError(f"where: the dataset has no label {value!r}: it has {names}.")


def _check_type(column: ColumnValues, value: Any) -> None:
    parts = value if column.has_lists and _is_list(value) else [value]
    for part in parts:
        types = str if column.is_text else int | float | np.number | np.bool_
        if part is None or column.is_text is None or isinstance(part, types):
            continue
        kind = "str" if column.is_text else "numbers or lists of them"
        raise UsageError(
            f"where={{{column.name!r}: {part!r:.60}}}: the values of the column are {kind}."
        )


def _to_float32(value: Any) -> Any:
    if _is_list(value):
        return [_to_float32(part) for part in value]
    if value is None:
        return None
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _matches_list(chosen: Sequence[Any], values: list[Any] | None) -> bool:
    """Returns whether a list is one of some values, or has one of them; None is an empty list."""
    if not values:
        return any(value is None or value == [] for value in chosen)
    return any(value == values or value in values for value in chosen)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)
