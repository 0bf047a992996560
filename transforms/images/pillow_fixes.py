"""Mending: valid files whose pixels Pillow reads without complaint, but not as the format says."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageFile, TiffImagePlugin

from shardmill.schemas.rejects import RejectedError

# A grey PNG's transparent value is written in the file's depth, its pixels come in 8 bits.
_GREY_STEPS = {"L;2": 85, "L;4": 17}
_RGB_16, _RGB_16_LOW = "RGB;16B", "RGB;16L"  # Pillow's names of the high and the low bytes
_TIFF_PHOTOMETRIC, _TIFF_YCBCR = 262, 6


def prepare(image: ImageFile.ImageFile, data: bytes) -> None:
    """Sets a reader, before loading, where Pillow would take the wrong one.

    Uncompressed YCbCr TIFFs go through libtiff, as compressed ones do: Pillow takes their samples
    for RGBX, and fails or, with enough bytes behind them, gives noise.
    """
    if not isinstance(image, TiffImagePlugin.TiffImageFile) or not image.tile:
        return
    if image.tag_v2.get(_TIFF_PHOTOMETRIC) != _TIFF_YCBCR or image.tile[0].codec_name != "raw":
        return
    order = "<" if data[:2] == b"II" else ">"
    classic = struct.unpack_from(order + "H", data, 2) == (42,)
    (directory,) = struct.unpack_from(order + ("4xI" if classic else "8xQ"), data)
    image.use_load_libtiff = True
    # Of the strips, not image.size: that is turned already where the file has an orientation.
    covered = [tile.extents for tile in image.tile if tile.extents]
    extents = (0, 0, max(box[2] for box in covered), max(box[3] for box in covered))
    arguments = ("RGBX", "raw", False, directory)
    image.tile = [ImageFile._Tile("libtiff", extents, 0, arguments)]  # noqa: SLF001


def mended(image: Image.Image, tile: Any, data: bytes) -> Image.Image:
    """Returns a loaded image with the pixels that its format says, the same one if they are.

    Args:
        image: The loaded image.
        tile: Pillow's (codec, extents, offset, arguments) of its pixels, taken before loading;
            None for formats that do without.
        data: The file's bytes.

    Raises:
        RejectedError: The pixels cannot be known.
    """
    mend = _MENDS.get(image.format or "")
    if mend is None or tile is None:
        return image
    fresh = mend(image, tile, data)
    if fresh is not image:
        fresh.info.update(image.info)
        fresh.info.pop("transparency", None)
    return fresh


def _png(image: Image.Image, tile: Any, data: bytes) -> Image.Image:
    """Makes transparent what a tRNS chunk names, in depths where Pillow compares other numbers."""
    key, depth = image.info.get("transparency"), tile[3]
    if isinstance(key, int) and depth in _GREY_STEPS:
        step = _GREY_STEPS[depth]
        image.info["transparency"] = key % (255 // step + 1) * step
    elif isinstance(key, tuple) and depth == _RGB_16 and image.mode == "RGB":
        return _with_deep_key(image, tile, data, key)
    return image


def _with_deep_key(image: Image.Image, tile: Any, data: bytes, key: tuple[int, ...]) -> Image.Image:
    """Compares whole 16-bit colours: Pillow keeps high bytes, so a second pass reads the low."""
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
    """Leaves transparent what a first frame smaller than the screen does not cover.

    Viewers do; Pillow fills it with the first colour unless the frame has a transparent one.
    """
    if "transparency" in image.info or tile[1] == (0, 0, *image.size):
        return image
    covered = Image.new("L", image.size, 0)
    covered.paste(255, tile[1])
    framed = image.convert("RGB")
    framed.putalpha(covered)
    return framed


def _jpeg(image: Image.Image, _tile: Any, _data: bytes) -> Image.Image:
    """Only files with Adobe's marker hold inverted inks; Pillow inverts all."""
    if image.mode != "CMYK" or "adobe" in image.info:
        return image
    return ImageChops.invert(image)


def _xbm(image: Image.Image, _tile: Any, _data: bytes) -> Image.Image:
    """In an X bitmap a set bit is the foreground, black; Pillow makes it white."""
    return ImageChops.invert(image)


def _fits(image: Image.Image, _tile: Any, _data: bytes) -> Image.Image:
    if image.mode != "L":
        # Pillow reads big-endian samples in the machine's order, without BZERO and BSCALE.
        raise RejectedError("decode", "color", "FITS is read in 8 bits only")
    return image


_MENDS: dict[str, Callable[[Image.Image, Any, bytes], Image.Image]] = {
    "FITS": _fits,
    "GIF": _gif,
    "JPEG": _jpeg,
    "MPO": _jpeg,
    "PNG": _png,
    "XBM": _xbm,
}
