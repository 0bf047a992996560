"""The options of images: how a picture is converted, and the limits of decoding one.

This module is imported for ``--help``, so it imports nothing that is slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardmill.schemas import option_types as of
from shardmill.schemas.errors import UsageError
from shardmill.schemas.numbers import plural
from shardmill.schemas.schema_pbtxt.image_features import ENCODINGS, Encoding
from shardmill.transforms.images.resize import Resizer, ResizeSpec

# A serialized protocol buffer has less than 2 GiB; the other features need a part of it.
MAX_RECORD_BYTES = (1 << 31) - (1 << 20)
_DAY = 86_400  # seconds
_AVERAGING = frozenset({"box", "bilinear", "bicubic", "lanczos"})


@dataclass(kw_only=True)
class ImageOptions(ResizeSpec):
    """How images are converted.

    Attributes:
        reducing_gap: ``X``: decode JPEGs at a reduced scale that stays at least X times larger than
            the target (0: always full size)
        resizer: ``NAME``: simd (default where cykooz-resizer is installed) or pillow: what scales
            bilinear images without alpha, to pixels that differ a little
        encoding: ``TYPE``: jpeg, png, raw, or keep: copy JPEG and PNG files that are not resized
            (--resize=none), and convert the others
        strip_metadata: remove EXIF (GPS positions too), XMP, profiles and comments from the files
            that --encoding=keep copies
        quality: ``Q``: JPEG quality, 1 to 100
        channels: ``N``: 3 (default), 1 (grey) or 4 (with alpha)

    Raises:
        UsageError: A value breaks its rule, or two values cannot be combined.
    """

    reducing_gap: of.Float = of.real(
        3.0,
        lambda gap: gap == 0 or 1 <= gap < float("inf"),
        "1 or more, or 0 to decode every JPEG in full",
    )
    resizer: of.Choice[Resizer] = of.choice(("pillow", "simd"), "", decides=False)
    encoding: of.Choice[Encoding] = of.choice(ENCODINGS, "jpeg", {"jpg": "jpeg"})
    strip_metadata: of.Switch = of.switch()
    quality: of.Int = of.whole(95, 1, 100, pattern="[1-9][0-9]?|100")
    channels: of.Int = of.whole(3, 1, 4, choices=("1", "3", "4"), pattern="1|3|4")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels == 2:
            raise UsageError(f"--channels={self.channels} is not 1 (grey), 3 (RGB) or 4 (RGBA).")
        if self.channels == 4 and self.encoding == "jpeg":
            raise UsageError("--channels=4 needs --encoding=png, raw or keep: a JPEG has no alpha.")
        if self.strip_metadata and self.encoding != "keep":
            raise UsageError(
                f"--strip_metadata needs --encoding=keep: images encoded as {self.encoding} have "
                "no metadata."
            )
        if self.target_bytes > MAX_RECORD_BYTES:
            raise UsageError(
                f"--image_size={self.image_size.height}x{self.image_size.width} is out of range: "
                f"the pixels of an image would take {plural(self.target_bytes, 'byte')}, and a "
                f"tf.train.Example can hold {MAX_RECORD_BYTES:,}."
            )

    @property
    def gap(self) -> float:
        """Reducing gap that applies: 0 for filters whose output depends on single source pixels."""
        if self.interpolation in _AVERAGING:
            return self.reducing_gap
        return 0.0

    @property
    def fixed_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels if they are the same for every image; else None."""
        may_stay_small = self.resize != "pad" and self.only_shrink
        if self.resize in ("fit", "none") or may_stay_small:
            return None
        return (self.image_size.height, self.image_size.width, self.channels)

    @property
    def target_bytes(self) -> int:
        """Bytes of the pixels of the target; 0 if images keep their size."""
        if self.resize == "none":
            return 0
        return self.image_size.width * self.image_size.height * self.channels

    def record_identity(self) -> dict[str, Any]:
        """Return the values that decide the image of a record, as identities have them."""
        values = of.identity_of(self)
        # The form of 0.2.0, in which sizes were pairs.
        del values["image_size"]
        resize = {"size": [*self.image_size]}
        resize |= {name: values.pop(name) for name in ("resize", "only_shrink")}
        return values | {"resize": resize}


@dataclass(kw_only=True)
class DecoderLimits(of.Options):
    """Limits of one image in a decoder process.

    Attributes:
        max_pixels: ``N``: reject images with more pixels, by their headers
        decoder_memory: ``SIZE``: reject images whose decoding needs more memory
        decoder_seconds: ``X``: reject images whose decoding takes more CPU time
    """

    max_pixels: of.Int = of.whole(178_956_970, 1)  # Pillow's limit against decompression bombs
    # Twice the largest file that is read.
    decoder_memory: of.Bytes = of.size("6GiB", least="1GiB")
    decoder_seconds: of.Float = of.real(
        180.0, lambda seconds: 0 < seconds <= _DAY, f"above 0, and at most {_DAY}"
    )
