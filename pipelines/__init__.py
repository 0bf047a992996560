"""The pipelines that the commands run: a frozen config per pipeline, and a function to wire it.

``build_images(root, config)`` and its siblings wire a pipeline into your own. Names are loaded on
first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardmill.schemas.lazy import attach

if TYPE_CHECKING:
    from shardmill.pipelines.arrays import build as build_arrays
    from shardmill.pipelines.arrays_config import ArraysConfig
    from shardmill.pipelines.count import CountConfig
    from shardmill.pipelines.count import build as build_count
    from shardmill.pipelines.images import build as build_images
    from shardmill.pipelines.images_config import ImagesConfig
    from shardmill.pipelines.rows import build as build_rows
    from shardmill.pipelines.rows_config import RowsConfig

__all__ = [
    "ArraysConfig",
    "CountConfig",
    "ImagesConfig",
    "RowsConfig",
    "build_arrays",
    "build_count",
    "build_images",
    "build_rows",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "ArraysConfig": "shardmill.pipelines.arrays_config",
        "CountConfig": "shardmill.pipelines.count",
        "ImagesConfig": "shardmill.pipelines.images_config",
        "RowsConfig": "shardmill.pipelines.rows_config",
        "build_arrays": "shardmill.pipelines.arrays:build",
        "build_count": "shardmill.pipelines.count:build",
        "build_images": "shardmill.pipelines.images:build",
        "build_rows": "shardmill.pipelines.rows:build",
    },
)
