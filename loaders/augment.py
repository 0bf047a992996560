"""Augmentation: Keras layers that change pictures while they are read; the data stay the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from shardmill.loaders.frameworks import need
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
    """Returns a Keras layer that changes pictures at random, for ``keras_dataset(augment=...)``.

    It is a ``keras.Sequential`` of Keras' own layers, in the order of the arguments; another list
    of layers does as well. Pictures become float32, within ``value_range``.

    Args:
        flip: Mirrors half of them.
        rotate: Turns by up to so many full turns, either way: 0.1 is 36 degrees.
        zoom: Zooms in or out by up to this share.
        crop: Height and width of a piece that is cut out somewhere.
        brightness: Makes them brighter or darker by up to this share of the range.
        contrast: Changes the distance from the mean by up to this share.
        noise: Standard deviation of Gaussian noise, as a share of the range.
        value_range: Least and greatest value of a pixel.
        seed: Another one gives other changes.

    Raises:
        UsageError: Nothing is to be changed, or a value is unknown or out of range.
    """
    need("keras")
    import keras

    if flip is not None and flip not in get_args(Flip):
        raise UsageError(f"flip={flip!r} is unknown: use {', '.join(get_args(Flip))}.")
    _check_shares(rotate=rotate, zoom=zoom, brightness=brightness, contrast=contrast, noise=noise)
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
    wanted = [layer for layer in chain if layer]
    if not wanted:
        raise UsageError("nothing is to be changed: name a change, as in flip='horizontal'.")
    return keras.Sequential(wanted)


def _check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise UsageError(f"{name}={share} is out of range: it is a share from 0 to 1.")


def _noise(share: float, value_range: tuple[float, float], seed: int) -> list[Any]:
    """Returns layers that add Gaussian noise and stay within the range."""
    import keras

    layers, low, width = keras.layers, value_range[0], value_range[1] - value_range[0]
    return [
        layers.Rescaling(1 / width, -low / width),
        layers.GaussianNoise(share, seed=seed),
        layers.Lambda(lambda pixels: keras.ops.clip(pixels, 0.0, 1.0)),
        layers.Rescaling(width, low),
    ]
