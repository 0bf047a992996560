"""Sizes: what an image is scaled to, and what part of it is kept. Integers only, so exact."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from shardmill.schemas.errors import UsageError

Resize = Literal["stretch", "fit", "pad", "crop", "none"]
RESIZES: tuple[Resize, ...] = ("stretch", "fit", "pad", "crop", "none")
INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
MAX_SIDE = 65_500  # libjpeg's limit
_IMAGE_SIZE = re.compile(r"([0-9]{1,9})(?:[xX]([0-9]{1,9}))?")


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


@dataclass(frozen=True)
class ResizeSpec:
    """How images come to one size.

    Attributes:
        size: The target.
        resize: ``stretch`` to the target; ``fit`` inside it; ``pad``: fit, then black bars;
            ``crop``: cover it and cut the middle out; ``none``.
        only_shrink: Never enlarge.

    Raises:
        UsageError: A side is not between 1 and 65,500 pixels, or the way is unknown.
    """

    size: Size
    resize: Resize = "stretch"
    only_shrink: bool = False

    def __post_init__(self) -> None:
        if self.resize not in RESIZES:
            raise UsageError(f"--resize={self.resize} is unknown: use {', '.join(RESIZES)}.")
        if not all(1 <= side <= MAX_SIDE for side in self.size):
            shown = f"{self.size.height}x{self.size.width}"
            raise UsageError(
                f"--image_size={shown} is out of range: each side takes 1 to {MAX_SIDE} pixels, "
                "as in 224 or 180x320 (height x width)."
            )

    def scaled(self, source: Size) -> Size:
        """Returns the size that the whole source image is scaled to, before any pad or crop."""
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


def _scale(side: int, numerator: int, denominator: int) -> int:
    """Returns side * numerator / denominator, rounded half up, at least 1."""
    return max(1, (2 * side * numerator + denominator) // (2 * denominator))


def draft_size(source: Size, scaled: Size, gap: float) -> Size | None:
    """Returns the least size that a JPEG may be decoded to before it is scaled, or None for all.

    Args:
        source: Size in the file, before orientation.
        scaled: What the whole image is scaled to, in the same orientation as source.
        gap: How many times larger than ``scaled`` the decoded image must stay; 0 for all of it.
            Below 64 pixels at least 4 times, where each source pixel weighs more.
    """
    if gap <= 0:
        return None
    if min(scaled) < 64:
        gap = max(gap, 4.0)
    width, height = scaled.width * gap, scaled.height * gap
    if 2 * width > source.width or 2 * height > source.height:
        return None  # libjpeg's first step is one half
    return Size(math.ceil(width), math.ceil(height))


def parse_image_size(text: str) -> Size:
    """Returns the size of an ``--image_size`` value: ``224`` or ``180x320`` (height x width).

    Raises:
        UsageError: The text is neither.
    """
    found = _IMAGE_SIZE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--image_size={text} is no size: write pixels as in 224, "
            "or height x width as in 180x320."
        )
    height, width = found.groups()
    return Size(width=int(width or height), height=int(height))
