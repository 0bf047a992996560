"""Normalization: the means and deviations of the manifest as a Keras layer; nothing is read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardmill.loaders.frameworks import need
from shardmill.loaders.steps import split_of
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import UsageError

if TYPE_CHECKING:
    import keras


def normalization(
    manifest: Manifest | str | os.PathLike[str],
    split: str = "train",
    feature: str | None = None,
) -> keras.Layer:
    """Returns a Keras layer that brings values to mean 0 and deviation 1, as ``adapt`` would.

    Args:
        manifest: The dataset's manifest, or where it is.
        split: The split whose statistics count; the one that is trained on.
        feature: A column of rows; by default the channels of the pictures.

    Raises:
        InputError: There is no manifest that this release can read.
        UsageError: The split or its statistics are not there.
    """
    need("keras")
    import keras

    found = split_of(manifest, split)[1].statistics
    if feature is None:
        if found is None or found.pixels is None:
            raise UsageError(
                f"the manifest has no statistics of pixels for {split!r}: name a feature, or adapt "
                "a keras.layers.Normalization."
            )
        means, stds = list(found.pixels.mean), list(found.pixels.std)
        return keras.layers.Normalization(axis=-1, mean=means, variance=[std * std for std in stds])
    one = None if found is None else found.features.get(feature)
    if one is None or one.mean is None or one.std is None:
        raise UsageError(
            f"the manifest has no mean of the feature {feature!r} for {split!r}: name a column of "
            "numbers that has values."
        )
    return keras.layers.Normalization(axis=None, mean=one.mean, variance=one.std * one.std)
