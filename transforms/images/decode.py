"""Decode the first frame of image files, whose format is detected from their bytes."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import simplejpeg
from PIL import Image, ImageFile, UnidentifiedImageError

from shardmill.schemas.file_signatures import describe_format, is_heic
from shardmill.schemas.jpeg import HUFFMAN_DCT, jpeg_frame
from shardmill.schemas.refs import RejectedError
from shardmill.transforms.images.depth import is_deep
from shardmill.transforms.images.image_options import DecoderLimits
from shardmill.transforms.images.pillow_fixes import fix_pixels, fix_reader, load_pixels
from shardmill.transforms.images.resize import (
    Box,
    Geometry,
    ResizeSpec,
    Size,
    draft_size,
    turned,
)

# Pillow's names of the formats that are read; MPO opens as JPEG. Left out: EPS (runs a program),
# WMF (Windows only), and plugins that identify a file but do not decode it (BUFR, GRIB, HDF5, MPEG,
# IPTC, MCIDAS). Pillow tries formats in this order: TGA has no signature and follows those that do.
FORMATS: tuple[str, ...] = (
    "JPEG",
    "PNG",
    "GIF",
    "BMP",
    "TIFF",
    "WEBP",
    "PPM",
    "JPEG2000",
    "AVIF",
    "ICO",
    "BLP",
    "CUR",
    "DCX",
    "DDS",
    "DIB",
    "FITS",
    "FLI",
    "FTEX",
    "GBR",
    "ICNS",
    "IM",
    "IMT",
    "MSP",
    "PCD",
    "PCX",
    "PIXAR",
    "PSD",
    "QOI",
    "SGI",
    "SPIDER",
    "SUN",
    "TGA",
    "XBM",
    "XPM",
    "XVTHUMB",
)
try:
    import pillow_heif
except ImportError:  # it is an extra
    HAS_HEIC = False
else:
    HAS_HEIC = True
    pillow_heif.options.DECODE_THREADS = 1  # a decoder uses one core
    pillow_heif.register_heif_opener()
    # Pillow raises KeyError for a format that is not registered.
    FORMATS = (*FORMATS, "HEIF")
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION = 274
_COLOR_SPACES = {"RGB": "RGBX", "L": "GRAY"}  # by Pillow's mode; CMYK is left to Pillow
_NO_MEMORY = "out of memory"  # the text of Pillow's code -9, ImageFile.ERRORS
_ADDRESS = re.compile(r"\s*<[^<>]* at 0x[0-9a-f]+>")


class Decoded(NamedTuple):
    """A decoded image, and the values to resize it.

    Attributes:
        image: The pixels; a JPEG may be decoded at a fraction of its size.
        geometry: Where the pixels of the file are in the record.
        box: Region of ``image`` that shows the file's pixels. It is up to one pixel smaller than
            ``image`` if the size of a scaled JPEG is not a whole number.
        turn: The EXIF orientation that ``image`` still has; 1 if Pillow has rotated it.
        multi_frame: Whether the file has several frames.
        format: Pillow's name of the format.
        deep: Whether a channel of the file has more than 8 bits.
        strict: Whether it is a JPEG that was decoded without a warning of libjpeg.
    """

    image: Image.Image
    geometry: Geometry
    box: Box
    turn: int
    multi_frame: bool
    format: str
    deep: bool
    strict: bool


def plain_message(error: BaseException) -> str:
    """Return the text of an exception without memory addresses, which differ between runs."""
    text = _ADDRESS.sub("", str(error)).strip() or type(error).__name__
    return " ".join(text.split())[:300]


def apply_orientation(image: Image.Image, orientation: int) -> Image.Image:
    """Return the image rotated and flipped as an EXIF orientation requires."""
    if orientation in _TRANSPOSE:
        return image.transpose(_TRANSPOSE[orientation])
    return image


def decode_image(
    data: bytes,
    spec: ResizeSpec,
    gap: float = 0.0,
    max_pixels: int = DecoderLimits.max_pixels,
    before_load: Callable[[Image.Image], None] = lambda _: None,
) -> Decoded:
    """Decode the first frame of an image.

    Args:
        data: Content of the file.
        spec: How the image will be resized. A JPEG may be decoded at 1/2, 1/4 or 1/8 of its size.
        gap: Least ratio of the decoded to the resized size; 0 decodes at full size.
        max_pixels: Largest width times height.
        before_load: Called with the image, whose header has been read, before it is decoded.

    Raises:
        RejectedError: The bytes are not an image, are damaged, or have too many pixels.
    """
    if not data:
        raise RejectedError("decode", "empty", "the file has no bytes")
    image = open_image(data)
    width, height = image.size
    if width * height > max_pixels:
        raise RejectedError("decode", "too_large", f"{width}x{height} pixels exceed {max_pixels:,}")
    multi_frame = _is_animated(image)
    fix_reader(image)
    tile = image.tile[0] if image.tile else None
    box: Box | None = None
    orientation = _orientation(image) if image.format in ("JPEG", "MPO", "TIFF") else 1
    if image.format in ("JPEG", "MPO"):
        turn = orientation
        geometry = spec.geometry(Size(*image.size), orientation)
        usual = jpeg_frame(data) in HUFFMAN_DCT
        if usual:
            box = _draft(image, geometry, gap)
        before_load(image)
        loaded = (decode_jpeg(data, image) if usual else None) or load_image(image, data)
    else:
        before_load(image)
        loaded = load_image(image, data)
        # After loading: Pillow rotates TIFFs then, and the EXIF of a PNG may follow its pixels.
        turn = _orientation(image)
        orientation = orientation if turn == 1 else turn
        geometry = spec.geometry(
            turned(Size(*image.size), orientation if turn == 1 else 1), orientation
        )
    pixels = fix_pixels(loaded, tile, data)
    facts = multi_frame, image.format or "", is_deep(image, tile, data), loaded is not image
    return Decoded(pixels, geometry, box or (0, 0, *pixels.size), turn, *facts)


def load_image(image: ImageFile.ImageFile, data: bytes) -> Image.Image:
    """Decode the pixels of an image.

    Raises:
        RejectedError: They are damaged.
    """
    with reject_failures("decode", "decode"):
        load_pixels(image, data)
    return image


def open_image(data: bytes) -> ImageFile.ImageFile:
    """Return an image whose header is read.

    Raises:
        RejectedError: The bytes are not an image.
    """
    try:
        with reject_failures("decode", "decode"):
            return Image.open(io.BytesIO(data), formats=FORMATS)
    except RejectedError as error:
        if not isinstance(error.__cause__, UnidentifiedImageError):
            raise
    if not HAS_HEIC and is_heic(data[:512]):
        raise RejectedError("decode", "missing_extra", "HEIC needs shardmill[heic]")
    description = describe_format(data[:512])
    start = f"like {description}" if description else f"with {data[:16]!r}"
    message = f"no image format is recognized; the file begins {start}"
    raise RejectedError("decode", "not_an_image", message)


@contextlib.contextmanager
def reject_failures(stage: str, reason: str, action: str = "") -> Iterator[None]:
    """Reject the image if Pillow raises any exception that the image itself can cause.

    Args:
        stage: Stage of the reject.
        reason: Reason of the reject.
        action: What fails, for the message; empty to name the type of the exception.

    Raises:
        RejectedError: An exception of Pillow.
        MemoryError: The memory ran out, which depends on the machine too.
    """
    try:
        yield
    except (MemoryError, RejectedError):
        raise
    except Image.DecompressionBombError as error:
        raise RejectedError("decode", "too_large", with_type(error)) from error
    except Exception as error:  # Pillow's codecs and parsers raise many types
        if _NO_MEMORY in str(error):  # an OSError without errno
            raise MemoryError from error
        message = f"cannot {action}: {plain_message(error)}" if action else with_type(error)
        raise RejectedError(stage, reason, message) from error


def with_type(error: BaseException) -> str:
    """Return the type of an exception and its plain message."""
    return f"{type(error).__name__}: {plain_message(error)}"


def _is_animated(image: Image.Image) -> bool:
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # noqa: BLE001 - is_animated: the first frame may still be good
        return False


def _orientation(image: Image.Image) -> int:
    """Return the EXIF (or XMP) orientation; 1 if it is missing, invalid or damaged."""
    try:
        if image.format == "AVIF":
            # Only the boxes irot and imir count (ISO/IEC 23008-12); Pillow stores them as EXIF.
            exif = Image.Exif()
            exif.load(image.info.get("exif", b""))
        else:
            exif = image.getexif()
        value = exif.get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - getexif: damaged metadata does not affect the pixels
        return 1
    if isinstance(value, int) and value in _TRANSPOSE:
        return value
    return 1


def _draft(image: Image.Image, geometry: Geometry, gap: float) -> Box | None:
    """Let libjpeg decode at a smaller size if that is allowed, and return the box of the result.

    Args:
        image: A JPEG that is not loaded yet.
        geometry: Where its pixels are in the record.
        gap: Least ratio of the decoded to the resized size.
    """
    smallest = draft_size(geometry.upright, geometry.scaled, gap)
    if smallest is None:
        return None
    with reject_failures("decode", "decode"):
        drafted = image.draft(None, turned(smallest, geometry.orientation))
    if drafted:
        return drafted[1]
    return None


def decode_jpeg(data: bytes, header: Image.Image) -> Image.Image | None:
    """Decode a JPEG with simplejpeg; return None if Pillow must decode it.

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
    if mode == "RGBX":
        image = _drop_padding(image)
    image.info = header.info
    return image


def _drop_padding(image: Image.Image) -> Image.Image:
    """Return an RGBX image as RGB, with the same pixels."""
    if not hasattr(image.im, "setmode"):  # Pillow 13 has no way without a copy
        return image.convert("RGB")
    image.im.setmode("RGB")  # Pillow's own RGB images have a fourth byte too
    image._mode = "RGB"  # noqa: SLF001 - as Image.putalpha does
    return image
