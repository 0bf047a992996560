"""Data types and formats: records, manifests, schemas, file names and storage.

Importing it loads neither apache_beam nor tensorflow: training jobs import it on machines that
have only one of them, or none. The types that a custom encoder needs are exported here and loaded
on first use.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
