"""Shardmill: training-ready GZIP TFRecord datasets from images, CSV rows and arrays.

Names are loaded on first use: ``import shardmill`` loads neither Apache Beam nor TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardmill.schemas.lazy import attach

if TYPE_CHECKING:
    from shardmill.loaders import (
        Records,
        Stream,
        augmentation,
        class_weights,
        feature_spec,
        keras_dataset,
        normalization,
        open_dataset,
        steps_per_epoch,
    )
    from shardmill.schemas.errors import ShardmillError

    __version__: str

__all__ = [
    "Records",
    "ShardmillError",
    "Stream",
    "__version__",
    "augmentation",
    "class_weights",
    "feature_spec",
    "keras_dataset",
    "normalization",
    "open_dataset",
    "steps_per_epoch",
]

_load, __dir__ = attach(
    __name__,
    dict.fromkeys(__all__, "shardmill.loaders") | {"ShardmillError": "shardmill.schemas.errors"},
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # 20 ms, which most imports need not spend

        return version("shardmill")
    return _load(name)
