"""How a trainer reads a dataset. Imports only ``shardmill.schemas``, never Apache Beam.

``open_dataset``, ``Stream``, ``steps_per_epoch`` and ``class_weights`` need no TensorFlow; the
others import it when they are called. Each name is loaded when it is first asked for, so that
counting steps does not wait for NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardmill.loaders.augment import augmentation
    from shardmill.loaders.keras_data import keras_dataset
    from shardmill.loaders.normalize import normalization
    from shardmill.loaders.records import Records, open_dataset
    from shardmill.loaders.steps import steps_per_epoch
    from shardmill.loaders.stream import Stream
    from shardmill.loaders.tf_parse import feature_spec
    from shardmill.loaders.weights import class_weights

_HOMES = {
    "Records": "records",
    "Stream": "stream",
    "augmentation": "augment",
    "class_weights": "weights",
    "feature_spec": "tf_parse",
    "keras_dataset": "keras_data",
    "normalization": "normalize",
    "open_dataset": "records",
    "steps_per_epoch": "steps",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
