"""The pipelines that the commands run: a config per pipeline, and a function to wire it.

``build_images(root, config)`` and its siblings wire a pipeline into your own. Names are loaded on
first use.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
