"""Annotations of YOLO: a text file for each image, with a box in each line."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardmill.transforms.match.annotations.boxes import Annotation, AnnotationError, Box

_BOX = 5  # numbers of a box: class, center and size; those of an outline are 7 or more


def parse_yolo(data: bytes, names: Sequence[str]) -> Annotation:
    """Return the boxes of an annotation of YOLO, whose sides are fractions of the upright image.

    A line is ``CLASS X Y WIDTH HEIGHT`` with the center of the box, or ``CLASS X Y X Y X Y ...``
    with the corners of an outline, whose box is taken.

    Args:
        data: The file.
        names: The classes by number.

    Raises:
        AnnotationError: A line is neither, or its class has no name.
    """
    boxes, outlines = [], 0
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise AnnotationError(f"it is not UTF-8: {error.reason}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = [float(word) for word in line.split()]
        except ValueError:
            values = []
        count = len(values)
        if (count != _BOX and (count < _BOX + 2 or not count % 2)) or not all(
            map(math.isfinite, values)
        ):
            raise AnnotationError(f"line {number} is {line[:80]!r}, not CLASS X Y WIDTH HEIGHT")
        if not (values[0].is_integer() and 0 <= values[0] < len(names)):
            raise AnnotationError(
                f"line {number} has the class {line.split()[0]}, --labels has {len(names)} lines"
            )
        outlines += count > _BOX
        boxes.append(Box(names[int(values[0])], *_sides(values[1:])))
    return Annotation(1, 1, boxes, outlines)


def _sides(values: Sequence[float]) -> tuple[float, float, float, float]:
    if len(values) == _BOX - 1:
        x, y, width, height = values
        return x - width / 2, y - height / 2, x + width / 2, y + height / 2
    xs, ys = values[::2], values[1::2]
    return min(xs), min(ys), max(xs), max(ys)
