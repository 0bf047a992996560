"""Image augmentation by Keras layers, for ``tf.data.Dataset.map`` or a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from shardmill.loaders.frameworks import require_framework
from shardmill.schemas.errors import UsageError

if TYPE_CHECKING:
    import keras

Flip = Literal["horizontal", "vertical", "horizontal_and_vertical"]


def augmentation(  # noqa: PLR0913 - all are named
    *,
    flip: Flip | None = None,
    rotate: float = 0.0,
    zoom: float = 0.0,
    crop: tuple[int, int] | None = None,
    brightness: float = 0.0,
    contrast: float = 0.0,
    noise: float = 0.0,
    value_range: tuple[float, float] = (0.0, 255.0),
    seed: int = 0,
) -> keras.Layer:
    """Returns a ``keras.Sequential`` of random augmentation layers, in the order of the arguments.

    Its outputs are float32 within ``value_range``. Call it with ``training=True`` in
    ``tf.data.Dataset.map``, or make it the first layer of a model.

    Args:
        flip: Direction in which each image is mirrored with probability 0.5.
        rotate: Maximum rotation in either direction, in full turns: 0.1 is 36 degrees.
        zoom: Maximum zoom in or out, as a fraction of the size.
        crop: Height and width of a random crop.
        brightness: Maximum change of brightness, as a fraction of the value range.
        contrast: Maximum change of contrast, as a fraction.
        noise: Standard deviation of Gaussian noise, as a fraction of the value range.
        value_range: Minimum and maximum pixel value.
        seed: Seed of the random numbers.

    Raises:
        UsageError: All changes are off, or a value is unknown or out of range.
    """
    require_framework("keras")
    import keras

    if flip is not None and flip not in get_args(Flip):
        raise UsageError(f"flip={flip!r} is unknown: use {', '.join(get_args(Flip))}.")
    fractions = {"rotate": rotate, "zoom": zoom, "brightness": brightness, "contrast": contrast}
    for name, fraction in {**fractions, "noise": noise}.items():
        if not 0 <= fraction <= 1:
            raise UsageError(f"{name}={fraction} must be between 0 and 1.")
    layers = keras.layers
    chain: list[Any] = [
        flip and layers.RandomFlip(flip, seed=seed),
        rotate and layers.RandomRotation(rotate, "reflect", seed=seed + 1),
        zoom and layers.RandomZoom(zoom, fill_mode="reflect", seed=seed + 2),
        crop and layers.RandomCrop(*crop, seed=seed + 3),
        brightness and layers.RandomBrightness(brightness, value_range, seed=seed + 4),
        contrast and layers.RandomContrast(contrast, value_range, seed=seed + 5),
        *(_noise(noise, value_range, seed + 6) if noise else ()),
    ]
    enabled = [layer for layer in chain if layer]
    if not enabled:
        raise UsageError("augmentation() changes nothing: name a change, as in flip='horizontal'.")
    return keras.Sequential(enabled)


def _noise(std: float, value_range: tuple[float, float], seed: int) -> list[Any]:
    """Returns layers that add Gaussian noise and clip to the range."""
    import keras

    layers, low, width = keras.layers, value_range[0], value_range[1] - value_range[0]
    return [
        layers.Rescaling(1 / width, -low / width),
        layers.GaussianNoise(std, seed=seed),
        layers.Lambda(lambda pixels: keras.ops.clip(pixels, 0.0, 1.0)),
        layers.Rescaling(width, low),
    ]
