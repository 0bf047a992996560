"""JPEG frames, and pixels decoded with simplejpeg: Pillow's pixels in half of its time.

Both use libjpeg-turbo. Pillow copies each line twice and holds the interpreter's lock between them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import simplejpeg

# JPEG markers (ITU-T T.81, table B.1): of frames, and markers without a segment.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
# Baseline, extended and progressive frames: libjpeg-turbo scales no others, and where it should,
# a lossless one makes Pillow corrupt the heap.
HUFFMAN_DCT = (0xC0, 0xC1, 0xC2)
_COLOR_SPACES = {"Gray": "GRAY", "YCbCr": "RGB", "RGB": "RGB"}  # CMYK is left to Pillow
_MAX_PIXELS = 89_478_485  # above, Pillow warns of a decompression bomb, or rejects it


def jpeg_frame(data: bytes) -> int | None:
    """Return the second byte of the first frame marker of a JPEG, or None.

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


def decode_pixels(data: bytes) -> npt.NDArray[np.uint8] | None:
    """Return the pixels of a JPEG, [height, width, channels]; None if Pillow must decode it."""
    if not data.startswith(b"\xff\xd8") or jpeg_frame(data) not in HUFFMAN_DCT:
        return None
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        if height * width > _MAX_PIXELS or space not in _COLOR_SPACES:
            return None
        pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(data, _COLOR_SPACES[space])
    except ValueError:  # damaged, or of a rare kind, which Pillow may read
        return None
    return pixels
