"""Colour: any mode that Pillow decodes to becomes the right 8-bit L, RGB or RGBA."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
from PIL import Image, ImageCms
from shardmill.schemas.rejects import RejectedError

P = ParamSpec("P")
T = TypeVar("T")

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_ALPHA = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262
_WHITE_IS_ZERO = 0


def to_channels(image: Image.Image, channels: int, *, icc: bool = False) -> Image.Image:
    """Returns the image in 8 bits a channel: 1 (L), 3 (RGB) or 4 (RGBA).

    Alpha is laid over white unless 4 channels are asked for. CMYK and YCbCr are converted as
    libjpeg does; ICC profiles are ignored unless ``icc``, as TensorFlow does.

    Raises:
        RejectedError: The pixels have no defined 8-bit value.
    """
    if image.mode.startswith("I") or image.mode == "F":
        image = _eight_bits(image)
    elif icc and image.info.get("icc_profile"):
        image = _to_srgb(image)
    elif image.mode == "LAB":
        image = _foreign("convert LAB", _lab_to_rgb, image)
    transparent = image.mode in _ALPHA or "transparency" in image.info
    if transparent and channels != 4:
        image = _over_white(image)
    mode = MODES[channels]
    if image.mode == mode:
        return image
    if channels == 1 and image.mode not in ("1", "L"):
        image = _foreign("convert to RGB", image.convert, "RGB")
    return _foreign(f"convert to {mode}", image.convert, mode)


def _foreign(what: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs one of Pillow's conversions; whatever it raises refuses the image."""
    try:
        return call(*args, **kwargs)
    except Exception as error:  # Pillow's conversions raise many types
        raise RejectedError("decode", "color", f"cannot {what}: {error}") from error


def _over_white(image: Image.Image) -> Image.Image:
    rgba = _foreign("convert to RGBA", image.convert, "RGBA")
    white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, rgba).convert("RGB")


def _to_srgb(image: Image.Image) -> Image.Image:
    def convert() -> Image.Image:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(image.info["icc_profile"]))
        source = image.convert("RGB") if image.mode in ("P", "1") else image
        alpha = source.mode in _ALPHA or "transparency" in source.info
        color = source.convert("RGB") if alpha else source
        done: Image.Image | None = ImageCms.profileToProfile(
            color, profile, ImageCms.createProfile("sRGB"), outputMode="RGB"
        )
        if done is None:
            raise ValueError("the profile gave no image")
        if alpha:
            done.putalpha(source.convert("RGBA").getchannel("A"))
        return done

    try:
        return convert()
    except Exception as error:  # littlecms by way of Pillow
        raise RejectedError("decode", "icc", f"cannot apply the ICC profile: {error}") from error


def _lab_to_rgb(image: Image.Image) -> Image.Image:
    done: Image.Image | None = ImageCms.profileToProfile(
        image, ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), outputMode="RGB"
    )
    if done is None:
        raise ValueError("littlecms gave no image")
    return done


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scales wide integers and floats to 8 bits, transparency of 16-bit PNGs included."""
    pixels = np.asarray(image)
    if image.mode == "F":
        return Image.fromarray(_from_floats(pixels))
    if image.mode == "I":
        _check_range(image, pixels)
    top = (1 << _bits(image)) - 1
    scaled = (pixels.astype(np.int64) * 510 + top) // (2 * top)
    if _tag(image, _PHOTOMETRIC) == _WHITE_IS_ZERO:
        scaled = 255 - scaled
    grey = Image.fromarray(scaled.astype(np.uint8))
    key = image.info.get("transparency")
    if not isinstance(key, int):
        return grey
    alpha = Image.fromarray(np.where(pixels == key, 0, 255).astype(np.uint8))
    return Image.merge("LA", (grey, alpha))


def _from_floats(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not np.isfinite(pixels).all():
        raise RejectedError("decode", "float_range", "floating-point pixels are not all finite")
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0 or high > 1:
        raise RejectedError(
            "decode", "float_range", f"floating-point pixels from {low:g} to {high:g}, not [0, 1]"
        )
    scaled: np.ndarray[Any, Any] = np.floor(pixels.astype(np.float64) * 255 + 0.5).astype(np.uint8)
    return scaled


def _check_range(image: Image.Image, pixels: np.ndarray[Any, Any]) -> None:
    low, high = int(pixels.min()), int(pixels.max())
    if _tag(image, _BITS_PER_SAMPLE) == 32 or low < 0 or high > 0xFFFF:
        raise RejectedError(
            "decode",
            "int_range",
            f"integer pixels from {low} to {high}: only unsigned 16-bit has a defined white",
        )


def _bits(image: Image.Image) -> int:
    bits = _tag(image, _BITS_PER_SAMPLE)
    return bits if bits in (9, 10, 11, 12, 13, 14, 15) else 16


def _tag(image: Image.Image, number: int) -> int | None:
    """Returns a TIFF tag's first value, or None for other formats."""
    tags = getattr(image, "tag_v2", None)
    value = tags.get(number) if tags is not None else None
    if isinstance(value, tuple):
        value = value[0] if value else None
    return value if isinstance(value, int) else None
