"""Convert masks of images, whose pixels are classes: the same places, without mixing values."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.images import decode
from shardmill.transforms.images.fields import BoxesFrame
from shardmill.transforms.images.resize import Geometry, Size

_MODES = frozenset({"1", "L", "P", "I", "I;16", "I;16B"})
_FORMATS = frozenset({"PNG", "GIF", "BMP", "TIFF"})
_RULE = "masks are PNG, GIF, BMP or TIFF of one channel"
_STEPS = {"L;2": 85, "L;4": 17}
MASK_FORMAT = "png"


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
    wanted = geometry.stored if is_stored else geometry.upright
    if size != wanted:
        raise RejectedError(
            "decode", "mask",
            f"the mask has {size.width}x{size.height} pixels, and the image "
            f"{wanted.width}x{wanted.height}",
        )  # fmt: skip
    if image.mode not in _MODES or image.format not in _FORMATS:
        raise RejectedError(
            "decode", "mask",
            f"the mask has the format {image.format} and the mode {image.mode}: {_RULE}",
        )  # fmt: skip
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
