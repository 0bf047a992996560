"""One small interface to local disks, Google Cloud Storage and S3."""

from functools import lru_cache
from importlib import import_module

from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage.base import Entry as Entry
from shardmill.schemas.storage.base import RandomReader as RandomReader
from shardmill.schemas.storage.base import ReaderStream as ReaderStream
from shardmill.schemas.storage.base import Storage as Storage
from shardmill.schemas.storage.base import absolute as absolute
from shardmill.schemas.storage.base import from_relative as from_relative
from shardmill.schemas.storage.base import is_link as is_link
from shardmill.schemas.storage.base import join as join
from shardmill.schemas.storage.base import map_ordered as map_ordered
from shardmill.schemas.storage.base import resolve_links as resolve_links
from shardmill.schemas.storage.base import scheme_of as scheme_of
from shardmill.schemas.storage.base import storage_threads as storage_threads
from shardmill.schemas.storage.base import to_relative as to_relative

# Class of each scheme; a module is imported when its storage is used.
_CLASSES = {"": ("local", "LocalStorage"), "gs": ("gcs", "GcsStorage"), "s3": ("s3", "S3Storage")}


@lru_cache(maxsize=8)
def _storage_of(scheme: str) -> Storage:
    if scheme not in _CLASSES:
        raise UsageError(
            f"{scheme}:// is not supported: use a local path, gs://BUCKET/PATH or s3://BUCKET/PATH."
        )
    module, name = _CLASSES[scheme]
    storage: Storage = getattr(import_module(f"{__name__}.{module}"), name)()
    return storage


def open_storage(path: str) -> Storage:
    """Return the storage that a path belongs to.

    Raises:
        UsageError: The scheme is unknown, or the package that it needs is not installed.
    """
    return _storage_of(scheme_of(path))
