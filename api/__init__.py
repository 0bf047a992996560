"""Shardmill: training-ready GZIP TFRecord datasets from images, CSV rows and arrays.

Names are loaded on first use: ``import shardmill`` loads neither Apache Beam nor TensorFlow.
"""

from typing import Any

from lazy_loader import attach_stub

_load, __dir__, __all__ = attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # 20 ms, which most imports need not spend

        return version("shardmill")
    return _load(name)
