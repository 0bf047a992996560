"""From a file's bytes to the bytes that a record holds: decode, orient, convert, resize, encode."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image, features

from shardmill.schemas.errors import UsageError
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.schema_pbtxt.image_features import ENCODINGS, Encoding
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.images.color import MODES, to_channels
from shardmill.transforms.images.decode import (
    MAX_PIXELS,
    Decoded,
    decode_image,
    plain_message,
    turn,
)
from shardmill.transforms.images.pillow_warnings import ignore_pillow_warnings
from shardmill.transforms.images.resize import INTERPOLATIONS, ResizeSpec, Size
from shardmill.transforms.statistics.sums import Sums, sum_pixels

_DRAFTED = frozenset({"box", "bilinear", "bicubic", "lanczos"})


@dataclass(frozen=True)
class ImageSpec:
    """What happens to the pixels of every image.

    Attributes:
        resize: The target size and the way there.
        interpolation: One of ``INTERPOLATIONS``; Pillow's filters, which antialias.
        reducing_gap: See ``geometry.draft_size``.
        encoding: ``jpeg``, ``png``, or ``raw`` (uint8, height x width x channels).
        quality: JPEG quality, 1 to 100.
        channels: 1 (grey), 3 (RGB) or 4 (RGBA; not with jpeg).
        icc: Convert embedded ICC profiles to sRGB.

    Raises:
        UsageError: A value is out of range, or two do not go together.
    """

    resize: ResizeSpec
    interpolation: str = "bilinear"
    reducing_gap: float = 3.0
    encoding: Encoding = "jpeg"
    quality: int = 95
    channels: int = 3
    icc: bool = False

    def __post_init__(self) -> None:
        if self.interpolation not in INTERPOLATIONS:
            raise UsageError(
                f"--interpolation={self.interpolation} is unknown: use {', '.join(INTERPOLATIONS)}."
            )
        if self.encoding not in ENCODINGS:
            raise UsageError(f"--encoding={self.encoding} is unknown: use {', '.join(ENCODINGS)}.")
        if not 1 <= self.quality <= 100:
            raise UsageError(f"--quality={self.quality} is out of range: JPEG quality is 1 to 100.")
        if self.channels not in MODES:
            raise UsageError(f"--channels={self.channels} is not 1 (grey), 3 (RGB) or 4 (RGBA).")
        if self.channels == 4 and self.encoding == "jpeg":
            raise UsageError("--channels=4 needs --encoding=png or raw: a JPEG has no alpha.")
        if not (self.reducing_gap == 0 or 1 <= self.reducing_gap < float("inf")):
            raise UsageError(
                f"--reducing_gap={self.reducing_gap:g} is out of range: 1 or more, "
                "or 0 to decode every JPEG in full."
            )

    @property
    def packing(self) -> Packing:
        """How members are packed: compressed images gain nothing from a second compression."""
        return "deflated" if self.encoding == "raw" else "stored"

    @property
    def gap(self) -> float:
        """The reducing gap in force: none for filters that pick single pixels."""
        return self.reducing_gap if self.interpolation in _DRAFTED else 0.0

    @property
    def fixed_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels where every image comes out alike; else None."""
        rule = self.resize
        alike = rule.resize == "pad" or (
            rule.resize in ("stretch", "crop") and not rule.only_shrink
        )
        return (rule.size.height, rule.size.width, self.channels) if alike else None

    def expected_bytes(self) -> int | None:
        """Returns about how many bytes a record takes; None where that depends on the input."""
        if self.resize.resize == "none":
            return None
        pixels = self.resize.size.width * self.resize.size.height * self.channels
        return {"raw": pixels, "png": pixels * 6 // 10, "jpeg": pixels // 5}[self.encoding] + 256


class EncodedImage(NamedTuple):
    """The bytes that a record holds, what they are, and the sums of the pixels before encoding."""

    data: bytes
    size: Size
    multi_frame: bool
    channels: tuple[Sums, ...]


@ignore_pillow_warnings()
def encode_image(data: bytes, spec: ImageSpec) -> EncodedImage:
    """Turns the bytes of an image file into the bytes that a record holds.

    Raises:
        RejectedError: The file cannot become a record; the reason says why.
    """
    decoded = decode_image(data, spec.resize, spec.gap)
    image = to_channels(decoded.image, spec.channels, icc=spec.icc)
    image = _framed(_scaled(image, decoded, spec), spec.resize)
    channels = sum_pixels(image.histogram())
    return EncodedImage(_stored(image, spec), Size(*image.size), decoded.multi_frame, channels)


def _scaled(image: Image.Image, decoded: Decoded, spec: ImageSpec) -> Image.Image:
    """Scales, then turns: the small image is cheaper to turn, and the pixels are the same."""
    scaled = spec.resize.scaled(decoded.size)
    width, height = (scaled.height, scaled.width) if decoded.orientation >= 5 else scaled
    if width * height > max(MAX_PIXELS, spec.resize.size.width * spec.resize.size.height):
        raise RejectedError(
            "decode", "too_large", f"to crop it, it would be scaled to {width}x{height} pixels"
        )
    if (width, height) != image.size:
        resampling = Image.Resampling[spec.interpolation.upper()]
        image = image.resize((width, height), resampling, box=decoded.box)
    return turn(image, decoded.orientation)


def _framed(image: Image.Image, rule: ResizeSpec) -> Image.Image:
    """Pads or crops a scaled image to the target."""
    if rule.resize == "pad" and image.size != rule.size:
        canvas = Image.new(image.mode, rule.size)
        left, top = (rule.size.width - image.width) // 2, (rule.size.height - image.height) // 2
        canvas.paste(image, (left, top))
        return canvas
    if rule.resize == "crop":
        width, height = min(rule.size.width, image.width), min(rule.size.height, image.height)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        return image.crop((left, top, left + width, top + height))
    return image


def _stored(image: Image.Image, spec: ImageSpec) -> bytes:
    if spec.encoding == "raw":
        return image.tobytes()
    buffer = io.BytesIO()
    clean = image if not image.info else _without_metadata(image)
    try:
        if spec.encoding == "jpeg":
            clean.save(buffer, "JPEG", quality=spec.quality)
        else:
            clean.save(buffer, "PNG")
    except Exception as error:  # Pillow's encoders raise many types
        message = f"{type(error).__name__}: {plain_message(error)}"
        raise RejectedError("encode", "encode", message) from error
    return buffer.getvalue()


def _without_metadata(image: Image.Image) -> Image.Image:
    """Drops profiles, EXIF, resolution and comments, which Pillow would write along."""
    image = image.copy()
    image.info = {}
    return image


def codec_versions() -> dict[str, str]:
    """Returns the versions of all code that decides bytes of an image record."""
    names = ("pil", "libjpeg_turbo", "zlib", "zlib_ng", "webp", "avif", "jpg_2000", "libtiff")
    found = {name: features.version(name) for name in names}
    return {name: version for name, version in found.items() if version}
