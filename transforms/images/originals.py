"""JPEG and PNG files that records may contain as they are, or without their metadata.

A file is kept only if TensorFlow decodes it to Pillow's pixels. Tests find the kinds of such
files; here, the whole file must have the structure of one kind. All other files are converted.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator

from PIL import ExifTags, Image

from shardmill.schemas.jpeg import HUFFMAN_DCT
from shardmill.transforms.images.decode import Decoded

# JPEG markers (ITU-T T.81, table B.1).
_SOS, _EOI, _APP2, _APP15, _COM = 0xDA, 0xD9, 0xE2, 0xEF, 0xFE
_PIXELS = frozenset({*HUFFMAN_DCT, 0xC4, 0xDB, 0xDD, _SOS})  # frames, tables, scans
# Segments from which libjpeg knows the color space, and what it reads of each.
_COLOR = {0xE0: (b"JFIF\0", 14), 0xEE: (b"Adobe", 12)}
_THUMBNAIL = 12  # offset of its width and height in a JFIF segment
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7]")  # restart markers are part of the scan
_SRGB = (b"sRGB", "sRGB".encode("utf-16-be"))  # in the description of a profile
# Size, depth, color type (grey, RGB, RGBA), compression, filter, and whether it is interlaced.
_PNG_HEADER = re.compile(rb".{8}\x08[\0\2\6]\0\0[\0\1]", re.DOTALL)
_PNG_PIXELS = frozenset({b"IHDR", b"IDAT", b"IEND"})
# A transparent color, further frames, the color space of a video; PLTE and others are critical.
_PNG_CONVERTED = frozenset({b"tRNS", b"acTL", b"fcTL", b"fdAT", b"cICP"})
_PNG_ANCILLARY = re.compile(rb"[a-z][A-Za-z][A-Z][A-Za-z]")
# First column, first row and distance of rows of the passes of an interlaced PNG.
_PASSES = ((0, 0, 8), (4, 0, 8), (0, 4, 8), (2, 0, 4), (0, 2, 4), (1, 0, 2), (0, 1, 2))
# Modes of files by the channels of records: readers repeat a grey channel.
_MODES = {1: ("L",), 3: ("RGB", "L"), 4: ("RGBA",)}
_POSITION = frozenset({2, 4})  # latitude and longitude in EXIF's GPS directory


def find_original(
    data: bytes, decoded: Decoded, channels: int, *, strip: bool = False
) -> tuple[bytes, str] | None:
    """Return the file if a record may contain it, and whether it has a position.

    Args:
        data: Content of the file.
        decoded: The decoded image, and the size that it will have.
        channels: Channels of the record's image.
        strip: Whether to remove all that pixels do not depend on.

    Returns:
        The bytes and ``kept`` or ``kept_with_position``, or None if the pixels must be encoded.
    """
    image, geometry = decoded.image, decoded.geometry
    if (
        geometry.orientation != 1
        or not geometry.stored == geometry.size == image.size
        or decoded.multi_frame
        or image.mode not in _MODES[channels]
        or not (decoded.strict or decoded.format == "PNG")
    ):
        return None
    read = _jpeg_segments if decoded.strict else _png_chunks
    try:
        content = b"".join(read(data, image, strip=strip))
    except (IndexError, ValueError, struct.error, zlib.error):
        return None
    return content, "kept" if strip or not _has_position(image) else "kept_with_position"


def _jpeg_segments(data: bytes, _: Image.Image, *, strip: bool) -> Iterator[bytes]:
    """Yield the segments of a JPEG that libjpeg decoded without a warning.

    Raises:
        IndexError, struct.error: It is not complete.
        ValueError: It is not of one of the usual kinds.
    """
    yield data[:2]
    at, components, profile = 2, b"", b""
    coefficients: set[tuple[int, int]] = set()  # of each component, with all bits
    while data[at : at + 2] != bytes((0xFF, _EOI)):
        mark, marker, length = struct.unpack_from(">BBH", data, at)
        end = at + 2 + length
        if marker == _SOS:
            coefficients |= _complete(data[at + 4 : end])
            after = _AFTER_SCAN.search(data, end)
            end = after.start() if after else len(data)
        elif marker in HUFFMAN_DCT:
            components += data[at + 9 : at + 10]
        kept = marker in _PIXELS
        if mark != 0xFF or length < 2 or not (kept or marker == _COM or 0xE0 <= marker <= _APP15):
            raise ValueError("a rare marker")
        if marker == _APP2:
            profile += data[at:end].partition(b"ICC_PROFILE\0")[2]
        if kept or not strip:
            yield data[at:end]
        else:
            yield _color_segment(marker, data[at + 4 : end])
        at = end
    # The pixels of a progressive image that ends early depend on the version of libjpeg.
    if len(components) != 1 or len(coefficients) != 64 * components[0]:
        raise ValueError("several frames, or missing coefficients")
    yield data[at : at + 2]
    _check_end(data, at + 2, profile, strip=strip)


def _complete(scan: bytes) -> set[tuple[int, int]]:
    """Return the components and numbers of the coefficients whose last bits a scan has."""
    components = scan[1 : 1 + 2 * scan[0] : 2]
    first, last, bits = scan[1 + 2 * scan[0] :]
    if bits & 15:
        return set()
    return {(c, k) for c in components for k in range(first, last + 1)}


def _color_segment(marker: int, content: bytes) -> bytes:
    """Return the part of a segment that libjpeg reads, without a thumbnail; it may be empty."""
    start, size = _COLOR.get(marker, (b"", len(content) + 1))
    if len(content) < size or not content.startswith(start):
        return b""
    content = content[:size] if marker != 0xE0 else content[:_THUMBNAIL].ljust(size, b"\0")
    return struct.pack(">BBH", 0xFF, marker, 2 + size) + content


def _png_chunks(data: bytes, image: Image.Image, *, strip: bool) -> Iterator[bytes]:
    """Yield the chunks of a PNG.

    Raises:
        struct.error: It is not complete.
        ValueError: It is damaged, or not of one of the usual kinds.
    """
    yield data[:8]
    compressed: list[bytes] = []
    at, previous, profile = 8, b"", b""
    while previous != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        (crc,) = struct.unpack_from(">I", data, end - 4)
        content = data[at + 8 : end - 4]
        if (
            crc != zlib.crc32(content, zlib.crc32(kind))
            or kind in _PNG_CONVERTED
            or not (kind in _PNG_PIXELS or _PNG_ANCILLARY.fullmatch(kind))
            or (previous == b"") != (kind == b"IHDR")
            or (kind == b"IDAT" and compressed and previous != kind)
            or (kind == b"IHDR" and not _PNG_HEADER.fullmatch(content))
        ):
            raise ValueError("a rare or damaged chunk")
        if kind == b"IDAT":
            compressed.append(content)
        elif kind == b"iCCP":
            profile = image.info.get("icc_profile") or kind
        if not strip or kind in _PNG_PIXELS:
            yield data[at:end]
        at, previous = end, kind
    width, height = image.size
    passes = _PASSES if data[28] else ((0, 0, 1),)
    rows = sum(len(range(y, height, step)) for x, y, step in passes if x < width)
    size, stream = width * height * len(image.mode) + rows, zlib.decompressobj()
    inflated = len(stream.decompress(b"".join(compressed), size + 1))
    # Unlike libpng, Pillow decodes fewer rows, and a stream without a checksum.
    if inflated != size or not stream.eof or stream.unused_data:
        raise ValueError("too few or many rows, no checksum, or bytes after it")
    _check_end(data, at, profile, strip=strip)


def _check_end(data: bytes, end: int, profile: bytes, *, strip: bool) -> None:
    """Raise ValueError if bytes follow the image, or its profile is not sRGB, and that stays."""
    is_srgb = not profile or any(name in profile for name in _SRGB)
    if not strip and (end != len(data) or not is_srgb):
        raise ValueError("bytes after the image, or another profile")


def _has_position(image: Image.Image) -> bool:
    """Return whether EXIF or XMP have a position; false if they are damaged."""
    try:
        position = image.getexif().get_ifd(ExifTags.IFD.GPSInfo)
    except Exception:  # noqa: BLE001 - getexif: damaged metadata does not affect the pixels
        position = {}
    return bool(_POSITION & position.keys()) or b"GPSLatitude" in image.info.get("xmp", b"")
