"""Whether image files have more than the 8 bits a channel that records have.

Pillow has no field for it: it decodes channels of 16 bits to their high bytes, without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image

_BITS_PER_SAMPLE = 258  # a tag of TIFF
_BC6H = 6  # half floats, by the number of the decoder of block compression
_HIGH_BIT_DEPTH = 0x40  # of the third byte of the box av1C


def is_deep(image: Image.Image, tile: Any, data: bytes) -> bool:
    """Return whether a channel of a file has more than 8 bits.

    Args:
        image: The image, which may be loaded.
        tile: Pillow's description of the encoded pixels before they were loaded, or None.
        data: Content of the file.
    """
    if image.mode.startswith(("I", "F")):
        return True
    find_depth = _DEPTHS.get(image.format or "")
    return find_depth is not None and find_depth(image, tile, data) > 8


def _png(_image: Image.Image, _tile: Any, data: bytes) -> int:
    return data[24]  # of IHDR, the first chunk


def _tiff(image: Any, _tile: Any, _data: bytes) -> int:
    depths = image.tag_v2.get(_BITS_PER_SAMPLE, 1)
    numbers = depths if isinstance(depths, tuple) else (depths,)
    return max((number for number in numbers if isinstance(number, int)), default=1)


def _ppm(_image: Image.Image, tile: Any, _data: bytes) -> int:
    arguments = getattr(tile, "args", ())
    arguments = arguments if isinstance(arguments, tuple) else (arguments,)
    return max(
        (argument.bit_length() for argument in arguments if isinstance(argument, int)), default=8
    )


def _sgi(_image: Image.Image, _tile: Any, data: bytes) -> int:
    return 8 * data[3]  # bytes a channel


def _jpeg_2000(_image: Image.Image, _tile: Any, data: bytes) -> int:
    start = data.find(b"\xff\x4f\xff\x51")  # SOC and SIZ (ITU-T T.800, A.5.1)
    number = int.from_bytes(data[start + 40 : start + 42], "big")
    depths = data[start + 42 : start + 42 + 3 * number : 3]
    return max(((depth & 0x7F) + 1 for depth in depths), default=8)


def _avif(_image: Image.Image, _tile: Any, data: bytes) -> int:
    start = data.find(b"av1C")
    is_high = start >= 0 and data[start + 6 : start + 7] and data[start + 6] & _HIGH_BIT_DEPTH
    if is_high:
        return 10
    return 8


def _heif(image: Image.Image, _tile: Any, _data: bytes) -> int:
    depth = image.info.get("bit_depth")
    if isinstance(depth, int):
        return depth
    return 8


def _dds(_image: Image.Image, tile: Any, _data: bytes) -> int:
    is_block = getattr(tile, "codec_name", "") == "bcn"
    if is_block and tile.args[0] == _BC6H:
        return 16
    return 8


_DEPTHS: dict[str, Callable[[Any, Any, bytes], int]] = {
    "AVIF": _avif,
    "DDS": _dds,
    "HEIF": _heif,
    "JPEG2000": _jpeg_2000,
    "PNG": _png,
    "PPM": _ppm,
    "SGI": _sgi,
    "TIFF": _tiff,
}
