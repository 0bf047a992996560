"""Weights of classes, from the counts in the manifest."""

from __future__ import annotations

import os

from shardmill.loaders.steps import split_of
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import UsageError


def class_weights(
    manifest: Manifest | str | os.PathLike[str], split: str = "train"
) -> dict[int, float]:
    """Returns balanced weights by class id, as ``model.fit(class_weight=...)`` takes them.

    A class weighs ``n / (k * n_c)``: n labelled examples of the split, k classes that it has, n_c
    examples of the class. So each class counts as much as any other, and the mean over all
    examples is 1. Classes without examples have no weight.

    Args:
        manifest: The dataset's manifest, or where it is.
        split: Name of one split.

    Raises:
        InputError: There is no manifest that this release can read.
        UsageError: The split is unknown, or its labels are no class ids and were not listed.
    """
    manifest, found = split_of(manifest, split)
    weights = found.class_weights
    if not weights:
        raise UsageError(f"the split {split!r} has no counts by label, so nothing can be weighed.")
    return {class_id(manifest, label): weight for label, weight in weights.items()}


def class_id(manifest: Manifest, label: str) -> int:
    """Returns the class id of a label: its line in labels.txt, or the integer that it is.

    Raises:
        UsageError: It is neither.
    """
    if label in manifest.labels:
        return manifest.labels.index(label)
    try:
        return int(label)
    except ValueError as error:
        raise UsageError(
            f"the label {label!r} is not listed in the manifest and no integer."
        ) from error
