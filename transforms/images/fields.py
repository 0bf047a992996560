"""Values of the features of an image record, by ``Feature.field``: those that are not pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.refs import InputRef
from shardmill.transforms.images.resize import Geometry, Size

BoxesFrame = Literal["", "stored", "upright"]
Corners = npt.NDArray[np.float64]  # [boxes, 2, 2]: the corners of a box, each x and y
_SIDES = ("xmin", "ymin", "xmax", "ymax")
# Fields with one value for each box; those of a box that is left out are left out.
_OF_BOXES = ("text", "class_id", "difficult", "truncated", "is_crowd", "area")


def input_fields(ref: InputRef, ids: Mapping[str, int]) -> dict[str, Any]:
    """Return the values of features of an input.

    Args:
        ref: The input.
        ids: The number of each label.
    """
    fields: dict[str, Any] = {"key": ref.key.encode()}
    if ref.attached:
        attached = parse_example(ref.attached)
        fields |= {name: feature.values for name, feature in attached.items()}
        if ref.mask:
            fields["mask_hash"] = fields["mask_hash"][0].decode()
    if "box/size" in fields:
        texts = fields.get("box/text", ())
        fields["box/class_id"] = [ids[text.decode()] for text in texts]
    elif ref.classes:
        fields["label"] = [text.encode() for text in ref.classes]
        fields["class_id"] = [ids[text] for text in ref.classes]
    elif ref.label is not None:
        fields |= {"label": ref.label.encode(), "class_id": ids[ref.label]}
    return fields


def place_boxes(
    fields: Mapping[str, Any], geometry: Geometry, frame: BoxesFrame = ""
) -> dict[str, Any]:
    """Return the fields of boxes as they are in the record, and their counts for the catalog.

    Args:
        fields: Fields of an annotation: for each box its sides in pixels of the annotation's image,
            and ``box/size``, width and height of that image: 1 and 1 if sides are fractions, 0 and
            0 if it is unknown.
        geometry: Where the pixels of the file are in the record.
        frame: What boxes refer to: the image in the file before or after it is rotated; empty to
            decide by ``box/size`` if the rotation changes the size.
    """
    sides = [np.array(fields.get(f"box/{side}", ()), np.float64) for side in _SIDES]
    corners = np.stack(sides, axis=1).reshape(-1, 2, 2) if len(sides[0]) else np.empty((0, 2, 2))
    given = Size(*fields["box/size"])
    is_fraction = given == (1, 1)
    known = given != (0, 0) and not is_fraction
    is_stored = frame == "stored" or (
        not frame and given == geometry.stored != geometry.upright and known
    )
    source = geometry.stored if is_stored else geometry.upright
    if is_fraction:
        corners = corners * source
    whole = _is_box(corners)
    inside = np.clip(corners, 0, source)
    shown = _is_box(inside)
    placed = place_points(inside, geometry, stored=is_stored)
    placed.sort(axis=1)
    cut = np.clip(placed, 0, geometry.size)
    kept = _is_box((cut / geometry.size).astype(np.float32)) & whole & shown
    clipped = np.logical_or.reduce((inside != corners).reshape(-1, 4), axis=1)
    result: dict[str, Any] = {
        f"box/{side}": values
        for side, values in zip(
            _SIDES, (cut / geometry.size).reshape(-1, 4)[kept].T.tolist(), strict=True
        )
    }
    for name in _OF_BOXES:
        values = fields.get(f"box/{name}", ())
        result[f"box/{name}"] = [value for value, keep in zip(values, kept, strict=True) if keep]
    return result | {
        "boxes": int(kept.sum()),
        "boxes_clipped": int((kept & clipped).sum()),
        "boxes_empty": int((~whole).sum()),
        "boxes_outside": int((whole & ~shown).sum()),
        "boxes_cropped": int((whole & shown & ~kept).sum()),
        "boxes_size_differs": int(known and given not in (geometry.stored, geometry.upright)),
        "boxes_stored_frame": int(is_stored),
    }


def _is_box(corners: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return whether corners are those of boxes with an area; not of NaN."""
    is_box: npt.NDArray[np.bool_] = np.logical_and.reduce(corners[:, 0] < corners[:, 1], axis=1)
    return is_box


def place_points(points: Corners, geometry: Geometry, *, stored: bool) -> Corners:
    """Return where points of a file are in its record, in pixels of it.

    Args:
        points: The points; last axis x and y, in pixels from the upper left corner.
        geometry: Where the pixels of the file are in the record.
        stored: Whether the points are those of the image before it is rotated.
    """
    if stored:
        points = rotate_points(points, geometry.stored, geometry.orientation)
    ratio = np.divide(geometry.scaled, geometry.upright)
    return points * ratio + (geometry.left, geometry.top)


def rotate_points(points: Corners, stored: Size, orientation: int) -> Corners:
    """Return points of a stored image where its EXIF orientation (TIFF 6.0, tag 274) moves them.

    Args:
        points: The points; last axis x and y.
        stored: Size of the image before it is rotated.
        orientation: Its EXIF orientation, 1 to 8.
    """
    x, y = points[..., 0], points[..., 1]
    right, below = stored.width - x, stored.height - y
    upright = {
        1: (x, y), 2: (right, y), 3: (right, below), 4: (x, below),
        5: (y, x), 6: (below, x), 7: (below, right), 8: (y, right),
    }  # fmt: skip
    return np.stack(upright[orientation], axis=-1)
