"""Thumbnails: small JPEG images as data URIs."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

SIDE = 96  # pixels
_MAX_CLASS_ID = 31  # of pixels that are class ids rather than shades of grey


def is_picture(shape: Sequence[int], dtype: object, min_side: int = 8) -> bool:
    """Returns whether arrays of a shape and type can be shown as images."""
    has_pixels = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))
    return dtype == np.uint8 and has_pixels and min(shape[:2]) >= min_side


def make_thumbnail(pixels: Any) -> dict[str, Any]:
    """Returns the data URI of an image, and the width and height to show it in.

    Transparent pixels become white. Class ids of a segmentation are spread over all shades of grey.

    Args:
        pixels: uint8 of shape [height, width] or [height, width, 1, 3 or 4].
    """
    from PIL import Image

    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim == 3 and pixels.shape[2] == 4:
        alpha = pixels[:, :, 3:] / 255
        pixels = np.uint8(pixels[:, :, :3] * alpha + 255 * (1 - alpha))
    if pixels.ndim == 2 and 0 < pixels.max() <= _MAX_CLASS_ID:
        pixels = pixels * np.uint8(255 // pixels.max())
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=75, subsampling=0)
    scale = max(1, SIDE // max(image.size))
    return {
        "src": f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}",
        "width": image.width * scale, "height": image.height * scale, "enlarged": scale > 1,
    }  # fmt: skip
