"""Decode JPEGs with simplejpeg at the scale that Pillow chose; see ``schemas.jpeg``."""

from __future__ import annotations

import simplejpeg
from PIL import Image

_COLOR_SPACES = {"RGB": "RGBX", "L": "GRAY"}  # by Pillow's mode; CMYK is left to Pillow


def decode_jpeg(data: bytes, header: Image.Image) -> Image.Image | None:
    """Return a decoded JPEG; None if Pillow must decode it.

    Args:
        data: Content of the file.
        header: The image as Pillow opened it; ``draft`` may have chosen a smaller size.
    """
    space = _COLOR_SPACES.get(header.mode)
    if space is None:
        return None
    width, height = header.size
    try:
        # libjpeg scales by eighths: only the scale that Pillow chose gives this size.
        pixels = simplejpeg.decode_jpeg(data, space, min_height=height, min_width=width)
    except ValueError:  # damaged, or of a rare kind, which Pillow may read
        return None
    if pixels.shape[:2] != (height, width):
        return None
    mode = "L" if space == "GRAY" else space
    image = Image.frombuffer(mode, header.size, pixels, "raw", mode, 0, 1)  # without a copy
    if mode == "RGBX":  # Pillow's own RGB images have a fourth byte too
        image.im.setmode("RGB")
        image._mode = "RGB"  # noqa: SLF001 - as Image.putalpha does
    image.info = header.info
    return image
