"""Images in archives without random access: compressed tar archives, Parquet files and TFRecords.

They are read once, in sequence, and their images written as they are to an archive in the build
folder, which a repeated step finds.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Literal

import pyarrow as pa
from blake3 import blake3

from shardmill.schemas.decompress import DecompressionError, decompress
from shardmill.schemas.errors import FormatError, InputError, format_names
from shardmill.schemas.example.parse import (
    ExampleError,
    FeatureValues,
    looks_like_example,
    parse_example,
)
from shardmill.schemas.file_signatures import compression_format
from shardmill.schemas.refs import InputRef, MatchCounts, MemberRange, RejectedError
from shardmill.schemas.storage import RandomReader, join, open_storage
from shardmill.schemas.tfrecord.reader import open_records
from shardmill.transforms.match.containers.expand import (
    MemberOptions,
    Members,
    SpooledImage,
    damaged_archive,
    expand_members,
    list_spool,
    list_tar,
    pack_images,
)
from shardmill.transforms.match.labels import LabelError, LabelOrder, read_label, sort_labels
from shardmill.transforms.match.read_input import MAX_FILE_BYTES
from shardmill.transforms.sources.csv.arrow_values import is_text
from shardmill.transforms.sources.csv.source import check_unchanged
from shardmill.transforms.sources.parquet.parquet_source import (
    open_parquet,
    read_footer,
    read_tables,
)
from shardmill.transforms.tables.table_source import is_list

_STEP, _BYTES = 64, 8 << 20  # rows that are decoded at a time, and bytes that are held
# Of Hugging Face ``datasets``; of TensorFlow's Object Detection API and of Shardmill.
_LABEL_COLUMN = "label"
_LABELS_FILE, _MAX_COMMAND = "labels.txt", 300  # in a warning
_IMAGE_FEATURE, _LABEL_FEATURES = "image/encoded", ("image/class/text", "image/class/label")


@dataclass(frozen=True)
class Spool:
    """Writes what has no random access to archives in a folder, and lists their members.

    Attributes:
        folder: The folder.
        image: Column or feature of images; empty: the only one that can be.
        label: Column or feature of labels; empty: one of the usual name; None: labels are not read.
        may_lack: Whether files of some splits may lack it.
        members: How members of tar archives become inputs.
        label_order: Order of class ids, which follow from the labels; None if a list gives them.
    """

    folder: str
    image: str = ""
    label: str | None = ""
    may_lack: bool = False
    members: MemberOptions = MemberOptions()
    label_order: LabelOrder | None = None

    def __call__(self, ref: InputRef, reader: RandomReader, kind: str) -> Members:
        """Yield the members of an archive.

        Args:
            ref: The archive.
            reader: The open archive.
            kind: See ``archive_kind``.

        Raises:
            InputError: It is damaged, or has no such column.
            StorageError: Reading or writing failed.
        """
        identity = ref.uri, reader.size, reader.version, ref.ctime, self.image, self.label
        digest = hashlib.blake2b(repr(identity).encode(), digest_size=16).hexdigest()
        path, storage = join(self.folder, f"{digest}.tar"), open_storage(self.folder)
        if storage.stat(path) is None:
            with storage.open_write(path) as file:
                self._write(ref, reader, kind, file)
        if kind == "parquet" and self.label is not None and self.label_order:
            with open_parquet(ref) as (parquet, _):
                names = _class_names(parquet.schema_arrow, self.label or _LABEL_COLUMN)
            yield from warn_of_order(names, self.label_order)
        if kind != "packed":
            if self.image:
                yield MatchCounts(used_options=("image_column",))
            base = join(ref.key, "") if ref.key else ""
            yield from list_spool(
                path, ref.uri, lambda number, _: (base + number, join(ref.uri, number))
            )
            return
        with storage.open_at(path) as spool:
            where = MemberRange(path, spool.size, "", 0, 0)
            members = list_tar(spool, ref.uri)
            yield from expand_members(ref, spool, where, members, self.members)

    def _write(self, ref: InputRef, reader: RandomReader, kind: str, file: IO[bytes]) -> None:
        try:
            if kind == "packed":
                for piece in decompress(reader, compression_format(reader.read_at(0, 64))):
                    file.write(piece)
            elif kind == "parquet":
                pack_images(self._rows(ref), file)
            else:
                pack_images(self._examples(ref), file)
            check_unchanged(ref)
        except (DecompressionError, FormatError) as error:
            raise damaged_archive(path=ref.uri, why=str(error)) from error
        except RejectedError as error:
            raise damaged_archive(path=ref.uri, why=error.message) from error

    def _rows(self, ref: InputRef) -> Iterator[SpooledImage]:
        """Yield the images of a Parquet file."""
        with open_parquet(ref) as (file, _):
            schema = file.schema_arrow
            label_name = "" if self.label is None else self.label or _LABEL_COLUMN
            image = self.image or _find_image(schema, label_name)
            # Of columns with one name, none can be read by it.
            names = [name for name in schema.names if schema.get_field_index(name) >= 0]
            if image not in names:
                raise _without_images(ref, image, schema.names)
            _check_type(ref, schema.field(image), "image")
            label = self._find_label(ref, [_LABEL_COLUMN], names)
            if label:
                _check_type(ref, schema.field(label), "label")
            columns = [*dict.fromkeys(filter(None, (image, label)))]
            classes = _class_names(schema, label)
            for group in read_footer(ref).groups:
                number = group.first
                for table in read_tables(file, group, columns, _STEP, _BYTES):
                    images, labels = table[image], table[label] if label else None
                    for row in range(len(table)):
                        content = _to_python(images[row])
                        spooled = _spool_image(number, content, f"the column {image!r}")
                        if labels is not None:
                            value, source = _to_python(labels[row]), f"the column {label!r}"
                            spooled = _with_label(spooled, value, source, classes)
                        elif label is not None:
                            spooled = spooled._replace(label="")
                        yield spooled
                        number += 1

    def _examples(self, ref: InputRef) -> Iterator[SpooledImage]:
        """Yield the images of a TFRecord file of examples."""
        image = self.image or _IMAGE_FEATURE
        with open_records(ref.uri, MAX_FILE_BYTES) as records:
            payloads = iter(records)
            # An example may lack features that others have.
            first: list[bytes] = []
            names: Counter[str] = Counter()
            for payload in payloads:
                if not first and not looks_like_example(payload):
                    why = "its records are not tf.train.Example"
                    raise damaged_archive(path=ref.uri, why=why)
                first.append(payload)
                names.update(_parse_features(payload).keys())
                if len(first) == _STEP or sum(map(len, first)) >= _BYTES:
                    break
            if not first:
                return
            if image not in names:
                raise _without_images(ref, image, [*names])
            # Numbers and texts of labels are not mixed: texts that few records have are left out.
            most = max(names[name] for name in _LABEL_FEATURES)
            usual = [name for name in _LABEL_FEATURES if names[name] >= most / 2]
            label = self._find_label(ref, usual, [*names])
            for number, payload in enumerate(itertools.chain(first, payloads)):
                features = _parse_features(payload)
                spooled = _spool_image(number, _value(features, image), f"the feature {image!r}")
                if label:
                    source = f"the feature {label!r}"
                    spooled = _with_label(spooled, _value(features, label), source)
                elif label is not None:
                    spooled = spooled._replace(label="")
                yield spooled

    def _find_label(self, ref: InputRef, usual: Sequence[str], names: Sequence[str]) -> str | None:
        """Return the name of the column of labels among those of a file.

        It is None where labels are not read, and empty if the file may lack it: its images have no
        label, also none of their folder.

        Raises:
            InputError: It lacks the column.
        """
        if self.label is None:
            return None
        candidates = [self.label] if self.label else usual
        column = next((name for name in candidates if name in names), None)
        if column is None and not self.may_lack:
            raise InputError(
                f"{ref.uri} has no column of labels named {format_names(candidates)}, only "
                f"{format_names(names)}: name it with --label_column, or set --label_from=none."
            )
        return column or ""


def _find_image(schema: pa.Schema, label: str) -> str:
    """Return the only column of images, or an empty text.

    Hugging Face's images come before bytes, and both before lists of them, which may be crops.
    """
    columns = {field.name: field.type for field in schema if field.name != label}
    inner_types = {name: value_type(kind) for name, kind in columns.items()}
    for types in (columns, inner_types):
        for is_image in (_has_bytes, _is_variable_bytes):
            names = [name for name, kind in types.items() if is_image(kind)]
            if len(names) == 1:
                only: str = names[0]
                return only
            if names:
                return ""
    return ""


def _has_bytes(kind: pa.DataType) -> bool:
    """Return whether a type is that of Hugging Face's images."""
    if not pa.types.is_struct(kind):
        return False
    number = kind.get_field_index("bytes")
    return bool(number >= 0 and _is_bytes(kind.field(number).type))


def _is_bytes(kind: pa.DataType) -> bool:
    """Return whether values of a type can be the content of files."""
    types = pa.types
    return bool(_is_variable_bytes(kind) or types.is_fixed_size_binary(kind) or types.is_null(kind))


def _is_variable_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_label(kind: pa.DataType) -> bool:
    """Return whether values of a type can be labels."""
    types = pa.types
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    return bool(is_number or types.is_boolean(kind) or types.is_null(kind) or is_text(kind))


def value_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a column, which may be in lists."""
    if is_list(kind):
        kind = kind.value_type
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return kind


def _check_type(ref: InputRef, column: pa.Field, of: Literal["image", "label"]) -> None:
    """Check that a column may hold images or labels.

    Raises:
        InputError: It cannot: then each of its values would be a reject.
    """
    kind = value_type(column.type)
    is_usable = _is_label(kind) if of == "label" else _has_bytes(kind) or _is_bytes(kind)
    if not is_usable:
        rule = "texts or whole numbers" if of == "label" else "bytes"
        raise InputError(
            f"{ref.uri} has values of the type {column.type} in the column {column.name!r} of "
            f"{of}s, not {rule}: name another column with --{of}_column."
        )


def _class_names(schema: pa.Schema, label: str | None) -> Sequence[str]:
    """Return the names of the classes that Hugging Face ``datasets`` state in the file."""
    try:
        feature = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][label]
        if "feature" in feature:  # of a list
            feature = feature["feature"]
        return [str(name) for name in feature["names"]]
    except (KeyError, TypeError, ValueError):
        return []


def warn_of_order(names: Sequence[str], order: LabelOrder) -> Iterator[MatchCounts]:
    """Yield a warning if class ids, which follow from texts, differ from the numbers of a file.

    Args:
        names: Names of classes by their numbers in the file.
        order: Order of class ids.
    """
    has_twins = len({*names}) < len(names)
    if has_twins or sort_labels(names, order) == tuple(names):
        return
    command = f"printf '%s\\n' {shlex.join(names)} > {_LABELS_FILE}"
    steps = f"write the names in this order into {_LABELS_FILE}, one a line"
    if len(command) <= _MAX_COMMAND and not any("\n" in name for name in names):
        steps = f"run: {command}"
    warning = (
        f"the files number their classes {format_names(names)}, and class ids sort the names: to "
        f"keep the numbers, set --labels={_LABELS_FILE} and first {steps}"
    )
    yield MatchCounts(warnings=(warning,))


def _to_python(value: pa.Scalar) -> Any:
    """Return the value of a cell; the bytes of a text that is not UTF-8."""
    if isinstance(value, pa.StructScalar):  # of images
        return {name: _to_python(value[name]) for name in ("bytes", "path") if name in value}
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return error.object


def _spool_image(number: int, value: Any, source: str) -> SpooledImage:
    """Return the image of a record, or why it has none.

    Args:
        number: Number of the record in the file.
        value: Bytes, Hugging Face's bytes and path, a list with one of these, or None.
        source: Name of the column or feature, for messages.
    """
    error = message = ""
    values = value if isinstance(value, list) else [value]
    content: Any = next(iter(values), None)
    path = None
    if isinstance(content, dict):
        content, path = content.get("bytes"), content.get("path")
    if len(values) > 1:
        error, message = "member", f"{source} has {len(values)} values, not one image"
    elif path and content is None:
        error = "empty"
        message = (
            f"{source} has the path of an image, {path!r}, and no bytes: give the folder of such "
            "files as --input"
        )
    elif content is None or content == b"":
        error, message = "empty", f"{source} has no bytes"
    elif not isinstance(content, bytes):
        error, message = "member", f"{source} is a number, not the bytes of an image"
    data = b"" if error else content
    digest = blake3(data).hexdigest(16)
    return SpooledImage(number, "", None, "", digest, data, error=error, message=message)


def _with_label(
    image: SpooledImage, value: Any, source: str, classes: Sequence[str] = ()
) -> SpooledImage:
    """Return an image with its label, or why it has none, which matters in labelled splits only."""
    try:
        return image._replace(label=read_label(value, classes))
    except LabelError as error:
        return image._replace(label="", message=image.message or f"{source} {error}")


def _parse_features(payload: bytes) -> Mapping[str, FeatureValues]:
    """Return the features of a record; none if it is not an example."""
    try:
        return parse_example(payload)
    except ExampleError:
        return {}


def _value(features: Mapping[str, FeatureValues], name: str) -> list[Any]:
    if name in features:
        return [*features[name].values]
    return []


def _without_images(ref: InputRef, image: str, names: Sequence[str]) -> InputError:
    by = f"by the name {image!r}" if image else "by its type"
    return InputError(
        f"{ref.uri} has no column of images that is found {by} among {format_names(names)}: name "
        "it with --image_column, or leave the file out of --input; for a table use `shardmill "
        "rows`."
    )
