"""Write the records of a Python source to files, which a build reads.

A file has at most one unit, and its name the index of the first record and the digest of the file.
Reading the source again finds the files that an interrupted call has finished. A list names the
files: what other calls leave in the folder is not an input.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from blake3 import blake3

from shardmill.schemas.errors import InputError, UsageError, format_names
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.numbers import plural
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.schemas.schema_pbtxt.image_features import IMAGE_FEATURES
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.match.containers.expand import SpooledImage, pack_images
from shardmill.transforms.match.walk import make_key
from shardmill.transforms.runtime import progress
from shardmill.transforms.sources.csv.arrow_values import (
    TypedProfile,
    encode_cells,
    find_type,
    is_text,
    profile_rows,
)
from shardmill.transforms.sources.csv.cells import to_array
from shardmill.transforms.sources.csv.text_parser import CellFault, CellRules
from shardmill.transforms.sources.csv.typed_cells import type_cells
from shardmill.transforms.sources.listings import ListingOptions
from shardmill.transforms.sources.parquet.parquet_source import FIRST_RECORD
from shardmill.transforms.sources.python.records import (
    Batch,
    describe_missing_field,
    invalid_image,
    invalid_table,
    invalid_value,
    is_encodable,
    to_storable,
    to_table,
    unencodable_text,
    without_views,
)
from shardmill.transforms.tables.byte_arrays import ByteStrings
from shardmill.transforms.tables.table_source import is_list

KEY = "__key__"  # column of the keys that a function returns
LIST = "list-{}.txt"  # names of the files of a digest
COLUMNS = "columns-{}.json"  # the other columns than images, which are features
_MAX_CLASSES = 1 << 16  # of labels that are numbers
_MAX_ATTACHED = 64 << 10  # bytes of the other fields of an image, which cross shuffles


@dataclass
class TableFiles:
    """Parquet files of the records of a source."""

    suffix: ClassVar = ".parquet"

    def encode(self, table: pa.Table, first: int) -> bytes:
        """Return the file of a unit; see ``ImageFiles.encode``."""
        table = table.combine_chunks().replace_schema_metadata({FIRST_RECORD: str(first)})
        file = io.BytesIO()
        size, options = len(table), {"write_statistics": False, "write_page_checksum": True}
        try:
            pq.write_table(table, file, row_group_size=size, **options)
        except pa.ArrowNotImplementedError as error:  # an interval of DuckDB
            raise invalid_table(error) from error
        return file.getvalue()


@dataclass
class ImageFiles:
    """Archives of the images of a source.

    Attributes:
        image: Field of the images.
        key: Field of their keys; by default, their places in the source identify them.
        label: Field of their labels, if they have any.
        split: Field of their splits, if it names them.
        classes: Number of classes if all labels are such numbers, from 0; 0 before the first.
        features: The value of ``--features``, which may choose among the other fields.
        columns: Other fields, which become features named ``image/NAME``.
        lacking: Names of those that some records lack.
        rounded: An example of an integer that float32 rounds, by their names.
        unused: Fields that do not: lists of lists and the like, and names of other features.
        lowest_label: The lowest label that is a number, if it is negative.
    """

    image: str
    key: str
    label: str
    split: str
    classes: int | None = field(default=0, init=False)
    features: str = ""
    columns: dict[str, Column] = field(default_factory=dict, init=False)
    lacking: set[str] = field(default_factory=set, init=False)
    rounded: dict[str, str] = field(default_factory=dict, init=False)
    unused: tuple[str, ...] = field(default=(), init=False)
    lowest_label: int = field(default=0, init=False)
    suffix: ClassVar = ".tar"

    def encode(self, table: pa.Table, first: int) -> bytes:
        """Return the archive of the images of a unit; see ``images``."""
        file = io.BytesIO()
        pack_images(self.images(table, first), file)
        return file.getvalue()

    def images(self, table: pa.Table, first: int) -> Iterator[SpooledImage]:
        """Yield the images of a table.

        Args:
            table: The records.
            first: Index of the first one in the source.

        Raises:
            ShardmillError: A field is missing, or a value is not of its kind.
        """
        parts = [f"{self.image}.bytes", f"{self.image}.path"]  # as Hugging Face has them
        split_up = self.image not in table.column_names and parts[0] in table.column_names
        image = parts[0] if split_up else self.image
        used = [image, *filter(None, (self.key, self.label, self.split))]
        others = [name for name in table.column_names if name not in (*used, *parts)]
        chosen = ListingOptions(features=self.features).choose(others)
        attached = self._attach(table.select(chosen), first)
        data = self._read_images(table, image, first)
        keys = self._read_texts(table, self.key, first)
        labels = self._read_texts(table, self.label, first)
        splits = self._read_texts(table, self.split, first)
        if self.label and self.classes is not None:
            self._count_classes(_whole_numbers(table[self.label]))
        for row, index in enumerate(range(first, first + len(table))):
            key = make_key(keys[row] or "") if self.key else f"record:{index}"
            label = make_key(labels[row] or "") if self.label else None
            content = data[row] or b""
            digest = blake3(content).hexdigest(16)
            message = ""
            if data[row] is None:
                message = f"record {index} has no image: its field {self.image!r} is None"
            elif not content:
                message = f"the image {self.image!r} of record {index} has no bytes or is damaged"
            error = "empty" if message else ""
            if self.label and not label and not error:
                message = f"record {index} has no label in its field {self.label!r}"
            yield SpooledImage(
                index,
                key,
                label,
                splits[row] or "",
                digest,
                content,
                attached[row],
                error=error,
                message=message,
            )

    def _attach(self, table: pa.Table, first: int) -> list[bytes]:
        """Return the values of other fields for each record, as ``InputRef.attached`` has them.

        Raises:
            InputError: A value does not fit into a feature.
        """
        rows: list[dict[str, Any]] = [{} for _ in range(len(table))]
        unused = []
        for name, values in zip(table.column_names, table.columns, strict=True):
            kind = find_type(values.type)
            if kind is None or f"image/{name}" in IMAGE_FEATURES:
                unused.append(name)
                continue
            # Until it has a value, its type is that of null.
            column = Column(name, kind[0], required=False, several=kind[1])
            if not pa.types.is_null(values.type) or name not in self.columns:
                self.columns[name] = column
            cells = _convert_cells(column, values, first)
            if column.kind == "float32" and name not in self.rounded:
                profiles = {name: TypedProfile((name,), values.type)}
                profile = profile_rows(profiles, pa.table({name: values}))[name]
                rounding = {name: profile.rounding} if profile.rounding else {}
                self.rounded |= rounding
            for row, value in zip(rows, cells, strict=True):
                if value is None:
                    self.lacking.add(name)
                elif value != []:
                    row[f"listing/{name}"] = value
        self.unused = tuple(unused)
        attached = []
        for index, row in enumerate(rows, first):
            encoded = encode_example(row) if row else b""
            if len(encoded) > _MAX_ATTACHED:
                raise InputError(
                    f"Record {index} has {plural(len(encoded), 'byte')} in other fields than its "
                    f"image, {format_names(table.column_names)}, over the limit of "
                    f"{plural(_MAX_ATTACHED, 'byte')}: leave the large ones out of the source."
                )
            attached.append(encoded)
        return attached

    def describe_columns(self) -> str:
        """Return the other fields that are features as JSON, or an empty text.

        A field that a record lacks is not required, nor is one of lists, which may be empty.
        """
        described = [
            [name, column.kind, not column.several and name not in self.lacking, column.several]
            for name, column in self.columns.items()
        ]
        if described:
            return json.dumps(described)
        return ""

    def _read_images(self, table: pa.Table, name: str, first: int) -> list[bytes | None]:
        values = self._column(table, name)
        kind = values.type
        texts = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
        is_binary = is_text(kind) and not any(check(kind) for check in texts)
        if not (pa.types.is_null(kind) or is_binary):
            raise invalid_image(index=first, name=self.image, kind=kind)
        data: list[bytes | None] = values.to_pylist()
        path = f"{self.image}.path"
        if name != self.image and path in table.column_names:
            for row, value in enumerate(table[path].to_pylist()):
                if value and data[row] is None:
                    raise InputError(
                        f"Record {first + row} has the path of an image, {value!r}, and no bytes: "
                        "give the folder of such files to shardmill.images."
                    )
        return data

    def _read_texts(self, table: pa.Table, name: str, first: int) -> list[str | None]:
        """Return the values of a field of keys, labels or splits; none if it has no name.

        Raises:
            InputError: A value is not a text in UTF-8 or an integer, or a key is missing.
        """
        values = self._column(table, name) if name else pa.nulls(len(table))
        try:
            texts: list[str | None] = _whole_numbers(values).cast(pa.string()).to_pylist()
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise self._not_a_name(values, name, first) from error
        if name == self.key and name and None in texts:
            raise InputError(
                f"Record {first + texts.index(None)} has no value in its key {name!r}: give it "
                "one, or use another field."
            )
        return texts

    def _not_a_name(self, values: pa.ChunkedArray, name: str, first: int) -> InputError:
        """Return the error for the first value that is not a key, a label or a split."""
        expected, fix = "a text or an integer", "convert it, as with str()"
        kind = values.type
        if is_list(kind):
            fix = f"give one value, as record[{name!r}][0] is"
        elif is_text(kind):
            values = values.cast(pa.binary())  # as_py() would fail
            expected, fix = "a text in UTF-8", "decode it, as with value.decode('latin-1')"
        elif pa.types.is_floating(values.type):
            fix = "give whole numbers, or texts by str()"
            if name == self.label:
                fix += f"; for a target to predict, which is a feature, leave out label={name!r}"
        for row, value in enumerate(values):
            try:
                _whole_numbers(pa.chunked_array([[value.as_py()]], values.type)).cast(pa.string())
            except (pa.ArrowException, UnicodeDecodeError):
                reported = repr(value.as_py())
                return invalid_value(first + row, name, reported, kind, expected, fix)
        raise AssertionError(f"each value of {name!r} is a text or an integer, but not all")

    def _column(self, table: pa.Table, name: str) -> pa.ChunkedArray:
        if name not in table.column_names:
            names = format_names(table.column_names)
            raise UsageError(describe_missing_field(name=name, names=names))
        return table[name]

    def _count_classes(self, labels: pa.ChunkedArray) -> None:
        if pa.types.is_integer(labels.type):
            low, high = (bound or 0 for bound in pc.min_max(labels).as_py().values())
            are_classes = 0 <= low <= high < _MAX_CLASSES
            self.classes = max(self.classes or 0, high + 1) if are_classes else None
            self.lowest_label = min(self.lowest_label, low)
        elif not pa.types.is_null(labels.type):
            self.classes = None


def _whole_numbers(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return floats as integers, and NaN as missing, as pandas writes integers with gaps.

    Raises:
        ArrowException: A float is not an integer, or the values are lists or times.
    """
    kind = values.type
    if pa.types.is_nested(kind) or pa.types.is_temporal(kind):
        raise pa.ArrowInvalid(f"{kind} is not a text or an integer")
    if not pa.types.is_floating(kind):
        return values
    floats = values.cast(pa.float64())
    return pc.if_else(pc.is_nan(floats), None, floats).cast(pa.int64())


def read_columns(path: str) -> tuple[Column, ...]:
    """Return the other columns than images that are features, as ``describe_columns`` gives them.

    Args:
        path: Path of the list of files; see ``LIST``.
    """
    folder, _, name = path.rpartition("/")
    digest = name.removeprefix("list-").removesuffix(".txt")
    try:
        text = open_storage(folder).read(join(folder, COLUMNS.format(digest)))
    except FileNotFoundError:
        return ()
    return tuple(
        Column(column, kind, required=required, several=several)
        for column, kind, required, several in json.loads(text)
    )


def _convert_cells(column: Column, values: pa.ChunkedArray, first: int) -> list[Any]:
    """Convert the values of a field to those of its feature; missing ones are None.

    Raises:
        InputError: A value does not fit.
    """
    cells = encode_cells(to_array(without_views(values)))
    typed = type_cells(column, cells, CellRules(texts=frozenset()))
    faults = typed.faults
    if faults is not None:
        row = int(np.flatnonzero(faults)[0])
        rule, fix = f"one that {column.kind} holds", "convert it, as with str()"
        if faults[row] == CellFault.MISSING:
            rule, fix = "a list without missing values", "fill them in, or give None for the list"
        raise invalid_value(
            index=first + row,
            name=column.name,
            value=repr(values[row].as_py()),
            kind=values.type,
            expected=rule,
            fix=fix,
        )
    converted: list[Any] = typed.values.to_pylist()
    return converted


def write_spool(
    units: Iterable[Batch],
    folder: str,
    key: Callable[[Any], Any] | None,
    files: TableFiles | ImageFiles,
    class_label: str = "",
) -> str:
    """Write the records of a source to files in a folder, except those that it has.

    Returns a digest of all values and types, which does not depend on how they are stored.

    Args:
        units: The records; see ``read_units``.
        folder: The folder.
        key: Returns the key of a record, if it is not a field.
        files: The kind of files.
        class_label: Field of a label of Hugging Face ``datasets``, in which -1 means none.

    Raises:
        ShardmillError: The source has no record, or one that does not fit; or the storage failed.
    """
    storage = open_storage(folder)
    existing = {e.name: e for e in storage.list_dir(folder) if e.name.endswith(files.suffix)}
    values, names, first, progress_display = blake3(), [], 0, progress.current()
    schema: pa.Schema | None = None
    for unit in units:
        keyed = _with_keys(unit, key, first) if key else unit
        table = to_table(keyed, schema, first)
        table = _without_unlabeled(table, class_label)
        # Columns that had no value before get a type.
        schema = pa.unify_schemas([schema, table.schema]) if schema else table.schema
        for name, column in zip(table.column_names, table.columns, strict=True):
            values.update(name.encode())
            hash_values(values, column.combine_chunks())
        data = files.encode(to_storable(table), first)
        name = f"{first:015d}-{blake3(data).hexdigest(16)}{files.suffix}"
        path = join(folder, name)
        entry = existing.pop(name, None)
        crc32c = google_crc32c.value(data)
        if entry is None or entry.size != len(data) or storage.checksum(path) != crc32c:
            if existing:
                note = f"The source is not the one that was interrupted from record {first:,} on."
                progress_display.notices.append(note)
            for other in existing:
                storage.delete(join(folder, other))
            existing = {}
            storage.replace(path, data)
        names.append(name)
        first += len(table)
        progress_display.add(len(table))
    if not first:
        raise InputError(
            "The source has no records: give it some; an iterator can be read only once."
        )
    for name in existing:
        storage.delete(join(folder, name))
    listed = "".join(f"{name}\n" for name in names)
    digest: str = values.hexdigest(16)
    # Another call for this output may write other values at the same time.
    described = getattr(files, "describe_columns", str)()
    if described:
        storage.replace(join(folder, COLUMNS.format(digest)), described.encode())
    storage.replace(join(folder, LIST.format(digest)), listed.encode())
    return digest


def _with_keys(unit: Batch, key: Callable[[Any], Any], first: int) -> list[dict[str, Any]]:
    """Return records with the keys that a function gives them.

    Raises:
        InputError: It gives None, as a function without a return does, or what has no bytes.
    """
    records = unit.to_pylist() if isinstance(unit, pa.Table) else unit
    keyed = []
    for index, record in enumerate(records, first):
        value = key(record)
        text = str(value)
        if value is None:
            raise InputError(
                f"The function of key=... returned None for record {index}: let it return a text "
                "or number that identifies the record."
            )
        if not is_encodable(text):
            raise unencodable_text(index, KEY, repr(text), type(value).__name__)
        keyed.append({**record, KEY: text})
    return keyed


def _without_unlabeled(table: pa.Table, class_label: str) -> pa.Table:
    """Return a table in which labels of -1 are missing."""
    if class_label not in table.column_names:
        return table
    labels = table[class_label]
    if not pa.types.is_integer(labels.type) or not pc.any(pc.equal(labels, -1)).as_py():
        return table
    labels = pc.if_else(pc.equal(labels, -1), pa.scalar(None, labels.type), labels)
    return table.set_column(table.column_names.index(class_label), class_label, labels)


def hash_values(digest: Any, values: pa.Array, kind: pa.DataType | None = None) -> None:
    """Add values to a digest: not the slots of missing ones, nor how Arrow stores them.

    Args:
        digest: A hash of BLAKE3.
        values: The values.
        kind: Their type in the source, which is part of the digest; by default, that of the array.
    """
    kind = values.type if kind is None else kind
    if isinstance(values, pa.ExtensionArray):
        hash_values(digest, values.storage)
        return
    values = without_views(values)
    if pa.types.is_dictionary(kind):
        hash_values(digest, values.dictionary_decode())
        return
    digest.update(f"{kind}:{len(values)}".encode())
    digest.update(np.packbits(values.is_valid().to_numpy(zero_copy_only=False)))
    values = values.drop_null()
    if pa.types.is_struct(kind):
        for field, child in zip(kind, values.flatten(), strict=True):
            hash_values(digest, child, field.type)
    elif is_list(kind):
        digest.update(pc.list_value_length(values).cast(pa.int64()).to_numpy().tobytes())
        hash_values(digest, values.flatten(), kind.value_type)
    elif is_text(kind):
        texts = ByteStrings.of_arrow(values.cast(pa.large_binary()))
        digest.update(texts.sizes.tobytes())
        digest.update(texts.data)
    elif pa.types.is_boolean(kind):
        digest.update(values.cast(pa.uint8()).to_numpy().tobytes())
    elif pa.types.is_nested(kind):  # which no feature can hold, but a column that is dropped
        digest.update(repr(values.to_pylist()).encode())
    elif len(values) and not pa.types.is_null(kind):
        width = kind.bit_width // 8
        start = values.offset * width
        digest.update(values.buffers()[1].slice(start, len(values) * width).to_pybytes())
