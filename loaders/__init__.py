"""How a trainer reads a dataset. Imports only ``shardmill.schemas``, never Apache Beam.

``open_dataset``, ``Stream``, ``steps_per_epoch`` and ``class_weights`` need no TensorFlow; the
others import it when they are called.
"""

from shardmill.loaders.augment import augmentation
from shardmill.loaders.keras_data import keras_dataset
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
    "open_dataset",
    "steps_per_epoch",
]
