"""Labels of arrays: integers are kept as they are, texts get class ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.schemas.errors import InputError
from shardmill.transforms.match.labels import has_control, sort_labels
from shardmill.transforms.sources.arrays.array_file import ArrayFile, stream_values

DEFAULT_NAMES = ("y", "label", "labels")  # arrays that are the label where --label is not given
LABEL, LABEL_TEXT = "label", "label/text"  # sources of features in the manifest
MAX_TEXTS = 100_000
_CHUNK_VALUES = 1 << 20
_CHUNK_BYTES = 64 << 20
_MAX_LABEL = np.iinfo(np.int64).max


def is_label_like(array: ArrayFile) -> bool:
    """Return whether an array has one integer, boolean or text for each example."""
    return array.dtype.kind in "biuSU" and _is_column(array)


@dataclass(frozen=True)
class ArrayLabels:
    """The labels of the examples.

    Attributes:
        array: The array of labels.
        texts: All labels in the order of their class ids, where they are texts; else empty.
    """

    array: ArrayFile
    texts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the feature that holds the integer or class id."""
        return self.array.name

    @property
    def text_name(self) -> str:
        """Name of the feature that holds the text, where labels are texts."""
        return f"{self.array.name}/text"

    def values(self, raw: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return the labels of rows.

        Args:
            raw: The rows, little-endian; uint8, shape [n, row_bytes].

        Returns:
            int64, or texts in the array's dtype; shape [n].
        """
        dtype = self.array.dtype.newbyteorder("<")
        values: npt.NDArray[Any] = raw.view(dtype).reshape(-1)
        return values if self.texts else values.astype(np.int64)


def check_labels(array: ArrayFile) -> ArrayLabels:
    """Read all values of an array and return them as labels.

    Raises:
        InputError: There are several values for each example, or a value is not an integer in the
            range of int64, or not a text that can be a label.
    """
    if not _is_column(array):
        shape = str(array.shape)[:60]
        raise InputError(
            f"{array.source} has the shape {shape}, and labels are one value for each example, "
            f"({array.rows:,},): for one-hot labels save y.argmax(axis=1)."
        )
    if array.dtype.kind in "fc":
        raise InputError(
            f"{array.source} holds labels as {array.dtype.name}, not as integers: save "
            "y.astype('int64'), or pass no label if it is a target to predict."
        )
    if array.is_text:
        return ArrayLabels(array, sort_labels(_distinct_texts(array)))
    if array.dtype.str[1:] != "u8":
        return ArrayLabels(array)
    # Of integers only uint64 has values that overflow; other labels are read with their rows alone.
    for first, values in _chunks(array):
        if int(values.max(initial=0)) > _MAX_LABEL:
            row = first + int(values.argmax())
            raise InputError(
                f"{array.source} has the label {values.max()} at row {row:,}, which overflows "
                "int64: use smaller class ids."
            )
    return ArrayLabels(array)


def _is_column(array: ArrayFile) -> bool:
    return array.shape in ((array.rows,), (array.rows, 1))


def _distinct_texts(array: ArrayFile) -> set[str]:
    """Return the distinct labels.

    Raises:
        InputError: A value cannot be a label, or there are too many distinct ones.
    """
    distinct: set[str] = set()
    for first, values in _chunks(array):
        for value in np.unique(values).tolist():
            text, problem = decode_label(value)
            if problem:
                row = first + int(np.flatnonzero(values == value)[0])
                raise InputError(
                    f"{array.source} has the label {value!r} at row {row:,}, which {problem}: give "
                    "each example a label in plain UTF-8."
                )
            distinct.add(text)
        if len(distinct) > MAX_TEXTS:
            raise InputError(
                f"{array.source} has more than {MAX_TEXTS:,} distinct texts, too many for classes: "
                "save integers, or give another label."
            )
    return distinct


def decode_label(value: bytes | str) -> tuple[str, str]:
    """Return the text of a label, and why it cannot be one or an empty text."""
    try:
        text = value.decode() if isinstance(value, bytes) else value
        text.encode()
    except UnicodeError:
        return "", "is not UTF-8"
    if not text:
        return "", "is empty"
    problem = "has a control character" if has_control(text) else ""
    return text, problem


def _chunks(array: ArrayFile) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield consecutive values, shape [n] or [n, 1], with the row of the first."""
    size = array.row_bytes
    if not size:  # texts of length 0
        yield 0, np.zeros(min(1, array.rows), array.dtype)
        return
    step = max(1, min(_CHUNK_VALUES, _CHUNK_BYTES // size))
    for number, data in enumerate(stream_values(array, step * size)):
        yield number * step, np.frombuffer(data, array.dtype)
