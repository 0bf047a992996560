"""Convert image files to the bytes that records contain: decode, color, resize, rotate, encode."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import simplejpeg
from PIL import Image, features

from shardmill.schemas.option_types import Choice, choice
from shardmill.schemas.refs import RejectedError
from shardmill.transforms.images import decode
from shardmill.transforms.images.image_options import (
    MAX_RECORD_BYTES,
    DecoderLimits,
    ImageOptions,
)
from shardmill.transforms.images.originals import find_original
from shardmill.transforms.images.resize import Geometry, Resizer, Size, turned
from shardmill.transforms.images.scaling import DEFAULT_RESIZER, resizer_versions, scale
from shardmill.transforms.statistics.sums import Sums, sum_pixels

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_OF_CAMERAS = frozenset({"JPEG", "MPO", "HEIF"})  # lossy: as PNG, they would take far more bytes
_ALPHA = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339
_WHITE_IS_ZERO = 0
_SIGNED = 2


@dataclass(kw_only=True)
class ImageSpec(ImageOptions):
    """How images are converted, on all machines of a build: with the resizer of the client."""

    resizer: Choice[Resizer] = choice(
        ("pillow", "simd"), DEFAULT_RESIZER, {"": DEFAULT_RESIZER}, decides=False
    )


class ConvertedImage(NamedTuple):
    """A converted image.

    Attributes:
        data: The encoded image, or its pixels.
        format: ``jpeg``, ``png`` or ``raw``.
        original: ``kept``, ``kept_with_position`` or ``converted`` with the encoding ``keep``.
        geometry: Where the pixels of the file are in it.
        multi_frame: Whether the file has several frames; the first was converted.
        channels: Sums over the pixels of each channel, before they are encoded.
        deep: Whether a channel of the file has more than 8 bits.
    """

    data: bytes
    format: str
    original: str
    geometry: Geometry
    multi_frame: bool
    channels: tuple[Sums, ...]
    deep: bool = False

    @property
    def size(self) -> Size:
        """Width and height."""
        return self.geometry.size


def convert_image(
    data: bytes,
    spec: ImageSpec,
    before_load: Callable[[Image.Image], None] = lambda _: None,
    max_pixels: int = DecoderLimits.max_pixels,
) -> ConvertedImage:
    """Convert the content of an image file, in this process.

    Args:
        data: Content of the file.
        spec: How it is converted.
        before_load: Called with the image, whose header has been read, before it is decoded.
        max_pixels: Largest width times height that is decoded, or scaled to before cropping.

    Raises:
        RejectedError: The file cannot be converted.
    """
    decoded = decode.decode_image(data, spec, spec.gap, max_pixels, before_load)
    image = to_channels(decoded.image, spec.channels)
    image = _resize(image, decoded, spec, max_pixels)
    channels = sum_pixels(image.histogram())
    encoded, name, original = _keep_or_encode(data, decoded, image, spec)
    if len(encoded) > MAX_RECORD_BYTES:
        raise RejectedError("encode", "too_large", f"{len(encoded):,} bytes do not fit a record")
    facts = decoded.geometry, decoded.multi_frame, channels, decoded.deep
    return ConvertedImage(encoded, name, original, *facts)


def to_channels(image: Image.Image, channels: int) -> Image.Image:
    """Return the image with 8 bits per channel; ICC profiles are ignored, as by TensorFlow.

    Args:
        image: A loaded image of any mode.
        channels: 1 (L), 3 (RGB) or 4 (RGBA). Alpha is composited over white unless it is 4.

    Raises:
        RejectedError: The pixels cannot be converted, or their 8-bit value is not defined.
    """
    if image.mode.startswith("I") or image.mode == "F":
        image = _eight_bits(image)
    if image.mode == "LAB":
        image = _convert(image, "RGB", "convert LAB")
    transparent = image.mode in _ALPHA or "transparency" in image.info
    if transparent and channels != 4:
        rgba = _convert(image, "RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, rgba).convert("RGB")
    mode = MODES[channels]
    if image.mode == mode:
        return image
    if channels == 1 and image.mode not in ("1", "L"):
        image = _convert(image, "RGB")
    return _convert(image, mode)


def _convert(image: Image.Image, mode: str, action: str = "") -> Image.Image:
    """Convert the mode of an image; any failure rejects it."""
    with decode.reject_failures("decode", "color", action or f"convert to {mode}"):
        return image.convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit integers and floats to 8 bits; keep the transparent value of 16-bit PNGs."""
    pixels = np.asarray(image)
    scaled = _from_floats(pixels) if image.mode == "F" else _from_integers(image, pixels)
    if _tag(image, _PHOTOMETRIC) == _WHITE_IS_ZERO:
        scaled = 255 - scaled
    grey = Image.fromarray(scaled)
    key = image.info.get("transparency")
    if not isinstance(key, int):
        return grey
    alpha = Image.fromarray(np.where(pixels == key, 0, 255).astype(np.uint8))
    return Image.merge("LA", (grey, alpha))


def _from_integers(image: Image.Image, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if image.mode == "I":
        _check_range(image, pixels)
    bits = _tag(image, _BITS_PER_SAMPLE) or 16
    top = (1 << (bits if 8 < bits < 16 else 16)) - 1
    wide = pixels.astype(np.uint32)  # in place from here on, as images may be large
    wide *= 255
    wide += top // 2
    wide //= top
    return wide.astype(np.uint8)


def _from_floats(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not np.isfinite(pixels).all():
        raise RejectedError("decode", "float_range", "floating-point pixels are not all finite")
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0 or high > 1:
        raise RejectedError(
            "decode", "float_range", f"floating-point pixels from {low:g} to {high:g}, not [0, 1]"
        )
    scaled: np.ndarray[Any, Any] = pixels * np.float32(255)
    scaled += np.float32(0.5)
    return scaled.astype(np.uint8)


def _check_range(image: Image.Image, pixels: np.ndarray[Any, Any]) -> None:
    low, high = int(pixels.min()), int(pixels.max())
    signed = _tag(image, _SAMPLE_FORMAT) == _SIGNED
    if signed or _tag(image, _BITS_PER_SAMPLE) == 32 or low < 0 or high > 0xFFFF:
        raise RejectedError(
            "decode",
            "int_range",
            f"{'signed ' if signed else ''}integer pixels from {low} to {high}: "
            "only unsigned 16-bit has a defined white",
        )


def _tag(image: Image.Image, number: int) -> int | None:
    """Return the first value of a TIFF tag; None for other formats."""
    tags = getattr(image, "tag_v2", None)
    value = tags.get(number) if tags is not None else None
    if isinstance(value, tuple):
        value = value[0] if value else None
    if isinstance(value, int):
        return value
    return None


def _resize(
    image: Image.Image, decoded: decode.Decoded, spec: ImageSpec, max_pixels: int
) -> Image.Image:
    """Scale, rotate, then pad or crop; to rotate the scaled image is cheaper."""
    geometry = decoded.geometry
    scaled = turned(geometry.scaled, decoded.turn)
    if scaled.width * scaled.height > max(max_pixels, math.prod(spec.image_size)):
        raise RejectedError(
            "decode",
            "too_large",
            f"to crop it, it would be scaled to {scaled.width}x{scaled.height} pixels",
        )
    if scaled != image.size:
        image = scale(image, scaled, decoded.box, spec.interpolation, spec.resizer)
    image = decode.apply_orientation(image, decoded.turn)
    if geometry.size == geometry.scaled:
        return image
    left, upper = -geometry.left, -geometry.top  # what is outside of the image becomes black
    return image.crop((left, upper, left + geometry.size.width, upper + geometry.size.height))


def _keep_or_encode(
    data: bytes, decoded: decode.Decoded, image: Image.Image, spec: ImageSpec
) -> tuple[bytes, str, str]:
    """Return the bytes of a record's image, their format, and what was done with the file."""
    if spec.encoding != "keep":
        return _encode_pixels(image, spec.encoding, spec.quality), spec.encoding, ""
    name = "jpeg" if decoded.format in _OF_CAMERAS and spec.channels != 4 else "png"
    kept = find_original(data, decoded, spec.channels, strip=spec.strip_metadata)
    if kept is not None:
        return kept[0], name, kept[1]
    return _encode_pixels(image, name, spec.quality), name, "converted"


def _encode_pixels(image: Image.Image, encoding: str, quality: int) -> bytes:
    if encoding == "raw":
        return image.tobytes()
    buffer = io.BytesIO()
    options = {"quality": quality} if encoding == "jpeg" else {}
    image.info = {}  # profile, EXIF, resolution and comment, which Pillow would write
    with decode.reject_failures("encode", "encode"):
        image.save(buffer, encoding, **options)
    return buffer.getvalue()


@functools.cache
def codec_versions(resizer: Resizer) -> dict[str, str]:
    """Return the versions of all libraries that the bytes of an image record depend on.

    Raises:
        ResourceError: The resizer is not installed.
    """
    names = ("pil", "libjpeg_turbo", "zlib", "zlib_ng", "webp", "avif", "jpg_2000", "libtiff")
    versions = {name: features.version(name) for name in names}
    versions["simplejpeg"] = simplejpeg.__version__
    versions |= resizer_versions(resizer)
    if decode.HAS_HEIC:
        versions["pillow_heif"] = version("pillow-heif")
    return {name: version for name, version in versions.items() if version}
