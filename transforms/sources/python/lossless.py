"""Files of the pixels that Python sources give, from which the decoder converts them as of files.

So there is one conversion of pixels, that of ``convert.to_channels``: nothing here reduces them.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image, ImageOps

_PNG_MODES = frozenset({"1", "I;16", "L", "LA", "P", "RGB", "RGBA"})
_WITH_ALPHA = {"La": "LA", "PA": "RGBA", "RGBa": "RGBA"}
_ORIENTATION = 274
_MAX_16_BITS = 0xFFFF
_COLOR_TYPES = {2: 4, 3: 2, 4: 6}  # PNG, 11.2.2: of grey with alpha, RGB and RGBA


def from_pixels(value: Any) -> Image.Image | bytes:
    """Return an image of Pillow, or the file of an image that Pillow cannot hold.

    Args:
        value: An image of Pillow, or an array of the shape [height, width] or [height, width,
            channels] of uint8 or uint16 with 1 to 4 channels; bool or uint32 with one channel.

    Raises:
        TypeError, ValueError: It is neither.
    """
    if isinstance(value, Image.Image):
        return value
    pixels = np.asarray(value)
    if pixels.dtype.kind not in "bu" or pixels.ndim < 2 or np.ma.is_masked(value):
        raise TypeError
    if not pixels.size:
        raise ValueError
    pixels = pixels.astype(pixels.dtype.newbyteorder("="), copy=False)
    if pixels.shape[2:] == (1,):
        pixels = pixels[..., 0]
    if pixels.dtype == np.uint16 and pixels.ndim == 3 and pixels.shape[2] in _COLOR_TYPES:
        return _encode_16_bits(pixels)
    return Image.fromarray(pixels)


def encode_lossless(image: Image.Image) -> bytes:
    """Return the file of an image of Pillow, turned upright as its Exif orientation says.

    Raises:
        OSError, SyntaxError, ValueError: Pillow fails to load the image, or to convert its mode.
    """
    if image.mode != "I;16" and _has_16_bits(image):
        image = _native_order(image)
    image = ImageOps.exif_transpose(image)
    file = io.BytesIO()
    if image.mode in ("I", "F"):  # the decoder knows which of their pixels have 8 bits
        image.info = {}
        image.save(file, "TIFF")
        return file.getvalue()
    if image.mode not in _PNG_MODES:
        image = image.convert(_WITH_ALPHA.get(image.mode, "RGB"))
    image.save(file, "PNG", compress_level=0)
    return file.getvalue()


def _native_order(image: Image.Image) -> Image.Image:
    """Return an image of 16 bits in the order of bytes that Pillow writes and rotates."""
    orientation = image.getexif().get(_ORIENTATION, 1)
    pixels = np.asarray(image)
    native = Image.fromarray(pixels.astype(np.uint16))
    native.getexif()[_ORIENTATION] = orientation
    native.info.update({k: v for k, v in image.info.items() if k != "exif"})
    return native


def _has_16_bits(image: Image.Image) -> bool:
    """Return whether PNG can hold the integers of an image in 16 bits."""
    if image.mode != "I":
        return image.mode.startswith("I;16")
    pixels = np.asarray(image)
    return bool(pixels.min() >= 0 and pixels.max() <= _MAX_16_BITS)


def _encode_16_bits(pixels: np.ndarray[Any, Any]) -> bytes:
    """Return the PNG of pixels of several channels of 16 bits, for which Pillow has no mode."""
    height, width, channels = pixels.shape
    rows = pixels.astype(">u2").reshape(height, width * channels).view(np.uint8)
    no_filter = np.zeros((height, 1), np.uint8)
    content = zlib.compress(np.hstack([no_filter, rows]).tobytes(), 0)
    header = struct.pack(">IIBBBBB", width, height, 16, _COLOR_TYPES[channels], 0, 0, 0)
    parts = [b"\x89PNG\r\n\x1a\n"]
    for kind, data in ((b"IHDR", header), (b"IDAT", content), (b"IEND", b"")):
        parts += [struct.pack(">I", len(data)), kind, data]
        parts.append(struct.pack(">I", zlib.crc32(data, zlib.crc32(kind))))
    return b"".join(parts)
