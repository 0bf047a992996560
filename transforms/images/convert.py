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

from shardmill.schemas.errors import UsageError
from shardmill.schemas.numbers import plural
from shardmill.schemas.option_types import Choice, Float, Int
from shardmill.schemas.refs import RejectedError
from shardmill.schemas.schema_pbtxt.image_features import Encoding
from shardmill.transforms.images import decode
from shardmill.transforms.images.originals import find_original
from shardmill.transforms.images.resize import (
    ENCODING,
    INTERPOLATION,
    MAX_PIXELS,
    QUALITY,
    REDUCING_GAP,
    Geometry,
    Interpolation,
    Resizer,
    ResizeSpec,
    Size,
    turned,
)
from shardmill.transforms.images.scaling import DEFAULT_RESIZER, resizer_versions, scale
from shardmill.transforms.statistics.sums import Sums, sum_pixels

# A serialized protocol buffer has less than 2 GiB; the other features need a part of it.
MAX_RECORD_BYTES = (1 << 31) - (1 << 20)
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_OF_CAMERAS = frozenset({"JPEG", "MPO", "HEIF"})  # lossy: as PNG, they would take far more bytes
_ALPHA = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339
_WHITE_IS_ZERO = 0
_SIGNED = 2
_AVERAGING = frozenset({"box", "bilinear", "bicubic", "lanczos"})


@dataclass(frozen=True)
class ImageSpec:
    """How images are converted.

    Attributes:
        resize: Target size and how to reach it.
        interpolation: One of ``Interpolation``, the names of Pillow's filters.
        reducing_gap: Least ratio of the size that a JPEG is decoded at to the size after resizing.
        encoding: ``jpeg``, ``png``, ``raw`` (uint8, height x width x channels), or ``keep``: the
            file if its size stays, else ``jpeg`` for images of cameras and ``png`` for others.
        quality: JPEG quality, 1 to 100.
        channels: 1 (grey), 3 (RGB) or 4 (RGBA; not with jpeg).
        max_pixels: Largest width times height that is decoded, or scaled to before cropping.
        strip_metadata: Whether files that are kept lose their metadata.
        resizer: What scales bilinear images without alpha.

    Raises:
        UsageError: A value is out of range, or two values cannot be combined.
    """

    resize: ResizeSpec
    interpolation: Choice[Interpolation] = INTERPOLATION
    reducing_gap: Float = REDUCING_GAP
    encoding: Choice[Encoding] = ENCODING
    quality: Int = QUALITY
    channels: int = 3
    max_pixels: Int = MAX_PIXELS
    strip_metadata: bool = False
    resizer: Resizer = DEFAULT_RESIZER

    def __post_init__(self) -> None:
        if self.channels not in MODES:
            raise UsageError(f"--channels={self.channels} is not 1 (grey), 3 (RGB) or 4 (RGBA).")
        if self.channels == 4 and self.encoding == "jpeg":
            raise UsageError("--channels=4 needs --encoding=png, raw or keep: a JPEG has no alpha.")
        if self.strip_metadata and self.encoding != "keep":
            raise UsageError(
                f"--strip_metadata needs --encoding=keep: images encoded as {self.encoding} have "
                "no metadata."
            )
        if self.target_bytes > MAX_RECORD_BYTES:
            size = self.resize.size
            raise UsageError(
                f"--image_size={size.height}x{size.width} is out of range: the pixels of an image "
                f"would take {plural(self.target_bytes, 'byte')}, and a tf.train.Example can hold "
                f"{MAX_RECORD_BYTES:,}."
            )

    @property
    def gap(self) -> float:
        """Reducing gap that applies: 0 for filters whose output depends on single source pixels."""
        return self.reducing_gap if self.interpolation in _AVERAGING else 0.0

    @property
    def fixed_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels if they are the same for every image; else None."""
        spec = self.resize
        is_fixed = spec.resize == "pad" or (
            spec.resize in ("stretch", "crop") and not spec.only_shrink
        )
        return (spec.size.height, spec.size.width, self.channels) if is_fixed else None

    @property
    def target_bytes(self) -> int:
        """Bytes of the pixels of the target; 0 if images keep their size."""
        size = self.resize.size
        return 0 if self.resize.resize == "none" else size.width * size.height * self.channels


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
    data: bytes, spec: ImageSpec, before_load: Callable[[Image.Image], None] = lambda _: None
) -> ConvertedImage:
    """Convert the content of an image file, in this process.

    Args:
        data: Content of the file.
        spec: How it is converted.
        before_load: Called with the image, whose header has been read, before it is decoded.

    Raises:
        RejectedError: The file cannot be converted.
    """
    decoded = decode.decode_image(data, spec.resize, spec.gap, spec.max_pixels, before_load)
    image = to_channels(decoded.image, spec.channels)
    image = _resize(image, decoded, spec)
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
    return value if isinstance(value, int) else None


def _resize(image: Image.Image, decoded: decode.Decoded, spec: ImageSpec) -> Image.Image:
    """Scale, rotate, then pad or crop; to rotate the scaled image is cheaper."""
    geometry = decoded.geometry
    scaled = turned(geometry.scaled, decoded.turn)
    if scaled.width * scaled.height > max(spec.max_pixels, math.prod(spec.resize.size)):
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
