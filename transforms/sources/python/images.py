"""Images of Python sources: their bytes, and the archives from which a build reads them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from shardmill.schemas.errors import InputError, UsageError, format_names
from shardmill.transforms.match.containers.tar_members import SpooledImage, pack_images
from shardmill.transforms.match.walk import make_key
from shardmill.transforms.sources.csv.arrow_values import is_text

_MODES = frozenset({"1", "I", "I;16", "L", "LA", "P", "RGB", "RGBA"})  # those of PNG
_MAX_CLASSES = 1 << 16  # of labels that are numbers


def to_bytes(index: int, name: str, value: Any) -> Any:
    """Return the bytes of an image of Pillow, or of an array of pixels: a PNG of equal pixels.

    Images are turned upright, as their Exif orientation says. An image that Pillow fails to load
    has no bytes, and becomes a reject. Other values are returned as they are.

    Args:
        index: Place of the record in the source.
        name: Name of the field.
        value: The value; an array has the shape [height, width] or [height, width, channels].

    Raises:
        InputError: It is neither, or its pixels are not integers of 8 or 16 bits.
    """
    if value is None or isinstance(value, bytes | dict):
        return value
    from PIL import Image, ImageOps

    try:
        if isinstance(value, Image.Image):
            image = value
        else:
            pixels = np.asarray(value)
            if pixels.dtype.kind not in "bu" or pixels.ndim < 2:
                raise TypeError
            image = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
        if image.mode == "F":
            raise TypeError
    except (TypeError, ValueError) as error:
        kind = type(value).__name__
        raise InputError("source-image-invalid", index=index, name=name, kind=kind) from error
    file = io.BytesIO()
    try:
        image = ImageOps.exif_transpose(image)
        image = image if image.mode in _MODES else image.convert("RGB")
        image.save(file, "PNG", compress_level=0)
    except (OSError, SyntaxError, ValueError):  # it is loaded only now
        return b""
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
        unused: The other fields.
    """

    image: str
    key: str
    label: str
    split: str
    classes: int | None = field(default=0, init=False)
    unused: tuple[str, ...] = field(default=(), init=False)
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
        fields = [image, *filter(None, (self.key, self.label, self.split))]
        self.unused = tuple(n for n in table.column_names if n not in (*fields, *parts))
        data = self._read_images(table, image, first)
        keys = self._read_texts(table, self.key, first)
        labels = self._read_texts(table, self.label, first)
        splits = self._read_texts(table, self.split, first)
        if self.label and self.classes is not None:
            self._count_classes(table[self.label])
        for row, index in enumerate(range(first, first + len(table))):
            key = make_key(keys[row] or "") if self.key else f"record:{index}"
            label = make_key(labels[row] or "") if self.label else None
            digest = blake3(data[row]).hexdigest(16)
            yield SpooledImage(index, key, label, splits[row] or "", digest, data[row])

    def _read_images(self, table: pa.Table, name: str, first: int) -> list[bytes]:
        values = self._column(table, name)
        kind = values.type
        texts = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
        is_binary = is_text(kind) and not any(check(kind) for check in texts)
        if not (pa.types.is_null(kind) or is_binary):
            raise InputError("source-image-invalid", index=first, name=self.image, kind=kind)
        data = [value or b"" for value in values.to_pylist()]
        path = f"{self.image}.path"
        if name != self.image and path in table.column_names:
            for row, value in enumerate(table[path].to_pylist()):
                if value and not data[row]:
                    raise InputError("source-image-path", index=first + row, path=value)
        return data

    def _read_texts(self, table: pa.Table, name: str, first: int) -> list[str | None]:
        """Return the values of a field of keys, labels or splits; none if it has no name."""
        values = self._column(table, name) if name else pa.nulls(len(table))
        kind = values.type
        types = pa.types
        try:
            if types.is_floating(kind) or types.is_nested(kind) or types.is_temporal(kind):
                raise pa.ArrowInvalid
            texts: list[str | None] = values.cast(pa.string()).to_pylist()
        except pa.ArrowException as error:
            raise InputError(
                "source-value-invalid", index=first, name=name, value=repr(values[0].as_py()),
                kind=kind, wanted="a text or an integer",
            ) from error  # fmt: skip
        if name == self.key and name and None in texts:
            raise InputError("source-key-missing", index=first + texts.index(None), name=name)
        return texts

    def _column(self, table: pa.Table, name: str) -> pa.ChunkedArray:
        if name not in table.column_names:
            names = format_names(table.column_names)
            raise UsageError("source-field-missing", name=name, names=names)
        return table[name]

    def _count_classes(self, labels: pa.ChunkedArray) -> None:
        if pa.types.is_integer(labels.type):
            low, high = (each or 0 for each in pc.min_max(labels).as_py().values())
            are_classes = 0 <= low <= high < _MAX_CLASSES
            self.classes = max(self.classes or 0, high + 1) if are_classes else None
        elif not pa.types.is_null(labels.type):
            self.classes = None
