"""Elements of a PCollection as typed columns, checked against a schema.

An element is a ``tf.train.Example``, its bytes, a mapping, a NamedTuple or a ``beam.Row``. Values
are those of the element: numbers are converted only if that loses nothing but the precision of
float32, and texts become bytes. NaN is a value.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.errors import format_names
from shardmill.schemas.example.parse import ExampleError, parse_example
from shardmill.schemas.refs import InputRef, RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.sources.csv.typed_cells import default_value, find_outside
from shardmill.transforms.sources.python.records import size_of_value
from shardmill.transforms.tables.encode import flatten
from shardmill.transforms.tables.table_source import (
    ARROW_TYPES,
    RejectCollector,
    TableSpec,
    TextTable,
    TypedBatch,
    TypedColumn,
    is_list,
)

Getter = str | Callable[[Any], Any]  # a name of a feature, or a function of the element
_ELEMENT_BYTES = 64  # of an element in memory, besides its values
# The order of a set differs between processes, and Arrow ignores a mask.
_UNCLEAR = (set, np.ma.MaskedArray)
_CONVERSION_ERRORS = (pa.ArrowException, ArithmeticError, TypeError, ValueError)


@dataclass(frozen=True)
class ElementReader(TextTable):
    """Reads elements by a schema.

    Attributes:
        table: The schema, and the names of the texts that decide the placement.
        key: Gives the key of an element.
        split: Gives the name of its split; by default, shares decide it.
    """

    table: TableSpec
    key: Getter
    split: Getter = ""

    def read(self, elements: Sequence[Any]) -> tuple[TypedBatch, list[bytes]]:
        """Return the values of elements, and their keys; bad elements are rejected."""
        lists = {column.name for column in self.table.columns if column.several or column.separator}
        names = {column.name for column in self.table.columns}
        names |= {name for name in (self.key, self.split) if isinstance(name, str)}
        read = [_read_element(self, element, lists, names) for element in elements]
        numbers = np.arange(len(read))
        rejects = RejectCollector(numbers, numbers + 1)
        rejects.most = len(read)  # the bundle decides which elements are the first
        problems = [element.problem for element in read]
        reasons = np.array([problem.error if problem else "" for problem in problems])
        rejects.add(reasons != "", reasons, "", lambda row: str(problems[row].message))  # type: ignore[union-attr]
        columns = []
        for column in self.table.columns:
            values = [element.values.get(column.name) for element in read]
            typed = _type_column(column, values, rejects)
            columns.append(typed)
        keys = [element.key for element in read]
        named = {self.table.key: keys, self.table.split_by: [element.split for element in read]}
        texts = {name: pa.array(values, pa.binary()) for name, values in named.items()}
        return TypedBatch(InputRef("", ""), columns, rejects, texts, len(read), ""), keys


class _Element(NamedTuple):
    """An element: its key and split as texts, its values, and why it is rejected, if it is."""

    key: bytes
    split: bytes
    values: Mapping[str, Any]
    problem: RejectedError | None


def _read_element(
    reader: ElementReader, element: Any, lists: set[str], names: set[str]
) -> _Element:
    key = split = b""
    try:
        if callable(reader.key):
            key = to_text("key", reader.key(element))
        values = values_of(element, lists)
        if not callable(reader.key):
            key = to_text("key", values.get(reader.key))
        if reader.split:
            if callable(reader.split):
                split_value = reader.split(element)
            elif reader.split in values:
                split_value = values[reader.split]
            else:
                message = f"it has no field {reader.split!r}, which names its split"
                raise RejectedError("decode", "no_split", message)
            split = to_text("split", split_value)
        if not values.keys() <= names:
            extra = format_names(sorted(map(str, values.keys() - names)))
            message = f"the schema does not name {extra}: add it there, or remove it before"
            raise RejectedError("decode", "columns", message)
    except RejectedError as problem:
        return _Element(key, split, {}, problem)
    return _Element(key, split, values, None)


def values_of(element: Any, lists: set[str]) -> Mapping[str, Any]:
    """Return the values of an element by name.

    Args:
        element: The element.
        lists: Names of the features of an Example that may have any number of values.

    Raises:
        RejectedError: It is not an Example, a mapping or a row.
    """
    if isinstance(element, Mapping):
        return element
    if hasattr(element, "_asdict"):  # a NamedTuple or a beam.Row
        values: Mapping[str, Any] = element._asdict()
        return values
    if not isinstance(element, bytes) and not hasattr(element, "SerializeToString"):
        message = f"{type(element).__name__} is not an Example, bytes of one, a mapping or a row"
        raise RejectedError("decode", "decode", message)
    try:
        payload = element if isinstance(element, bytes) else element.SerializeToString()
        features = parse_example(payload).items()
    except ExampleError as error:
        raise RejectedError("decode", "decode", str(error)) from error
    decoded: dict[str, Any] = {}
    for name, (_, listed) in features:
        is_single = len(listed) == 1 and name not in lists
        decoded[name] = listed[0] if is_single else listed or None
    return decoded


def size_of(element: Any) -> int:
    """Return the approximate bytes that an element takes in memory."""
    if hasattr(element, "ByteSize"):
        return int(element.ByteSize()) + _ELEMENT_BYTES
    if hasattr(element, "_asdict"):
        element = element._asdict()
    return size_of_value(element)


def to_text(word: str, value: Any) -> bytes:
    """Return a key or the name of a split as bytes; none for a missing one."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace")
    if value is None or isinstance(value, bytes):
        return value or b""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return b"%d" % int(value)
    message = f"the {word} is of type {type(value).__name__}: give a text, bytes or an integer"
    raise RejectedError("decode", "cast", message)


def _type_column(column: Column, values: list[Any], rejects: RejectCollector) -> TypedColumn:
    """Return the values of a feature; reject the elements whose values do not fit."""
    kind = ARROW_TYPES[column.kind]
    kind = pa.list_(kind) if column.several or column.separator else kind
    wrong: dict[int, str] = {}
    try:
        typed = _convert(values, kind)
    except _CONVERSION_ERRORS:  # of some elements, or of types that Arrow does not mix
        fitting = []
        for row, value in enumerate(values):
            try:
                fitting.append(_convert([value], kind))
            except _CONVERSION_ERRORS:
                wrong[row] = f"{reprlib.repr(value)} is not {kind}, the type in the schema"
                fitting.append(pa.nulls(1, kind))
        typed = pa.concat_arrays(fitting)
    if column.default is not None:
        typed = pc.coalesce(typed, default_value(column)[0])
    bad = np.zeros(len(values), bool)
    bad[[*wrong]] = True
    rejects.add(bad, "cast", column.name, lambda row: wrong[row])
    if column.required:
        missing = pc.is_null(typed).to_numpy(zero_copy_only=False)
        rejects.add(missing, "missing", column.name, lambda _: "a value is required but missing")
    reason, rule = "range", "outside the bounds"
    if column.values is not None:
        reason, rule = "domain", "not in the string_domain"
    flat, offsets = flatten(typed)
    message = f"a value is {rule}: change it, or the domain in the schema"
    outside = _rows_of(find_outside(column, flat), offsets)
    rejects.add(outside, reason, column.name, lambda _: message)
    return TypedColumn(column.name, column.kind, typed)


def _convert(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array of a type.

    Raises:
        Exception: One of ``_CONVERSION_ERRORS``: a value does not fit.
    """
    if any(isinstance(value, _UNCLEAR) for value in values):
        raise TypeError
    array = pa.array(values)
    if is_list(array.type) != is_list(kind) and array.type != pa.null():
        raise TypeError
    flat, offsets = flatten(array)
    flat_kind = kind if offsets is None or not is_list(kind) else kind.value_type
    is_number = pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type)
    is_number |= pa.types.is_boolean(flat.type)
    if flat.null_count or (len(flat) and is_number == pa.types.is_binary(flat_kind)):
        raise TypeError
    if pa.types.is_floating(flat_kind) and pa.types.is_integer(flat.type):  # as those among floats
        doubles = pa.float64() if flat_kind is kind else pa.list_(pa.float64())
        array = array.cast(doubles, safe=False)
    typed = array.cast(kind)
    if pa.types.is_floating(flat_kind):
        overflows = np.isinf(flatten(typed)[0].to_numpy())
        if overflows.any() and np.isfinite(flat.cast(pa.float64()).to_numpy()[overflows]).any():
            raise OverflowError
    return typed


def _rows_of(
    wrong: npt.NDArray[np.bool_], offsets: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.bool_]:
    """Return which rows have a wrong value; bool[rows]."""
    if offsets is None:
        return wrong
    before = np.concatenate([[0], np.cumsum(wrong)])
    rows: npt.NDArray[np.bool_] = np.diff(before[offsets]) > 0
    return rows
