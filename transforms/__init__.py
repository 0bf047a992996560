"""Pure functions that process data, and the PTransforms that wire them.

The public PTransforms and their specs are exported here and loaded on first use.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
