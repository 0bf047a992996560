"""Examples without a schema: stored first, since their types are known when all were seen.

A ``tf.train.Example`` states the type of each of its features. Bundles are stored as files of the
build folder, and a census of the features becomes the schema, with which the stored examples are
read like other elements. Elements are computed once.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import google_crc32c
import pyarrow as pa

from shardmill.schemas.errors import UsageError
from shardmill.schemas.example.parse import ExampleError, FeatureValues, parse_example
from shardmill.schemas.refs import RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.elements.typed_elements import ElementReader, Getter, to_text
from shardmill.transforms.sink.spec import damaged_part
from shardmill.transforms.tables.column_options import unknown_column
from shardmill.transforms.tables.run_writer import find_run, run_id, write_blocks
from shardmill.transforms.tables.segments import RunBlock

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
    return operator.attrgetter(name) if callable(getter) else getter


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
    return first if isinstance(first, bytes) else str(first).encode()


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
