"""Where the pixels of a file are in its record: sizes, exact in integers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from shardmill.schemas import option_types as of
from shardmill.schemas.errors import UsageError

Resize = Literal["stretch", "fit", "pad", "crop", "none"]
RESIZES: tuple[Resize, ...] = ("stretch", "fit", "pad", "crop", "none")
Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Resizer = Literal["", "pillow", "simd"]  # see scaling.py; empty: what the client has
MAX_SIDE = 65_500  # libjpeg's limit
_IMAGE_SIZE = re.compile(r"([0-9]{1,9})(?:[xX]([0-9]{1,9}))?")

Box = tuple[float, float, float, float]


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        """Return the ``--image_size`` value."""
        if self.width == self.height:
            return str(self.width)
        return f"{self.height}x{self.width}"


class Geometry(NamedTuple):
    """Where the pixels of a file are in its record.

    Attributes:
        stored: Size of the image in the file, before it is rotated.
        orientation: Its EXIF orientation, 1 to 8.
        scaled: Size that the upright image is scaled to.
        left: Column of the record where the scaled image begins; negative if it is cropped.
        top: Row of the record where it begins.
        size: Size of the record's image.
    """

    stored: Size
    orientation: int
    scaled: Size
    left: int
    top: int
    size: Size

    @property
    def upright(self) -> Size:
        """Size of the image in the file, after it is rotated."""
        return turned(self.stored, self.orientation)


def turned(size: Size, orientation: int) -> Size:
    """Return a size before or after the rotation of an EXIF orientation, which is its inverse."""
    if orientation >= 5:
        return Size(size.height, size.width)
    return size


ImageSize = of.Option[Size, int | str | tuple[int, int]]


def parse_image_size(value: Any) -> Size:
    """Return the size of an ``--image_size`` value: ``224`` or ``180x320`` (height x width).

    Args:
        value: The text, a side of a square, height and width, or a ``Size``.

    Raises:
        UsageError: The value has another form.
    """
    if isinstance(value, Size):
        return value
    is_pair = hasattr(value, "__iter__") and not isinstance(value, str)
    text = "x".join(map(str, value)) if is_pair else str(value)
    match = _IMAGE_SIZE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--image_size={text} is not a size: write pixels as in 224, or height x width as in "
            "180x320."
        )
    height, width = match.groups()
    return Size(width=int(width or height), height=int(height))


def _parse_target(_: str, value: Any) -> Size:
    size = parse_image_size(value)
    if not all(1 <= side <= MAX_SIDE for side in size):
        written = f"{size.height}x{size.width}"
        raise UsageError(
            f"--image_size={written} is out of range: each side takes 1 to {MAX_SIDE} pixels, as "
            "in 224 or 180x320 (height x width)."
        )
    return size


@dataclass(kw_only=True)
class ResizeSpec(of.Options):
    """How images are resized.

    ``stretch`` to the target; ``fit`` inside it; ``pad``: fit, then add black bars; ``crop``: cover
    it and keep the center; ``none``.

    Attributes:
        image_size: ``SIZE``: 224 (default) or 180x320 (height x width)
        resize: ``HOW``: stretch, fit, pad, crop, none
        interpolation: ``FILTER``: nearest, box, bilinear, hamming, bicubic, lanczos
        only_shrink: never enlarge an image

    Raises:
        UsageError: A value breaks its rule.
    """

    image_size: ImageSize = of.Option("text", _parse_target, "224", pattern="[0-9]+(x[0-9]+)?")
    resize: of.Choice[Resize] = of.choice(RESIZES, "stretch")
    interpolation: of.Choice[Interpolation] = of.choice(get_args(Interpolation), "bilinear")
    only_shrink: of.Switch = of.switch()

    def scaled(self, source: Size) -> Size:
        """Return the size that a source image is scaled to, before padding or cropping."""
        if self.resize == "none":
            return source
        if self.resize == "stretch":
            if self.only_shrink:
                return Size(*map(min, self.image_size, source))
            return self.image_size
        target = self.image_size
        by_width = Size(target.width, _scale(source.height, target.width, source.width))
        by_height = Size(_scale(source.width, target.height, source.height), target.height)
        width_binds = target.width * source.height <= target.height * source.width
        scaled = by_width if width_binds == (self.resize != "crop") else by_height
        if self.only_shrink and (scaled.width > source.width or scaled.height > source.height):
            return source
        return scaled

    def geometry(self, stored: Size, orientation: int) -> Geometry:
        """Return where the pixels of a file are in its record.

        Args:
            stored: Size of the image in the file, before it is rotated.
            orientation: Its EXIF orientation, 1 to 8.
        """
        scaled = self.scaled(turned(stored, orientation))
        if self.resize == "pad":
            left, top = ((a - b) // 2 for a, b in zip(self.image_size, scaled, strict=True))
            return Geometry(stored, orientation, scaled, left, top, self.image_size)
        if self.resize == "crop":
            size = Size(*map(min, self.image_size, scaled))
            left, top = (-((a - b) // 2) for a, b in zip(scaled, size, strict=True))
            return Geometry(stored, orientation, scaled, left, top, size)
        return Geometry(stored, orientation, scaled, 0, 0, scaled)


def _scale(side: int, numerator: int, denominator: int) -> int:
    """Return side * numerator / denominator, rounded half up, at least 1."""
    return max(1, (2 * side * numerator + denominator) // (2 * denominator))


def draft_size(source: Size, scaled: Size, gap: float) -> Size | None:
    """Return the smallest size that a JPEG may be decoded at before it is scaled.

    Args:
        source: Size of the image in the file.
        scaled: Size that the image will be scaled to, in the same orientation.
        gap: Minimum ratio of the decoded size to ``scaled``; 0 for full size. It is at least 4 for
            sides below 64 pixels, where each source pixel has more weight.

    Returns:
        The size, or None if the image must be decoded at full size.
    """
    if gap <= 0:
        return None
    if min(scaled) < 64:
        gap = max(gap, 4.0)
    width, height = scaled.width * gap, scaled.height * gap
    if 2 * width > source.width or 2 * height > source.height:
        return None  # libjpeg's first step is one half
    return Size(math.ceil(width), math.ceil(height))
