"""Components: the datasets of a mix, whose parts are numbered together."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.loaders.epochs import MixedEpochs
from shardmill.schemas.errors import FormatError, UsageError
from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.example.serialize import encode_example


@dataclass(frozen=True)
class Components:
    """The datasets of a mix.

    Attributes:
        epochs: Their examples, by epoch of the mix.
        folders: The folder of each.
        class_ids: Of each, the class ids of the mix by its own; empty if they are the same.
        id_features: Names of the features with class ids.
        num_classes: Number of classes where they have no list of labels; 0 if it is not known.
    """

    epochs: MixedEpochs
    folders: tuple[str, ...]
    class_ids: tuple[tuple[int, ...], ...]
    id_features: tuple[str, ...] = ()
    num_classes: int = 0

    @cached_property
    def _ends(self) -> list[int]:
        """Number of parts after each dataset."""
        return list(accumulate(len(own.epochs.parts) for own in self.epochs.components))

    def number_of(self, part: int) -> int:
        """Returns the number of the dataset of a part."""
        return bisect_right(self._ends, part)

    def folder_of(self, part: int) -> str:
        """Returns the folder of the shard of a part."""
        return self.folders[self.number_of(part)]

    def keep(self, kept: npt.NDArray[np.bool_]) -> Components:
        """Returns the same datasets with some of their examples.

        Args:
            kept: Whether an example is kept, by its number in the joined selections.

        Raises:
            UsageError: None of a dataset is.
        """
        components = []
        bounds = pairwise(self.epochs.firsts)
        for component, (low, high) in zip(self.epochs.components, bounds, strict=True):
            epochs = component.epochs.keep(kept[low:high])
            if not len(epochs):
                raise UsageError(
                    f"where keeps none of the examples of {component.name!r}: leave this dataset "
                    "out of the mix, or check the columns and values that where names."
                )
            components.append(component._replace(epochs=epochs))
        return replace(self, epochs=replace(self.epochs, components=tuple(components)))

    def adapt(self, part: int, payload: bytes) -> bytes:
        """Returns a record with the class ids of the mix.

        Raises:
            FormatError: It is not an example, or has an unknown class id.
        """
        class_ids = self.class_ids[self.number_of(part)]
        if not class_ids:
            return payload
        features: dict[str, Any] = {
            name: feature.values for name, feature in parse_example(payload).items()
        }
        for name in self.id_features:
            if name in features:
                features[name] = [_convert(name, value, class_ids) for value in features[name]]
        return encode_example(features)


def _convert(name: str, class_id: int, class_ids: tuple[int, ...]) -> int:
    if not 0 <= class_id < len(class_ids):
        raise FormatError(f"the feature {name!r} has the unknown class id {class_id}")
    return class_ids[class_id]
