"""Normalization by the means and standard deviations of splits, for Keras, PyTorch and JAX."""

from __future__ import annotations

import functools
import os
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from shardmill.loaders.frameworks import require_framework
from shardmill.loaders.split_statistics import find_moments
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import UsageError

Framework = Literal["keras", "torch", "jax"]
_SMALLEST_STD = 1e-7  # as Keras: a column of equal values becomes 0, not NaN


def normalization(
    manifest: Manifest | str | os.PathLike[str], split: str = "train", feature: str | None = None,
    *, framework: Framework = "keras",
) -> Any:  # fmt: skip
    """Returns a layer that subtracts the mean of a split and divides by its standard deviation.

    Values have the layout of the records: the channels of images are last. Of whole splits, the
    statistics are in the manifest, and no records are read.

    Args:
        manifest: The dataset's manifest, its folder or the path of its manifest.json.
        split: The split whose statistics are used: the training split. Or several as in
            ``train+validation``, or slices as in ``train[:80%]``, whose statistics are computed
            from the catalog of images or from the records.
        feature: A numeric column of rows; None for the channels of images.
        framework: ``keras`` for a ``keras.layers.Normalization``, ``torch`` for a
            ``torch.nn.Module``, whose statistics are part of its ``state_dict``, ``jax`` for a
            function of JAX or NumPy arrays.

    Raises:
        InputError: The dataset cannot be read.
        UsageError: The split is unknown or has no such statistics, the framework is unknown, or a
            slice is of a manifest without a path.
    """
    if framework not in get_args(Framework):
        raise UsageError("framework-unknown", framework=framework)
    if framework != "jax":
        require_framework(framework)
    moments = find_moments(manifest, split, feature)
    if moments is None and feature is None:
        raise UsageError("normalization-without-pixels", split=split)
    if moments is None:
        raise UsageError("normalization-without-mean", feature=feature, split=split)
    mean, std = (values[0] if feature else values for values in moments[1:])
    if framework == "keras":
        import keras

        axis = None if feature else -1
        return keras.layers.Normalization(axis=axis, mean=mean.tolist(), variance=(std**2).tolist())
    mean, std = np.float32(mean), np.maximum(std, _SMALLEST_STD, dtype=np.float32)
    if framework == "jax":
        return functools.partial(_standardize, mean, std)
    from shardmill.loaders.torch_normalization import TorchNormalization

    return TorchNormalization(mean, std)


def _standardize(mean: npt.NDArray[np.float32], std: npt.NDArray[np.float32], values: Any) -> Any:
    return (values - mean) / std
