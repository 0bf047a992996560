"""Class weights from the label counts in the manifest."""

from __future__ import annotations

import os

from shardmill.loaders.steps import get_split
from shardmill.schemas.dataset.manifest import Manifest
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
        split: Name of one split.

    Raises:
        InputError: The manifest does not exist, or this release cannot read it.
        UsageError: The split is unknown, has no label counts, or a label has no class id.
    """
    manifest, selected = get_split(manifest, split)
    weights = selected.class_weights
    if not weights:
        raise UsageError(f"the split {split!r} has no label counts, which class weights need.")
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
        raise UsageError(
            f"the label {label!r} has no class id: it is not listed in the manifest or an integer."
        ) from error
