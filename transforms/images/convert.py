"""Convert image files to the bytes that records contain: decode, resize, rotate, encode."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import simplejpeg
from PIL import Image, features

from shardmill.schemas.errors import UsageError
from shardmill.schemas.option_types import Choice, Float, Int
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.schema_pbtxt.image_features import Encoding
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.images import decode
from shardmill.transforms.images.color import MODES, to_channels
from shardmill.transforms.images.resize import (
    ENCODING,
    INTERPOLATION,
    MAX_PIXELS,
    QUALITY,
    REDUCING_GAP,
    Geometry,
    Interpolation,
    ResizeSpec,
    Size,
    turned,
)
from shardmill.transforms.statistics.sums import Sums, sum_pixels

# A serialized protocol buffer has less than 2 GiB; the other features need a part of it.
MAX_RECORD_BYTES = (1 << 31) - (1 << 20)
_AVERAGING = frozenset({"box", "bilinear", "bicubic", "lanczos"})


@dataclass(frozen=True)
class ImageSpec:
    """How images are converted.

    Attributes:
        resize: Target size and how to reach it.
        interpolation: One of ``Interpolation``: Pillow's filters, which antialias.
        reducing_gap: See ``resize.draft_size``.
        encoding: ``jpeg``, ``png``, or ``raw`` (uint8, height x width x channels).
        quality: JPEG quality, 1 to 100.
        channels: 1 (grey), 3 (RGB) or 4 (RGBA; not with jpeg).
        icc: Whether embedded ICC profiles are converted to sRGB.
        max_pixels: Largest width times height that is decoded, or scaled to before cropping.

    Raises:
        UsageError: A value is out of range, or two values cannot be combined.
    """

    resize: ResizeSpec
    interpolation: Choice[Interpolation] = INTERPOLATION
    reducing_gap: Float = REDUCING_GAP
    encoding: Choice[Encoding] = ENCODING
    quality: Int = QUALITY
    channels: int = 3
    icc: bool = False
    max_pixels: Int = MAX_PIXELS

    def __post_init__(self) -> None:
        if self.channels not in MODES:
            raise UsageError(f"--channels={self.channels} is not 1 (grey), 3 (RGB) or 4 (RGBA).")
        if self.channels == 4 and self.encoding == "jpeg":
            raise UsageError("--channels=4 needs --encoding=png or raw: a JPEG has no alpha.")
        if self.target_bytes > MAX_RECORD_BYTES:
            size = self.resize.size
            raise UsageError(
                f"--image_size={size.height}x{size.width} is out of range: the pixels of an image "
                f"would take {self.target_bytes:,} bytes, and a tf.train.Example can hold "
                f"{MAX_RECORD_BYTES:,}."
            )

    @property
    def packing(self) -> Packing:
        """How members are packed: compressing a JPEG or PNG again saves nothing."""
        return "deflated" if self.encoding == "raw" else "stored"

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

    def expected_bytes(self) -> int | None:
        """Return the approximate size of a record in bytes; None if it depends on the input."""
        pixels = self.target_bytes
        if not pixels:
            return None
        return {"raw": pixels, "png": pixels * 6 // 10, "jpeg": pixels // 5}[self.encoding] + 256


class EncodedImage(NamedTuple):
    """A converted image.

    Attributes:
        data: The encoded image, or its pixels.
        geometry: Where the pixels of the file are in it.
        multi_frame: Whether the file has several frames, of which the first was converted.
        channels: Sums over the pixels of each channel, before they are encoded.
    """

    data: bytes
    geometry: Geometry
    multi_frame: bool
    channels: tuple[Sums, ...]

    @property
    def size(self) -> Size:
        """Width and height."""
        return self.geometry.size


def encode_image(
    data: bytes, spec: ImageSpec, before_load: Callable[[Image.Image], None] = lambda _: None
) -> EncodedImage:
    """Convert the content of an image file, in this process.

    Args:
        data: Content of the file.
        spec: How it is converted.
        before_load: See ``decode.decode_image``.

    Raises:
        RejectedError: The file cannot be converted.
    """
    decoded = decode.decode_image(data, spec.resize, spec.gap, spec.max_pixels, before_load)
    image = to_channels(decoded.image, spec.channels, icc=spec.icc)
    image = _resize(image, decoded, spec)
    channels = sum_pixels(image.histogram())
    encoded = _encode_pixels(image, spec)
    if len(encoded) > MAX_RECORD_BYTES:
        raise RejectedError("encode", "too_large", f"{len(encoded):,} bytes do not fit a record")
    return EncodedImage(encoded, decoded.geometry, decoded.multi_frame, channels)


def _resize(image: Image.Image, decoded: decode.Decoded, spec: ImageSpec) -> Image.Image:
    """Scale, rotate, then pad or crop; to rotate the scaled image is cheaper."""
    geometry = decoded.geometry
    scaled = turned(geometry.scaled, decoded.turn)
    if scaled.width * scaled.height > max(spec.max_pixels, math.prod(spec.resize.size)):
        raise RejectedError(
            "decode", "too_large",
            f"to crop it, it would be scaled to {scaled.width}x{scaled.height} pixels",
        )  # fmt: skip
    if scaled != image.size:
        resampling = Image.Resampling[spec.interpolation.upper()]
        image = image.resize(scaled, resampling, box=decoded.box)
    image = decode.apply_orientation(image, decoded.turn)
    if geometry.size == geometry.scaled:
        return image
    left, upper = -geometry.left, -geometry.top  # what is outside of the image becomes black
    return image.crop((left, upper, left + geometry.size.width, upper + geometry.size.height))


def _encode_pixels(image: Image.Image, spec: ImageSpec) -> bytes:
    if spec.encoding == "raw":
        return image.tobytes()
    buffer = io.BytesIO()
    options = {"quality": spec.quality} if spec.encoding == "jpeg" else {}
    image.info = {}  # profile, EXIF, resolution and comment, which Pillow would write
    with decode.reject_failures("encode", "encode"):
        image.save(buffer, spec.encoding, **options)
    return buffer.getvalue()


def codec_versions() -> dict[str, str]:
    """Return the versions of all libraries that the bytes of an image record depend on."""
    names = ("pil", "libjpeg_turbo", "zlib", "zlib_ng", "webp", "avif", "jpg_2000", "libtiff")
    versions = {name: features.version(name) for name in names}
    versions["simplejpeg"] = simplejpeg.__version__
    return {name: version for name, version in versions.items() if version}
