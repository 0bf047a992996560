"""Where the pixels of a file are in its record: sizes, exact in integers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from shardmill.schemas import option_types as of
from shardmill.schemas.errors import UsageError
from shardmill.schemas.option_types import Choice
from shardmill.schemas.schema_pbtxt.image_features import ENCODINGS

Resize = Literal["stretch", "fit", "pad", "crop", "none"]
RESIZES: tuple[Resize, ...] = ("stretch", "fit", "pad", "crop", "none")
Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Resizer = Literal["pillow", "simd"]  # see scaling.py
# Options of specs and of the command line, in this module because it is fast to import.
RESIZE = of.choice(RESIZES, "stretch")
INTERPOLATION = of.choice(get_args(Interpolation), "bilinear")
RESIZER = of.choice(get_args(Resizer), "", decides=False)  # empty: what the client has
REDUCING_GAP = of.real(
    3.0,
    lambda gap: gap == 0 or 1 <= gap < float("inf"),
    "1 or more, or 0 to decode every JPEG in full",
)
ENCODING = of.choice(ENCODINGS, "jpeg", {"jpg": "jpeg"})
QUALITY = of.whole(95, 1, 100, pattern="[1-9][0-9]?|100")
MAX_PIXELS = of.whole(178_956_970, 1)  # Pillow's limit against decompression bombs
MAX_SIDE = 65_500  # libjpeg's limit
_IMAGE_SIZE = re.compile(r"([0-9]{1,9})(?:[xX]([0-9]{1,9}))?")

Box = tuple[float, float, float, float]


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        """Return the ``--image_size`` value."""
        return str(self.width) if self.width == self.height else f"{self.height}x{self.width}"


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
    return Size(size.height, size.width) if orientation >= 5 else size


@dataclass(frozen=True)
class ResizeSpec:
    """How images are resized.

    Attributes:
        size: Target size.
        resize: ``stretch`` to the target; ``fit`` inside it; ``pad``: fit, then add black bars;
            ``crop``: cover it and keep the center; ``none``.
        only_shrink: Whether images are never enlarged.

    Raises:
        UsageError: A side is not between 1 and 65,500 pixels, or ``resize`` is unknown.
    """

    size: Size
    resize: Choice[Resize] = RESIZE
    only_shrink: bool = False

    def __post_init__(self) -> None:
        if not all(1 <= side <= MAX_SIDE for side in self.size):
            size = f"{self.size.height}x{self.size.width}"
            raise UsageError(
                f"--image_size={size} is out of range: each side takes 1 to {MAX_SIDE} pixels, as "
                "in 224 or 180x320 (height x width)."
            )

    def scaled(self, source: Size) -> Size:
        """Return the size that a source image is scaled to, before padding or cropping."""
        if self.resize == "none":
            return source
        if self.resize == "stretch":
            if self.only_shrink:
                return Size(*map(min, self.size, source))
            return self.size
        by_width = Size(self.size.width, _scale(source.height, self.size.width, source.width))
        by_height = Size(_scale(source.width, self.size.height, source.height), self.size.height)
        width_binds = self.size.width * source.height <= self.size.height * source.width
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
            left, top = ((a - b) // 2 for a, b in zip(self.size, scaled, strict=True))
            return Geometry(stored, orientation, scaled, left, top, self.size)
        if self.resize == "crop":
            size = Size(*map(min, self.size, scaled))
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


def parse_image_size(value: str | int | tuple[int, ...]) -> Size:
    """Return the size of an ``--image_size`` value: ``224`` or ``180x320`` (height x width).

    Args:
        value: The text, a side of a square, height and width, or a ``Size``.

    Raises:
        UsageError: The value has another form.
    """
    if isinstance(value, Size):
        return value
    text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
    match = _IMAGE_SIZE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--image_size={text} is not a size: write pixels as in 224, or height x width as in "
            "180x320."
        )
    height, width = match.groups()
    return Size(width=int(width or height), height=int(height))
