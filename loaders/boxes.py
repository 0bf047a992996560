"""Boxes of images as one feature: ``boxes``, or ``boxes/FORMAT`` with a format of ``FORMATS``.

Formats have the names of KerasHub and torchvision. In records, sides are fractions of the
record's image, as in TensorFlow's Object Detection API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardmill.schemas.errors import FormatError, UsageError
from shardmill.schemas.example.parse import FeatureValues
from shardmill.schemas.numbers import plural
from shardmill.schemas.schema_pbtxt.feature_spec import FeatureSpec

if TYPE_CHECKING:
    import tensorflow as tf

BOXES = "boxes"
BOX_SIDES = ("xmin", "ymin", "xmax", "ymax")
_DEFAULT = "rel_xyxy"
_Sides = tuple[Any, Any, Any, Any]  # left, upper, right, lower: arrays or tensors
_SHAPES: dict[str, Callable[[Any, Any, Any, Any], _Sides]] = {
    "xyxy": lambda x, y, right, lower: (x, y, right, lower),
    "yxyx": lambda x, y, right, lower: (y, x, lower, right),
    "xywh": lambda x, y, right, lower: (x, y, right - x, lower - y),
    "center_xywh": lambda x, y, right, lower: (
        (x + right) / 2,
        (y + lower) / 2,
        right - x,
        lower - y,
    ),
}
FORMATS = (*_SHAPES, *(f"rel_{name}" for name in _SHAPES))  # of pixels, of fractions


def boxes_spec(name: str, sides: Sequence[str], size: Sequence[str]) -> FeatureSpec:
    """Returns the spec of the boxes.

    Args:
        name: ``boxes`` or ``boxes/FORMAT``.
        sides: Names in the records of the left, upper, right and lower sides.
        size: Names of width and height of the image.

    Raises:
        UsageError: The format is unknown, or needs the image size, which records do not have.
    """
    form = name.partition("/")[2] or _DEFAULT
    if form not in FORMATS:
        choices = ", ".join(FORMATS)
        raise UsageError(f"{form!r} is not a format of boxes: use one of {choices}.")
    relative = form.startswith("rel_")
    if not (relative or all(size)):
        raise UsageError(
            f"{name!r} needs height and width of images, which the records lack: build with these "
            "features, or use boxes/rel_xyxy."
        )
    parts = (*sides, *(() if relative else size))
    return FeatureSpec(name, "float32", None, False, parts=parts)


def boxes_array(
    spec: FeatureSpec, features: Mapping[str, FeatureValues]
) -> npt.NDArray[np.float32]:
    """Returns the boxes of a record: float32 of shape [boxes, 4].

    Raises:
        FormatError: The record does not have all of their sides.
    """
    empty = FeatureValues("empty", [])
    values: list[Any] = [np.array(features.get(p, empty).values, np.float32) for p in spec.parts]
    sides, size = values[:4], values[4:]
    if len({len(side) for side in sides}) != 1 or any(len(value) != 1 for value in size):
        counts = [len(value) for value in values]
        raise unfit_values(name=spec.name, values=counts, shape=("boxes", 4))
    return np.stack(_converted(spec, sides, size), axis=-1)


def unfit_values(name: object, values: int, shape: object) -> FormatError:
    """Return the error for unfit values."""
    return FormatError(
        f"the feature {name!r} has {plural(values, 'value')}, which do not fit the shape {shape}"
    )


def boxes_tensor(spec: FeatureSpec, parsed: Mapping[str, Any]) -> tf.RaggedTensor:
    """Returns the boxes of a batch: float32 of shape [batch, boxes, 4], ragged.

    Args:
        spec: The boxes.
        parsed: Ragged sides, and sizes of shape [batch, 1].
    """
    import tensorflow as tf

    sides = [parsed[part] for part in spec.parts[:4]]
    rows = sides[0].value_rowids()
    size = [
        tf.gather(tf.cast(tf.reshape(parsed[part], [-1]), tf.float32), rows)
        for part in spec.parts[4:]
    ]
    values = _converted(spec, [side.flat_values for side in sides], size)
    return sides[0].with_values(tf.stack(values, axis=-1))


def _converted(spec: FeatureSpec, sides: Sequence[Any], size: Sequence[Any]) -> _Sides:
    left, upper, right, lower = sides
    if size:
        width, height = size
        left, right, upper, lower = left * width, right * width, upper * height, lower * height
    form = spec.name.partition("/")[2] or _DEFAULT
    return _SHAPES[form.removeprefix("rel_")](left, upper, right, lower)
