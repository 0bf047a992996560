"""Convert images of any Pillow mode to 8-bit grey, RGB or RGBA."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.images.decode import reject_failures

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_ALPHA = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339
_WHITE_IS_ZERO = 0
_SIGNED = 2
_PROFILE_MODES = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK"}


def to_channels(image: Image.Image, channels: int, *, icc: bool = False) -> Image.Image:
    """Return the image with 8 bits per channel.

    Args:
        image: A loaded image of any mode.
        channels: 1 (L), 3 (RGB) or 4 (RGBA). Alpha is composited over white unless it is 4.
        icc: Whether to convert embedded ICC profiles to sRGB; otherwise they are ignored, as by
            TensorFlow. CMYK and YCbCr without a profile are converted as libjpeg does.

    Raises:
        RejectedError: The pixels cannot be converted, or their 8-bit value is not defined.
    """
    profile = image.info.get("icc_profile") if icc else None
    if image.mode.startswith("I") or image.mode == "F":
        image = _eight_bits(image)
    if image.mode == "LAB":
        image = _convert(image, "RGB", "convert LAB")
    elif profile:
        image = _to_srgb(image, profile)
    transparent = image.mode in _ALPHA or "transparency" in image.info
    if transparent and channels != 4:
        image = _over_white(image)
    mode = MODES[channels]
    if image.mode == mode:
        return image
    if channels == 1 and image.mode not in ("1", "L"):
        image = _convert(image, "RGB")
    return _convert(image, mode)


def _convert(image: Image.Image, mode: str, action: str = "") -> Image.Image:
    """Convert the mode of an image; any failure rejects it."""
    with reject_failures("decode", "color", action or f"convert to {mode}"):
        return image.convert(mode)


def _over_white(image: Image.Image) -> Image.Image:
    rgba = _convert(image, "RGBA")
    white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, rgba).convert("RGB")


def _to_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    with reject_failures("decode", "icc", "apply the ICC profile"):
        alpha = None
        if image.mode in _ALPHA or "transparency" in image.info:
            alpha = image.convert("RGBA").getchannel("A")
        done = _apply_profile(image, ImageCms.ImageCmsProfile(io.BytesIO(profile)))
        if alpha is not None:
            done.putalpha(alpha)
    return done


def _apply_profile(image: Image.Image, profile: Any) -> Image.Image:
    """Return the image in sRGB without alpha.

    Grey pixels may have an RGB profile (then R = G = B); others must match the profile.
    """
    space = profile.profile.xcolor_space.strip()
    mode = _PROFILE_MODES.get(space)
    grey = image.mode in ("1", "L", "LA")
    fits = image.mode == "CMYK" if mode == "CMYK" else grey if mode == "L" else mode == "RGB"
    if not fits or (mode == "RGB" and image.mode == "CMYK"):
        raise ValueError(f"it is a {space} profile, the pixels are {image.mode}")
    color = image if image.mode == mode else image.convert(mode)
    done: Image.Image | None = ImageCms.profileToProfile(
        color, profile, ImageCms.createProfile("sRGB"), outputMode="RGB"
    )
    if done is None:
        raise ValueError("littlecms returned no image")
    return done


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
    top = (1 << _bits(image)) - 1
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


def _bits(image: Image.Image) -> int:
    bits = _tag(image, _BITS_PER_SAMPLE)
    return bits if bits in (9, 10, 11, 12, 13, 14, 15) else 16


def _tag(image: Image.Image, number: int) -> int | None:
    """Return the first value of a TIFF tag; None for other formats."""
    tags = getattr(image, "tag_v2", None)
    value = tags.get(number) if tags is not None else None
    if isinstance(value, tuple):
        value = value[0] if value else None
    return value if isinstance(value, int) else None
