"""Boxes of an annotation, as a reference carries them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.example.serialize import FeatureValue, encode_example
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.match.labels import check_label

_MAX_BYTES = 1 << 20  # of the boxes of an image: shuffles carry them


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
    """

    width: int = 0
    height: int = 0
    boxes: Sequence[Box] = ()
    outlines: int = 0


class AnnotationError(Exception):
    """An annotation that cannot be used; the text says why."""


def attach(
    ref: InputRef, annotation: Annotation, labels: frozenset[str] | None = None
) -> InputRef:  # fmt: skip
    """Return a reference with the boxes of its annotation, or rejected if they cannot be used.

    Args:
        ref: The reference.
        annotation: Its annotation.
        labels: The labels that boxes may have; None for any.
    """
    boxes = annotation.boxes
    classes = sorted({box.text for box in boxes}, key=str.encode)
    try:
        for text in classes:
            check_label(text, labels)
    except RejectedError as error:
        return ref.rejected(error.error, error.message)
    fields: dict[str, FeatureValue] = {
        "box/size": (annotation.width, annotation.height),
        "box/outlines": annotation.outlines,
        "box/text": [box.text.encode() for box in boxes],
        "box/sides": [float(side) for box in boxes for side in box[1:5]],
        "box/flags": [int(flag) for box in boxes for flag in box[5:8]],
        "box/area": [_area(box) for box in boxes],
    }
    made = with_fields(ref, fields)
    if len(made.attached) > _MAX_BYTES:
        return ref.rejected("annotation", f"{len(boxes):,} boxes exceed {_MAX_BYTES:,} bytes")
    return made._replace(classes=tuple(classes))


def _area(box: Box) -> float:
    return float((box.xmax - box.xmin) * (box.ymax - box.ymin) if box.area is None else box.area)


def with_attached(ref: InputRef, other: InputRef) -> InputRef:
    """Return a reference with the values that another one has, too."""
    if not ref.attached:  # then nothing is parsed
        return ref._replace(attached=other.attached)
    return with_fields(ref, {k: each.values for k, each in parse_example(other.attached).items()})


def with_fields(ref: InputRef, fields: Mapping[str, FeatureValue]) -> InputRef:
    """Return a reference with more values of features, by field."""
    known = {name: feature.values for name, feature in parse_example(ref.attached).items()}
    return ref._replace(attached=encode_example({**known, **fields}))
