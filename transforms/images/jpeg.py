"""Decode JPEGs with simplejpeg, which gives Pillow's pixels in four fifths of its time.

Both use libjpeg-turbo. Pillow copies each line twice and holds the interpreter's lock between them.
"""

from __future__ import annotations

import simplejpeg
from PIL import Image

_COLOR_SPACES = {"RGB": "RGBX", "L": "GRAY"}  # by Pillow's mode; CMYK is left to Pillow
# JPEG markers (ITU-T T.81, table B.1): of frames, and those without a segment.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
# Baseline, extended and progressive frames: libjpeg-turbo scales no others, and where it should,
# a lossless one makes Pillow corrupt the heap.
HUFFMAN_DCT = (0xC0, 0xC1, 0xC2)


def jpeg_frame(data: bytes) -> int | None:
    """Return the second byte of the first frame marker of a JPEG; None if there is none.

    Bytes between segments are skipped, as libjpeg does.
    """
    at = 0
    while at + 4 <= len(data):
        marker = data[at + 1]
        if data[at] != 0xFF or marker == 0xFF:
            at += 1
        elif marker in _FRAMES:
            return marker
        elif marker in _BARE:
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


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
