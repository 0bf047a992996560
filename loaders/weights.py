"""Class weights from the label counts of splits."""

from __future__ import annotations

import os

from shardmill.loaders.split_statistics import count_labels
from shardmill.schemas.dataset.manifest import Manifest, Split
from shardmill.schemas.errors import UsageError


def class_weights(
    manifest: Manifest | str | os.PathLike[str], split: str = "train"
) -> dict[int, float]:
    """Returns balanced weights by class id for ``model.fit(class_weight=...)``.

    The weight of a class is ``n / (k * n_c)``, with n labelled examples in the split, k classes in
    it and n_c examples of the class. Each class then contributes equally to the loss, and the mean
    weight over all examples is 1. Classes without examples are left out.

    Args:
        manifest: The dataset's manifest, its folder or the path of its manifest.json.
        split: A split, or several as in ``train+validation``, or slices as in ``train[:80%]``,
            whose labels are read from the catalog of images or from the records.

    Raises:
        InputError: The dataset cannot be read.
        UsageError: The split is unknown or has no label counts, a label has no class id, or a slice
            is of a manifest without a path.
    """
    manifest, counts = count_labels(manifest, split)
    weights = Split(0, 0, counts, ()).class_weights
    if not weights:
        raise UsageError("class-weights-without-counts", split=split)
    return {_class_id(manifest, label): weight for label, weight in weights.items()}


def _class_id(manifest: Manifest, label: str) -> int:
    """Returns the class id of a label: its position in labels.txt, or its integer value.

    Raises:
        UsageError: It has neither.
    """
    if label in manifest.labels:
        return manifest.labels.index(label)
    try:
        return int(label)
    except ValueError as error:
        raise UsageError("class-weight-without-id", label=label) from error
