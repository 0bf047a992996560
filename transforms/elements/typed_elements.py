"""Elements of a PCollection as typed columns, checked against a schema.

An element is a ``tf.train.Example``, its bytes, a mapping, a NamedTuple or a ``beam.Row``. Values
are those of the element: numbers are converted only if that loses nothing but the precision of
float32, and texts become bytes. NaN is a value.

A ``tf.train.Example`` without a schema states the type of each of its features. Bundles of them
are stored as files of the build folder, and a census of the features becomes the schema, with
which the stored examples are read like other elements. Elements are computed once.
"""

from __future__ import annotations

import hashlib
import operator
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.errors import UsageError, format_names
from shardmill.schemas.example.parse import ExampleError, FeatureValues, parse_example
from shardmill.schemas.refs import InputRef, RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.sink.spec import damaged_part
from shardmill.transforms.sources.csv.typed_cells import default_value, find_outside
from shardmill.transforms.sources.python.records import size_of_value
from shardmill.transforms.tables.column_options import unknown_column
from shardmill.transforms.tables.encode import flatten
from shardmill.transforms.tables.run_writer import find_run, run_id, write_blocks
from shardmill.transforms.tables.segments import RunBlock
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


_KINDS: Mapping[str, Kind] = {"int64": "int64", "float": "float32", "bytes": "bytes"}
_SCHEMA_TYPES: Mapping[Kind, str] = {"int64": "INT", "float32": "FLOAT", "bytes": "BYTES"}
_LAYOUT = pa.schema(
    [
        ("key", pa.binary()),
        ("split", pa.binary()),
        ("payload", pa.binary()),
        ("reason", pa.string()),
        ("problem", pa.string()),
    ]
)


class StoredFile(NamedTuple):
    """A file of examples, the elements of one bundle.

    Attributes:
        path: Its path.
        crc32c: CRC-32C of its bytes.
    """

    path: str
    crc32c: int


@dataclass(frozen=True)
class StoredExample:
    """An example, or why an element is none; read by ``values_of`` as a ``tf.train.Example``.

    Attributes:
        key: The key, if a function gave it.
        split: The split, if a function gave it.
        payload: The serialized example.
        reason: Reason of a reject, or empty.
        problem: Message of the reject.
    """

    key: bytes = b""
    split: bytes = b""
    payload: bytes = b""
    reason: str = ""
    problem: str = ""

    def SerializeToString(self) -> bytes:  # noqa: N802 - as protobuf names it
        """Return the serialized example.

        Raises:
            RejectedError: The element is a reject.
        """
        if self.reason:
            raise RejectedError("decode", self.reason, self.problem)
        return self.payload


@dataclass
class FeatureCounts:
    """Counts of the examples in which a feature has one type.

    Attributes:
        examples: Number of examples.
        several: Whether one of them does not have exactly one value.
        key: The smallest key of them.
    """

    examples: int
    several: bool
    key: bytes

    def merge(self, other: FeatureCounts) -> None:
        """Add the counts of other examples."""
        self.examples += other.examples
        self.several |= other.several
        self.key = min(self.key, other.key)


@dataclass
class FeatureCensus:
    """The types of the features of all examples; independent of the order of adding.

    Attributes:
        examples: Number of examples.
        others: Number of elements that are rejects.
        problem: The smallest message of them, or empty.
        features: Counts by the name of the feature and its type.
        failure: Why the elements cannot be written, or empty.
    """

    examples: int = 0
    others: int = 0
    problem: str = ""
    features: dict[str, dict[Kind, FeatureCounts]] = field(default_factory=dict)
    failure: str = ""

    def add(self, features: Mapping[str, FeatureValues], key: bytes) -> None:
        """Count the features of one example."""
        self.examples += 1
        for name, (kind, values) in features.items():
            if kind == "empty":  # TensorFlow reads it as missing
                continue
            counts = FeatureCounts(1, len(values) != 1, key)
            self._merge_feature(name, _KINDS[kind], counts)

    def add_other(self, problem: str) -> None:
        """Count an element that is a reject."""
        self.merge(FeatureCensus(others=1, problem=problem))

    def merge(self, other: FeatureCensus) -> None:
        """Add another census."""
        self.examples += other.examples
        self.others += other.others
        self.problem = min(filter(None, (self.problem, other.problem)), default="")
        self.failure = min(filter(None, (self.failure, other.failure)), default="")
        for name, kinds in other.features.items():
            for kind, counts in kinds.items():
                self._merge_feature(name, kind, counts)

    def _merge_feature(self, name: str, kind: Kind, counts: FeatureCounts) -> None:
        kinds = self.features.setdefault(name, {})
        if kind in kinds:
            kinds[kind].merge(counts)
        else:
            kinds[kind] = replace(counts)

    def columns(self) -> tuple[Column, ...]:
        """Return the schema, sorted by name.

        A feature that has one value in all examples is required; one that has another number of
        values in some is a list.

        Raises:
            UsageError: A feature has two types.
        """
        columns = []
        for name in sorted(self.features, key=str.encode):
            kinds = self.features[name]
            if len(kinds) > 1:
                raise _two_types(name, kinds)
            ((kind, counts),) = kinds.items()
            required = counts.examples == self.examples and not counts.several
            columns.append(Column(name, kind, required=required, several=counts.several))
        return tuple(columns)


def _two_types(name: str, kinds: Mapping[Kind, FeatureCounts]) -> UsageError:
    types = [
        f"{_SCHEMA_TYPES[kind]} in the example {counts.key.decode('utf-8', 'backslashreplace')!r}"
        for kind, counts in sorted(kinds.items())
    ]
    listed = " and ".join(types)
    return UsageError(
        f"The feature {name!r} has two types, {listed}: give all values of a feature one type."
    )


def without_schema(kind: object) -> UsageError:
    """Return the error of elements whose features have no known types."""
    return UsageError(
        f"Elements of the type {kind} have no schema: give schema=, the path or text of a "
        "schema.pbtxt, or elements of a NamedTuple with .with_output_types()."
    )


def resolve_schema(census: FeatureCensus, reader: ElementReader) -> ElementReader | str:
    """Return the reader with the schema of all examples, or why there is none.

    Without any element the reason is empty: the plan of the build has it.

    Args:
        census: Census of all examples.
        reader: Key, split and label of the examples.
    """
    if census.failure:
        return census.failure
    if census.others and not census.examples:
        return (
            f"No element can be written: all {census.others:,} are rejects, such as one for which "
            f"{census.problem}; give tf.train.Examples or bytes of them."
        )
    if not census.examples:
        return ""
    table = reader.table
    try:
        columns = census.columns()
        names = [column.name for column in columns]
        for flag, name in (("key", reader.key), ("split", reader.split), ("label", table.label)):
            if isinstance(name, str) and name not in ("", *names):
                raise unknown_column(flag, name, "the examples have", names)
        if any(column.name == table.label and column.several for column in columns):
            raise UsageError(
                f"--label={table.label} has several values, or none, in some examples: choose a "
                "feature with one value."
            )
    except UsageError as error:
        return str(error)
    columns = tuple(replace(c, required=c.required or c.name == table.label) for c in columns)
    return replace(
        reader,
        table=replace(table, columns=columns),
        key=_stored(reader.key, "key"),
        split=_stored(reader.split, "split"),
    )


def _stored(getter: Getter, name: str) -> Getter:
    """Return what gives a key or split of a stored example: functions took the element."""
    if callable(getter):
        return operator.attrgetter(name)
    return getter


def store_examples(
    elements: Sequence[Any], folder: str, config_id: str, reader: ElementReader
) -> tuple[StoredFile | None, FeatureCensus]:
    """Store the examples of a bundle, or find the same file; return it and their census.

    Args:
        elements: Elements of a bundle, in any order.
        folder: Folder of the build.
        config_id: Identity of the build's options.
        reader: Key and split of the elements.
    """
    census = FeatureCensus()
    stored = []
    try:
        for element in elements:
            example, features = _store(element, reader)
            stored.append(example)
            if features is None:
                census.add_other(example.problem)
            else:
                census.add(features, example.key or _key_in(features, reader.key))
    except UsageError as error:
        return None, FeatureCensus(failure=str(error))
    return _write(stored, folder, config_id), census


def _store(
    element: Any, reader: ElementReader
) -> tuple[StoredExample, dict[str, FeatureValues] | None]:
    """Return an element as it is stored, and its features if it is an example."""
    is_bytes = isinstance(element, bytes)
    if isinstance(element, Mapping) or hasattr(element, "_asdict"):
        raise without_schema(type(element).__name__)
    key = split = payload = b""
    try:
        if callable(reader.key):
            key = to_text("key", reader.key(element))
        if callable(reader.split):
            split = to_text("split", reader.split(element))
        if not is_bytes and not hasattr(element, "SerializeToString"):
            message = f"{type(element).__name__} is not an Example or bytes of one"
            raise RejectedError("decode", "decode", message)
        payload = element if is_bytes else element.SerializeToString()
        return StoredExample(key, split, payload), parse_example(payload)
    except ExampleError as error:
        return StoredExample(key, split, b"", "decode", str(error)), None
    except RejectedError as problem:
        return StoredExample(key, split, b"", problem.error, problem.message), None


def _key_in(features: Mapping[str, FeatureValues], key: Getter) -> bytes:
    """Return the key of an example for a message, or no bytes."""
    if not isinstance(key, str) or key not in features or not features[key].values:
        return b""
    first = features[key].values[0]
    if isinstance(first, bytes):
        return first
    return str(first).encode()


def _write(stored: Sequence[StoredExample], folder: str, config_id: str) -> StoredFile:
    # Its content names a file, as that of a run: a bundle that is processed again gives the same.
    rows = sorted(stored, key=operator.attrgetter("key", "payload", "split", "problem"))
    columns = [list(map(operator.attrgetter(name), rows)) for name in _LAYOUT.names]
    table = pa.table(columns, schema=_LAYOUT)
    content = pa.BufferOutputStream()
    with pa.ipc.new_stream(content, _LAYOUT) as stream:
        stream.write_table(table)
    data = content.getvalue().to_pybytes()
    crc32c = google_crc32c.value(data)
    name = run_id(config_id, "examples", hashlib.blake2b(data, digest_size=16).hexdigest())
    block = RunBlock("", 0, 0, len(data), crc32c, len(data))
    made = find_run(folder, name) or write_blocks(folder, name, [(block, data)])
    return StoredFile(join(folder, made.payload), crc32c)


def read_stored(file: StoredFile) -> list[StoredExample]:
    """Return the examples of a file.

    Raises:
        OutputError: The file is damaged.
        FileNotFoundError: It does not exist.
    """
    data = open_storage(file.path).read(file.path)
    if google_crc32c.value(data) != file.crc32c:
        raise damaged_part(file.path)
    table = pa.ipc.open_stream(data).read_all()
    columns = [table[name].to_pylist() for name in _LAYOUT.names]
    return list(map(StoredExample, *columns))
