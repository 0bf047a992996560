"""Values that the readers of annotations return: boxes, annotations, and why one is rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Box(NamedTuple):
    """A box in the frame of its annotation.

    Attributes:
        text: Its class.
        xmin: Left side, in pixels or as a fraction of the width.
        ymin: Upper side.
        xmax: Right side.
        ymax: Lower side.
        difficult: Whether the object is hard to recognize.
        truncated: Whether the object reaches outside of the box or the image.
        is_crowd: Whether the box is around several objects.
        area: Pixels of the object; None for those of the box.
    """

    text: str
    xmin: float
    ymin: float
    xmax: float
    ymax: float
    difficult: bool = False
    truncated: bool = False
    is_crowd: bool = False
    area: float | None = None


class Annotation(NamedTuple):
    """What an annotation says of its image.

    Attributes:
        width: Width of the image in pixels; 0 if it is unknown, 1 if sides are fractions.
        height: Its height.
        boxes: Its boxes.
        outlines: Number of objects whose outlines are in it too.
        image_id: The number of the image in COCO; None if ids are not to be features.
        category_ids: The classes of its boxes as numbers of COCO, if ids are to be features.
    """

    width: int = 0
    height: int = 0
    boxes: Sequence[Box] = ()
    outlines: int = 0
    image_id: int | None = None
    category_ids: Sequence[int] = ()


class AnnotationError(Exception):
    """An annotation that cannot be used; the text says why."""
