"""Fixes for valid files that Pillow decodes to wrong pixels without an error."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageFile, TiffImagePlugin

from shardmill.schemas.rejects import RejectedError

# The transparent value of a grey PNG has the depth of the file, but Pillow's pixels have 8 bits.
_GREY_STEPS = {"L;2": 85, "L;4": 17}
_RGB_16, _RGB_16_LOW = "RGB;16B", "RGB;16L"  # Pillow's raw modes of the high and the low bytes
_TIFF_PHOTOMETRIC, _TIFF_YCBCR = 262, 6


def fix_reader(image: ImageFile.ImageFile, data: bytes) -> None:
    """Replace the decoder of an image that is not loaded yet, if Pillow has chosen a wrong one.

    Uncompressed YCbCr TIFFs are decoded by libtiff, as compressed ones are. Pillow reads their
    samples as RGBX: it fails, or returns noise if enough bytes follow the samples.
    """
    if not isinstance(image, TiffImagePlugin.TiffImageFile) or not image.tile:
        return
    if image.tag_v2.get(_TIFF_PHOTOMETRIC) != _TIFF_YCBCR or image.tile[0].codec_name != "raw":
        return
    order = "<" if data[:2] == b"II" else ">"
    classic = struct.unpack_from(order + "H", data, 2) == (42,)
    (directory,) = struct.unpack_from(order + ("4xI" if classic else "8xQ"), data)
    image.use_load_libtiff = True
    # The extents of the strips: image.size already has the orientation of the file applied.
    covered = [tile.extents for tile in image.tile if tile.extents]
    extents = (0, 0, max(box[2] for box in covered), max(box[3] for box in covered))
    arguments = ("RGBX", "raw", False, directory)
    image.tile = [ImageFile._Tile("libtiff", extents, 0, arguments)]  # noqa: SLF001


def fix_pixels(image: Image.Image, tile: Any, data: bytes) -> Image.Image:
    """Return a loaded image with the pixels that its format defines.

    Args:
        image: The loaded image; returned itself if Pillow decoded it correctly.
        tile: Pillow's description of the encoded pixels (codec, extents, offset, arguments), read
            before loading; None for formats without one.
        data: Content of the file.

    Raises:
        RejectedError: Pillow cannot decode these pixels.
    """
    fix = _FIXES.get(image.format or "")
    if fix is None or tile is None:
        return image
    fixed = fix(image, tile, data)
    if fixed is not image:
        fixed.info.update(image.info)
        fixed.info.pop("transparency", None)
    return fixed


def _png(image: Image.Image, tile: Any, data: bytes) -> Image.Image:
    """Apply the tRNS chunk at bit depths at which Pillow compares it with scaled pixels."""
    key, depth = image.info.get("transparency"), tile[3]
    if isinstance(key, int) and depth in _GREY_STEPS:
        step = _GREY_STEPS[depth]
        image.info["transparency"] = key % (255 // step + 1) * step
    elif isinstance(key, tuple) and depth == _RGB_16 and image.mode == "RGB":
        return _with_16_bit_key(image, tile, data, key)
    return image


def _with_16_bit_key(
    image: Image.Image, tile: Any, data: bytes, key: tuple[int, ...]
) -> Image.Image:
    """Compare 16-bit colors; decode again for the low bytes, which Pillow drops."""
    low = Image.open(io.BytesIO(data), formats=("PNG",))
    low.tile = [tile._replace(args=_RGB_16_LOW)]
    high_bytes, low_bytes = np.asarray(image), np.asarray(low)
    same = np.ones(high_bytes.shape[:2], bool)
    for channel, value in enumerate(key):
        same &= high_bytes[..., channel] == value >> 8
        same &= low_bytes[..., channel] == value & 0xFF
    keyed = image.copy()
    keyed.putalpha(Image.fromarray(np.where(same, 0, 255).astype(np.uint8)))
    return keyed


def _gif(image: Image.Image, tile: Any, _data: bytes) -> Image.Image:
    """Make the screen transparent outside of a first frame that is smaller, as viewers do.

    Pillow fills it with the first color unless the frame has a transparent one.
    """
    if "transparency" in image.info or tile[1] == (0, 0, *image.size):
        return image
    covered = Image.new("L", image.size, 0)
    covered.paste(255, tile[1])
    framed = image.convert("RGB")
    framed.putalpha(covered)
    return framed


def _jpeg(image: Image.Image, _tile: Any, _data: bytes) -> Image.Image:
    """Undo the inversion of CMYK without Adobe's marker: Pillow inverts all CMYK JPEGs."""
    if image.mode != "CMYK" or "adobe" in image.info:
        return image
    return ImageChops.invert(image)


def _xbm(image: Image.Image, _tile: Any, _data: bytes) -> Image.Image:
    """Invert X bitmaps: a set bit is the foreground, black; Pillow decodes it as white."""
    return ImageChops.invert(image)


def _fits(image: Image.Image, _tile: Any, _data: bytes) -> Image.Image:
    if image.mode != "L":
        # Pillow reads the big-endian samples in native order and ignores BZERO and BSCALE.
        raise RejectedError("decode", "color", "FITS is read in 8 bits only")
    return image


_FIXES: dict[str, Callable[[Image.Image, Any, bytes], Image.Image]] = {
    "FITS": _fits,
    "GIF": _gif,
    "JPEG": _jpeg,
    "MPO": _jpeg,
    "PNG": _png,
    "XBM": _xbm,
}
