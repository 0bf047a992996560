"""Readers of published datasets for training; import only ``shardmill.schemas``, never Apache Beam.

``open_dataset``, ``Stream``, ``steps_per_epoch`` and ``class_weights`` need no TensorFlow; the
other functions import it when they are called. Each name is loaded on first use, so that counting
steps does not import NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardmill.schemas.lazy import attach

if TYPE_CHECKING:
    from shardmill.loaders.augment import augmentation
    from shardmill.loaders.keras_data import keras_dataset
    from shardmill.loaders.normalize import normalization
    from shardmill.loaders.records import Records, open_dataset
    from shardmill.loaders.steps import steps_per_epoch
    from shardmill.loaders.stream import Stream
    from shardmill.loaders.tf_parse import feature_spec
    from shardmill.loaders.weights import class_weights

__all__ = [
    "Records",
    "Stream",
    "augmentation",
    "class_weights",
    "feature_spec",
    "keras_dataset",
    "normalization",
    "open_dataset",
    "steps_per_epoch",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Records": "shardmill.loaders.records",
        "Stream": "shardmill.loaders.stream",
        "augmentation": "shardmill.loaders.augment",
        "class_weights": "shardmill.loaders.weights",
        "feature_spec": "shardmill.loaders.tf_parse",
        "keras_dataset": "shardmill.loaders.keras_data",
        "normalization": "shardmill.loaders.normalize",
        "open_dataset": "shardmill.loaders.records",
        "steps_per_epoch": "shardmill.loaders.steps",
    },
)
