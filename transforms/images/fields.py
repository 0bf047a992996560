"""Values of the features of an image record, by ``Feature.field``."""

from __future__ import annotations

import io
from collections.abc import Mapping
from operator import mul
from typing import Any, Literal

import numpy as np
from PIL import Image

from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.refs import InputRef, RejectedError
from shardmill.schemas.schema_pbtxt.image_features import BOX_COUNTS
from shardmill.transforms.images import decode
from shardmill.transforms.images.resize import Geometry, Size

BoxesFrame = Literal["", "stored", "upright"]
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_VALUES = ("text", "class_id", "area", "category_id")
_FLAGS = ("difficult", "truncated", "is_crowd")
_Box = tuple[float, float, float, float]  # left, upper, right and lower side
_LEAST = 1e-6  # of a side, as a fraction of the image: float32 cannot hold much less
_MODES = frozenset({"1", "L", "P", "I", "I;16", "I;16B"})
_FORMATS = frozenset({"PNG", "GIF", "BMP", "TIFF"})
_RULE = "masks are PNG, GIF, BMP or TIFF of one channel"
_STEPS = {"L;2": 85, "L;4": 17}
MASK_FORMAT = "png"


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
        fields["box/class_id"] = [ids[text.decode()] for text in fields["box/text"]]
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
        fields: Fields of an annotation: ``box/sides`` (for each box left, upper, right and lower in
            pixels of the annotation's image), ``box/flags``, ``box/text``, ``box/class_id``,
            ``box/area``, perhaps ``box/category_id``; ``box/outlines``, the number of outlines; and
            ``box/size``, width and height of that image: 1 and 1 if sides are fractions, 0 and 0 if
            it is unknown.
        geometry: Where the pixels of the file are in the record.
        frame: What boxes refer to: the image in the file before or after it is rotated; empty to
            decide by ``box/size`` if the rotation changes the size.
    """
    given = Size(*fields["box/size"])
    has_size = given not in ((0, 0), (1, 1))
    is_stored = frame == "stored" or (
        not frame and given == geometry.stored != geometry.upright and has_size
    )
    source = geometry.stored if is_stored else geometry.upright
    unit = source if given == (1, 1) else (1, 1)
    counts = dict.fromkeys(BOX_COUNTS, 0)
    counts["boxes_size_differs"] = int(
        has_size and given not in (geometry.stored, geometry.upright)
    )
    counts["boxes_stored_frame"] = int(is_stored)
    counts["outlines"] = fields["box/outlines"][0]
    kept, placed = [], []
    sides = fields["box/sides"]
    for number, box in enumerate(zip(*(sides[side::4] for side in range(4)), strict=True)):
        left, upper, right, lower = box if unit == (1, 1) else map(mul, box, unit * 2)
        if right < left or lower < upper:
            counts["boxes_swapped"] += 1
            continue
        if not (left < right and upper < lower):  # also NaN
            counts["boxes_empty"] += 1
            continue
        inside = max(left, 0), max(upper, 0), min(right, source.width), min(lower, source.height)
        if not (inside[0] < inside[2] and inside[1] < inside[3]):
            counts["boxes_outside"] += 1
            continue
        result = _place_box(inside, geometry, stored=is_stored)
        if min(result[2] - result[0], result[3] - result[1]) < _LEAST:
            counts["boxes_cropped"] += 1
            continue
        counts["boxes_clipped"] += inside != (left, upper, right, lower)
        kept.append(number)
        placed.append(result)
    counts["boxes"] = len(kept)
    columns: dict[str, Any] = dict(
        zip(_FLAGS, (fields["box/flags"][n::3] for n in range(3)), strict=True)
    )
    names = [name for name in _VALUES if f"box/{name}" in fields]
    columns |= {name: fields[f"box/{name}"] for name in names}
    return {
        **counts,
        **{f"box/{side}": [box[n] for box in placed] for n, side in enumerate(_SIDES)},
        **{f"box/{name}": [values[n] for n in kept] for name, values in columns.items()},
    }


def _place_box(box: _Box, geometry: Geometry, *, stored: bool) -> _Box:
    """Return the sides of a box as fractions of the record's image, which clips it.

    Args:
        box: The sides in pixels of the file.
        geometry: Where the pixels of the file are in the record.
        stored: Whether they are those of the image before it is rotated.
    """
    if stored:
        left, upper, right, lower = rotate_box(box, geometry.stored, geometry.orientation)
    else:
        left, upper, right, lower = box
    scaled, upright, size = geometry.scaled, geometry.upright, geometry.size
    x, y = scaled.width / upright.width, scaled.height / upright.height
    return (
        max(left * x + geometry.left, 0) / size.width,
        max(upper * y + geometry.top, 0) / size.height,
        min(right * x + geometry.left, size.width) / size.width,
        min(lower * y + geometry.top, size.height) / size.height,
    )


def rotate_box(box: _Box, stored: Size, orientation: int) -> _Box:
    """Return a box of a stored image where its EXIF orientation (TIFF 6.0, tag 274) moves it.

    Args:
        box: Left, upper, right and lower side.
        stored: Size of the image before it is rotated.
        orientation: Its EXIF orientation, 1 to 8.
    """
    left, upper, right, lower = box
    if orientation in (2, 3, 7, 8):
        left, right = stored.width - right, stored.width - left
    if orientation in (3, 4, 6, 7):
        upper, lower = stored.height - lower, stored.height - upper
    if orientation >= 5:
        return (upper, left, lower, right)
    return (left, upper, right, lower)


def convert_mask(data: bytes, geometry: Geometry, frame: BoxesFrame = "") -> bytes:
    """Return the PNG of a mask as the image is in its record: one channel, black in added bars.

    Args:
        data: Content of the file; a palette's indices are the classes.
        geometry: Where the pixels of the image are in the record.
        frame: Whether the mask is one of the image before or after it is rotated; empty to decide
            by its size.

    Raises:
        RejectedError: It is not an image of one channel with the size of the image, or has a value
            above 255.
    """
    image = decode.open_image(data)
    size = Size(*image.size)
    is_stored = frame == "stored" or (not frame and size == geometry.stored != geometry.upright)
    expected = geometry.stored if is_stored else geometry.upright
    if size != expected:
        raise RejectedError(
            "decode",
            "mask",
            f"the mask has {size.width}x{size.height} pixels, and the image "
            f"{expected.width}x{expected.height}",
        )
    if image.mode not in _MODES or image.format not in _FORMATS:
        raise RejectedError(
            "decode",
            "mask",
            f"the mask has the format {image.format} and the mode {image.mode}: {_RULE}",
        )
    # Pillow spreads 2 and 4 bits of grey over all shades.
    tile = str(image.tile[:1])
    step = next((step for name, step in _STEPS.items() if name in tile), 1)
    classes = np.asarray(decode.load_image(image, data)) // step
    if classes.size and not 0 <= int(classes.min()) <= int(classes.max()) <= 0xFF:
        raise RejectedError("decode", "mask", f"the mask has the value {classes.max()}, above 255")
    mask = Image.fromarray(classes.astype(np.uint8))
    if is_stored:
        mask = decode.apply_orientation(mask, geometry.orientation)
    if mask.size != geometry.scaled:
        mask = mask.resize(geometry.scaled, Image.Resampling.NEAREST)
    left, upper = -geometry.left, -geometry.top
    if geometry.size != geometry.scaled:
        mask = mask.crop((left, upper, left + geometry.size.width, upper + geometry.size.height))
    buffer = io.BytesIO()
    mask.save(buffer, MASK_FORMAT)
    return buffer.getvalue()
