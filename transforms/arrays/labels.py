"""Labels of arrays: whole numbers are kept as they are, texts get class ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.schemas.errors import InputError
from shardmill.transforms.arrays.files import ArrayFile, stream_bytes
from shardmill.transforms.match.labels import has_control, sort_labels

AUTOMATIC = ("y", "label", "labels")  # members that are taken as labels when there is only one
LABEL, LABEL_TEXT = "label", "label/text"  # sources, as the manifest names them
MAX_TEXTS = 100_000
_VALUES = 1 << 20  # looked at, at a time
_LARGEST = np.iinfo(np.int64).max


def is_label_like(array: ArrayFile) -> bool:
    """Tells whether an array may be labels: one whole number or text an example."""
    return array.dtype.kind in "biuSU" and array.shape in ((array.rows,), (array.rows, 1))


@dataclass(frozen=True)
class Labels:
    """The labels of examples.

    Attributes:
        array: Where they are.
        texts: All labels in the order of their class ids, where they are texts; else empty.
    """

    array: ArrayFile
    texts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the feature that holds the number."""
        return self.array.name

    @property
    def text_name(self) -> str:
        """Name of the feature that holds the text, where labels are texts."""
        return f"{self.array.name}/text"

    def values(self, raw: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Returns the labels that rows of raw bytes hold, little-endian: int64 or texts; [n]."""
        dtype = self.array.dtype.newbyteorder("<")
        found: npt.NDArray[Any] = raw.view(dtype).reshape(-1)
        return found if self.texts else found.astype(np.int64)


def check_labels(array: ArrayFile) -> Labels:
    """Returns labels, all values looked at.

    Args:
        array: Of labels.

    Raises:
        InputError: They are no labels: floats, several an example, too large, empty, not UTF-8, ...
    """
    what, dtype = array.shown, array.dtype
    if array.shape not in ((array.rows,), (array.rows, 1)):
        shape = str(array.shape)[:60]
        raise InputError(
            f"{what} has the shape {shape}, and labels are one value an example, ({array.rows:,},):"
            " of one-hot labels save y.argmax(axis=1)."
        )
    if dtype.kind in "fc":
        raise InputError(_why_no_numbers(array))
    if array.is_text:
        return Labels(array, sort_labels(_texts(array)))
    for first, values in _chunks(array):
        if dtype.kind == "u" and int(values.max(initial=0)) > _LARGEST:
            row = first + int(values.argmax())
            raise InputError(
                f"{what} has the label {values.max()} at row {row:,}, which is beyond int64: use "
                "smaller class ids."
            )
    return Labels(array)


def _why_no_numbers(array: ArrayFile) -> str:
    """Returns why floats are no labels, by the first value that is no whole number."""
    remedy = "save y.astype('int64'), or give it no label if it is a target to predict"
    for first, values in _chunks(array):
        with np.errstate(invalid="ignore"):
            bad = np.flatnonzero(~np.isfinite(values) | (values.real != np.floor(values.real)))
        if bad.size:
            value = values[bad[0]]
            row = first + int(bad[0])
            name = "NaN" if np.isnan(value) else str(value)
            return (
                f"{array.shown} has the label {name} at row {row:,}, which is no whole number: "
                "make all labels whole numbers or texts, then " + remedy + "."
            )
    return f"{array.shown} holds labels as {array.dtype.name}, not as integers: {remedy}."


def _texts(array: ArrayFile) -> set[str]:
    """Returns the distinct labels.

    Raises:
        InputError: One cannot be a label, or there are too many.
    """
    seen: set[str] = set()
    for first, values in _chunks(array):
        for value in np.unique(values).tolist():
            text, problem = _decoded(value)
            if problem:
                row = first + int(np.flatnonzero(values == value)[0])
                raise InputError(
                    f"{array.shown} has the label {value!r} at row {row:,}, which {problem}: give "
                    "each example a label in plain UTF-8."
                )
            seen.add(text)
        if len(seen) > MAX_TEXTS:
            raise InputError(
                f"{array.shown} has more than {MAX_TEXTS:,} distinct texts, which are no classes: "
                "save whole numbers, or give another label."
            )
    return seen


def _decoded(value: bytes | str) -> tuple[str, str]:
    """Returns the text of a label, and why it cannot be one or nothing."""
    try:
        text = value.decode() if isinstance(value, bytes) else value
        text.encode()
    except UnicodeError:
        return "", "is not UTF-8"
    if not text:
        return "", "is empty"
    return text, "has a control character" if has_control(text) else ""


def _chunks(array: ArrayFile) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yields values in their order, with the row of the first."""
    size = array.row_bytes
    if not size:  # texts of no length
        yield 0, np.zeros(min(1, array.rows), array.dtype)
        return
    step = max(1, min(_VALUES, (64 << 20) // size))
    for number, data in enumerate(stream_bytes(array, step * size)):
        yield number * step, np.frombuffer(data, array.dtype)


def texts_of(values: Iterable[bytes | str]) -> list[str]:
    """Returns labels as texts; they were checked."""
    return [value.decode() if isinstance(value, bytes) else value for value in values]


__all__ = [
    "AUTOMATIC",
    "LABEL",
    "LABEL_TEXT",
    "Labels",
    "check_labels",
    "is_label_like",
    "texts_of",
]
