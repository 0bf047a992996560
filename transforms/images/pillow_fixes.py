"""Fixes for files that Pillow decodes to wrong pixels without an error."""

from __future__ import annotations

import contextlib
import ctypes
import io
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import PIL
from PIL import Image, ImageChops, ImageFile, TiffImagePlugin

from shardmill.schemas.refs import RejectedError

# The transparent value of a grey PNG has the depth of the file, but Pillow's pixels have 8 bits.
_GREY_STEPS = {"L;2": 85, "L;4": 17}
_RGB_16, _RGB_16_LOW = "RGB;16B", "RGB;16L"  # Pillow's raw modes of the high and the low bytes
_TIFF_COMPRESSION, _TIFF_PHOTOMETRIC, _TIFF_YCBCR = 259, 262, 6
_TIFF_DECISIVE = (_TIFF_COMPRESSION, _TIFF_PHOTOMETRIC)
_TIFF_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_TIFF_SHORT = 3
# LZW, Deflate, PackBits, LZMA, Zstandard: libtiff fails if their data end before the strip is full.
_TIFF_COMPLETE = frozenset({5, 8, 32773, 32946, 34925, 50000})
# malloc.h of glibc: the complement of the byte that fills memory which malloc returns; 0 for none.
_M_PERTURB = -6
_mallopt: Callable[[int, int], int] = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)


def fix_reader(image: ImageFile.ImageFile) -> None:
    """Replace the decoder of an image that is not loaded yet, if Pillow has chosen a wrong one.

    Uncompressed YCbCr TIFFs are decoded by libtiff, as compressed ones are. Pillow reads their
    samples as RGBX: it fails, or returns noise if enough bytes follow the samples.
    """
    if not isinstance(image, TiffImagePlugin.TiffImageFile) or not image.tile:
        return
    if image.tag_v2.get(_TIFF_PHOTOMETRIC) != _TIFF_YCBCR or image.tile[0].codec_name != "raw":
        return
    image.use_load_libtiff = True
    # The extents of the strips: image.size already has the orientation of the file applied.
    covered = [tile.extents for tile in image.tile if tile.extents]
    extents = (0, 0, max(box[2] for box in covered), max(box[3] for box in covered))
    image._mode = "RGB"  # noqa: SLF001 - YCbCr in Pillow 13, which Pillow 12 has never
    arguments: tuple[object, ...] = ("RGBX", False, image.tag_v2.offset)
    if int(PIL.__version__.split(".")[0]) < 13:  # which takes the name of the compression too
        arguments = ("RGBX", "raw", False, image.tag_v2.offset)
    image.tile = [ImageFile._Tile("libtiff", extents, 0, arguments)]  # noqa: SLF001


def load_pixels(image: ImageFile.ImageFile, data: bytes) -> None:
    """Load an image, and reject it if libtiff leaves pixels as they were in the memory.

    libtiff accepts fax data that end early and JPEG data of fewer rows than the strip has. The rest
    of the strip then shows what the memory held before, such as parts of earlier images. So the
    image is decoded twice, in memory filled with different bytes, and rejected on a difference.
    Only glibc fills memory; with other C libraries the difference is not certain.

    Args:
        image: The image, after ``fix_reader``.
        data: Content of the file.

    Raises:
        RejectedError: Pixels are not defined by the file.
    """
    if (
        not isinstance(image, TiffImagePlugin.TiffImageFile)
        or not image.tile
        or image.tile[0].codec_name != "libtiff"
        or _fails_if_incomplete(data, image.tag_v2.offset)
    ):
        image.load()
        return
    again = Image.open(io.BytesIO(data), formats=("TIFF",))
    fix_reader(again)
    with _filled_memory(0x55):
        image.load()
    with _filled_memory(0xAA):
        again.load()
    if image.tobytes() != again.tobytes():
        raise RejectedError("decode", "decode", "the data are damaged: they do not give all pixels")


def _fails_if_incomplete(data: bytes, directory: int) -> bool:
    """Return whether libtiff fails if the data of a TIFF do not define all its pixels.

    It does for most compressions. Pillow and libtiff may read a tag that is repeated, or of an odd
    type, differently, so the directory must have each of those that decide once, as a number of
    16 bits.

    Args:
        data: Content of the file.
        directory: Offset of the image's directory.
    """
    order = _TIFF_ORDERS.get(data[:4])
    if order is None:  # a BigTIFF
        return False
    (number,) = struct.unpack_from(order + "H", data, directory)
    table = data[directory + 2 : directory + 2 + 12 * number]
    if len(table) % 12:
        return False
    entries = [e for e in struct.iter_unpack(order + "HHIH2x", table) if e[0] in _TIFF_DECISIVE]
    if [entry[:3] for entry in entries] != [(tag, _TIFF_SHORT, 1) for tag in _TIFF_DECISIVE]:
        return False
    compression, photometric = (entry[3] for entry in entries)
    return compression in _TIFF_COMPLETE and photometric != _TIFF_YCBCR


@contextlib.contextmanager
def _filled_memory(value: int) -> Iterator[None]:
    """Let malloc fill the memory that it returns, and that is freed, until the block ends."""
    _mallopt(_M_PERTURB, value)
    try:
        yield
    finally:
        _mallopt(_M_PERTURB, 0)


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
