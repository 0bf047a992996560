"""A Keras normalization layer from the means and standard deviations in the manifest."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardmill.loaders.frameworks import require_framework
from shardmill.loaders.steps import get_split
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import UsageError

if TYPE_CHECKING:
    import keras


def normalization(
    manifest: Manifest | str | os.PathLike[str], split: str = "train", feature: str | None = None
) -> keras.Layer:
    """Returns a ``keras.layers.Normalization`` with the statistics of a split; reads no records.

    Args:
        manifest: The dataset's manifest, its folder or the path of its manifest.json.
        split: The split whose statistics are used: the training split.
        feature: A numeric column of rows; None for the channels of images.

    Raises:
        InputError: The manifest does not exist, or this release cannot read it.
        UsageError: The split is unknown, or has no such statistics.
    """
    require_framework("keras")
    import keras

    statistics = get_split(manifest, split)[1].statistics
    if feature is None:
        if statistics is None or statistics.pixels is None:
            raise UsageError(
                f"the manifest has no pixel statistics for {split!r}: name a feature, or adapt a "
                "keras.layers.Normalization."
            )
        means, stds = list(statistics.pixels.mean), list(statistics.pixels.std)
        return keras.layers.Normalization(axis=-1, mean=means, variance=[std * std for std in stds])
    column = None if statistics is None else statistics.features.get(feature)
    if column is None or column.mean is None or column.std is None:
        raise UsageError(
            f"the manifest has no mean of the feature {feature!r} for {split!r}: name a numeric "
            "column with values."
        )
    return keras.layers.Normalization(axis=None, mean=column.mean, variance=column.std**2)
