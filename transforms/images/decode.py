"""Decoding: bytes become an upright image. The bytes decide, never the file's suffix."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

from PIL import Image, ImageFile, UnidentifiedImageError

from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.images.pillow_fixes import mended, prepare
from shardmill.transforms.images.resize import ResizeSpec, Size, draft_size

P = ParamSpec("P")
T = TypeVar("T")

MAX_PIXELS = 178_956_970  # where Pillow calls an image a decompression bomb
MAX_FILE_BYTES = 1 << 29
_BIG_PIXELS = 1 << 24
# Formats that are read; MPO opens as JPEG. Left out: EPS (runs a program), WMF (Windows only), and
# stubs that only identify (BUFR, GRIB, HDF5, MPEG, IPTC, MCIDAS). The order decides where two claim
# the same bytes: TGA has no signature, and comes after all that do.
FORMATS = (
    "JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF", "ICO",
    "BLP", "CUR", "DCX", "DDS", "DIB", "FITS", "FLI", "FTEX", "GBR", "ICNS", "IM", "IMT", "MSP",
    "PCD", "PCX", "PIXAR", "PSD", "QOI", "SGI", "SPIDER", "SUN", "TGA", "XBM", "XPM", "XVTHUMB",
)  # fmt: skip
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
_ADDRESS = re.compile(r"\s*<[^<>]* at 0x[0-9a-f]+>")

# Very large images are decoded one at a time, so that a folder of bombs cannot add up.
_one_big_image = threading.Lock()

Box = tuple[float, float, float, float]


class Decoded(NamedTuple):
    """An image as Pillow decoded it, and what is needed to bring it to its final size.

    Attributes:
        image: The pixels, perhaps at a fraction of the file's size, not turned yet.
        size: The upright size of the whole image in the file.
        box: The part of ``image`` that the file's pixels cover (left, upper, right, lower); a
            fraction of a pixel less than all of it where a scaled JPEG does not divide evenly.
        orientation: The EXIF orientation, 1 to 8.
        multi_frame: Whether the file has more frames.
    """

    image: Image.Image
    size: Size
    box: Box
    orientation: int
    multi_frame: bool


def plain_message(error: BaseException) -> str:
    """Returns an exception's text without memory addresses, which differ from run to run."""
    text = _ADDRESS.sub("", str(error)).strip() or type(error).__name__
    return " ".join(text.split())[:300]


def turn(image: Image.Image, orientation: int) -> Image.Image:
    """Returns the image turned upright from an EXIF orientation."""
    return image.transpose(_TRANSPOSE[orientation]) if orientation in _TRANSPOSE else image


def decode_image(data: bytes, spec: ResizeSpec, gap: float = 0.0) -> Decoded:
    """Decodes the first frame of an image.

    Args:
        data: The file's bytes.
        spec: What the image will be scaled to; a JPEG may be decoded at a fraction of its size
            (1/2, 1/4, 1/8) as long as that stays ``gap`` times larger.
        gap: See ``geometry.draft_size``; 0 decodes in full.

    Raises:
        RejectedError: The bytes are no image, are damaged, or decode to too many pixels.
    """
    if not data:
        raise RejectedError("decode", "empty", "the file has no bytes")
    image = _open(data)
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise RejectedError("decode", "too_large", f"{width}x{height} pixels exceed {MAX_PIXELS:,}")
    multi_frame = _is_animated(image)
    prepare(image, data)
    tile = image.tile[0] if image.tile else None
    box: Box | None = None
    if image.format in ("JPEG", "MPO"):
        orientation = _orientation(image)
        box = _draft(image, spec, gap, turned=orientation >= 5)
        _load(image)
    else:
        _load(image)
        # Only now: Pillow turns TIFFs while loading, and a PNG's EXIF may stand behind its pixels.
        orientation = _orientation(image)
        width, height = image.size
    pixels = mended(image, tile, data)
    upright = Size(height, width) if orientation >= 5 else Size(width, height)
    return Decoded(pixels, upright, box or (0, 0, *pixels.size), orientation, multi_frame)


def _load(image: Image.Image) -> None:
    if image.width * image.height > _BIG_PIXELS:
        with _one_big_image:
            _foreign(image.load)
    else:
        _foreign(image.load)


def _open(data: bytes) -> ImageFile.ImageFile:
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        shown = data[:16]
        raise RejectedError(
            "decode", "not_an_image", f"no image format is recognised; it begins {shown!r}"
        ) from error
    except Image.DecompressionBombError as error:
        raise RejectedError("decode", "too_large", plain_message(error)) from error
    except Exception as error:  # Image.open: Pillow's parsers raise many types
        raise RejectedError("decode", "decode", _named(error)) from error


def _foreign(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs one of Pillow's decoders; whatever it raises refuses the image."""
    try:
        return call(*args, **kwargs)
    except (Image.DecompressionBombError, MemoryError) as error:
        raise RejectedError("decode", "too_large", _named(error)) from error
    except Exception as error:  # load, transpose: Pillow's decoders raise many types
        raise RejectedError("decode", "decode", _named(error)) from error


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {plain_message(error)}"


def _is_animated(image: Image.Image) -> bool:
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # noqa: BLE001 - is_animated: a damaged second frame harms not the first
        return False


def _orientation(image: Image.Image) -> int:
    """Returns the EXIF (or XMP) orientation, 1 where it is missing, odd or damaged."""
    try:
        if image.format == "AVIF":
            # Pillow puts its irot and imir boxes, which alone count there, into its EXIF.
            exif = Image.Exif()
            exif.load(image.info.get("exif", b""))
        else:
            exif = image.getexif()
        value = exif.get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - getexif: damaged metadata does not harm the pixels
        return 1
    return value if isinstance(value, int) and value in _TRANSPOSE else 1


def _draft(image: Image.Image, spec: ResizeSpec, gap: float, *, turned: bool) -> Box | None:
    """Asks libjpeg for a smaller image where that is allowed; returns what it covers."""
    source = Size(*image.size)
    upright = Size(source.height, source.width) if turned else source
    least = draft_size(upright, spec.scaled(upright), gap)
    if least is None:
        return None
    wanted = (least.height, least.width) if turned else (least.width, least.height)
    drafted = _foreign(image.draft, None, wanted)
    return drafted[1] if drafted else None
