"""Readers of published datasets for training; import only ``shardmill.schemas``, never Apache Beam.

``open_dataset``, ``Stream``, ``steps_per_epoch`` and ``class_weights`` need no TensorFlow; the
other functions import it when they are called. Each name is loaded on first use, so that counting
steps does not import NumPy.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
