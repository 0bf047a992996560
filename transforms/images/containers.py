"""Images in archives without random access: compressed tar archives, Parquet files and TFRecords.

They are read once, in sequence, and their images written as they are to an archive in the build
folder, which a repeated step finds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from shardmill.schemas.decompress import DecompressionError, decompress
from shardmill.schemas.errors import FormatError, InputError, format_names
from shardmill.schemas.example.parse import FeatureValues, looks_like_example, parse_example
from shardmill.schemas.file_signatures import compression_format
from shardmill.schemas.refs import InputRef, MemberRange, RejectedError
from shardmill.schemas.storage import RandomReader, join, open_storage
from shardmill.schemas.tfrecord.reader import open_records
from shardmill.transforms.match.containers.expand import (
    MemberOptions,
    Members,
    expand_members,
)
from shardmill.transforms.match.containers.members import (
    SpooledImage,
    list_spool,
    list_tar,
    pack_images,
)
from shardmill.transforms.match.read_input import MAX_FILE_BYTES
from shardmill.transforms.match.walk import make_key
from shardmill.transforms.sources.csv.source import check_unchanged
from shardmill.transforms.sources.parquet.parquet_source import (
    open_parquet,
    read_footer,
    read_tables,
)
from shardmill.transforms.sources.python.records import to_table
from shardmill.transforms.sources.python.spool import ImageFiles

_STEP, _BYTES = 64, 8 << 20  # rows that are decoded at a time, and bytes that are held
# Of Hugging Face ``datasets``; of TensorFlow's Object Detection API and of Shardmill.
_LABEL_COLUMN = "label"
_MISSING = FeatureValues("empty", [])
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
    """

    folder: str
    image: str = ""
    label: str | None = ""
    may_lack: bool = False
    members: MemberOptions = MemberOptions()  # noqa: RUF009 - it is a tuple

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
        if kind != "packed":
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
            raise InputError("archive-damaged", path=ref.uri, why=str(error)) from error
        except RejectedError as error:
            raise InputError("archive-damaged", path=ref.uri, why=error.message) from error

    def _rows(self, ref: InputRef) -> Iterator[SpooledImage]:
        """Yield the images of a Parquet file."""
        with open_parquet(ref) as (file, _):
            schema = file.schema_arrow
            image = self.image or _find_image(schema)
            if image not in schema.names:
                raise _without_images(ref, image, schema.names)
            label = self._find_label(ref, [_LABEL_COLUMN], schema.names)
            columns = [*filter(None, (image, label))]
            files = ImageFiles(image, "", label or "", "")
            classes = _class_names(schema, label)
            for group in read_footer(ref).groups:
                first = group.first
                for table in read_tables(file, group, columns, _STEP, _BYTES):
                    found = to_table(_named(table, label, classes), None, first)
                    try:
                        for each in files.images(found, first):
                            named = each.label if label else label
                            yield each._replace(label=named, message="")
                    except InputError as error:  # it names the row, but not the file
                        why = str(error).rstrip(".")
                        raise InputError("archive-damaged", path=ref.uri, why=why) from error
                    first += len(table)

    def _examples(self, ref: InputRef) -> Iterator[SpooledImage]:
        """Yield the images of a TFRecord file of examples."""
        image = self.image or _IMAGE_FEATURE
        label: str | None = None
        with open_records(ref.uri, MAX_FILE_BYTES) as records:
            for number, payload in enumerate(records):
                if not number and not looks_like_example(payload):
                    why = "its records are not tf.train.Example"
                    raise InputError("archive-damaged", path=ref.uri, why=why)
                features = parse_example(payload)
                kind, values = features.get(image, _MISSING)
                if kind not in ("bytes", "empty") or not (number or values):
                    raise _without_images(ref, image, [*features])
                if not number:
                    label = self._find_label(ref, _LABEL_FEATURES, [*features])
                found = [value for value in values if isinstance(value, bytes)]
                data = found[0] if len(found) == 1 else b""
                text = _text(features, label) if label else label
                yield SpooledImage(number, "", text, "", blake3(data).hexdigest(16), data)

    def _find_label(self, ref: InputRef, usual: Sequence[str], names: Sequence[str]) -> str | None:
        """Return the name of the column of labels among those of a file.

        It is None where labels are not read, and empty if the file may lack it: its images have no
        label, also none of their folder.

        Raises:
            InputError: It lacks the column.
        """
        if self.label is None:
            return None
        wanted = [self.label] if self.label else usual
        found = next((name for name in wanted if name in names), None)
        if found is None and not self.may_lack:
            raise InputError(
                "archive-label-missing",
                path=ref.uri,
                wanted=format_names(wanted),
                names=format_names(names),
            )
        return found or ""


def _find_image(schema: pa.Schema) -> str:
    """Return the only column that has Hugging Face's images, or else bytes; empty if none is."""
    found = [each.name for each in schema if _has_bytes(each.type)]
    if not found:
        is_bytes = pa.types.is_binary, pa.types.is_large_binary
        found = [each.name for each in schema if any(check(each.type) for check in is_bytes)]
    return found[0] if len(found) == 1 else ""


def _has_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def _class_names(schema: pa.Schema, label: str | None) -> Sequence[str]:
    """Return the names of the classes that Hugging Face ``datasets`` state in the file."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][label]
        return [str(name) for name in found["names"]]
    except (KeyError, TypeError, ValueError):
        return []


def _named(table: pa.Table, label: str | None, classes: Sequence[str]) -> pa.Table:
    """Return a table with the names of classes for their numbers; -1 is none, as there."""
    if not classes or not pa.types.is_integer(table.schema.field(label).type):
        return table
    numbers = table[label]
    known = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, len(classes)))
    names = pa.array(classes).take(pc.if_else(known, numbers, None).combine_chunks())
    return table.set_column(table.column_names.index(label), label, names)


def _text(features: Mapping[str, FeatureValues], name: str) -> str:
    """Return the only value of a feature as a text; empty if it has none."""
    values = features.get(name, _MISSING).values
    if len(values) != 1:
        return ""
    (value,) = values
    try:
        return make_key(value.decode()) if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        return ""


def _without_images(ref: InputRef, image: str, names: Sequence[str]) -> InputError:
    by = f"by the name {image!r}" if image else "by its type"
    return InputError("archive-image-missing", path=ref.uri, by=by, names=format_names(names))
