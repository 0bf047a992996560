"""One small interface to local disks, Google Cloud Storage and S3."""

from functools import lru_cache

from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage.base import Entry as Entry
from shardmill.schemas.storage.base import RandomReader as RandomReader
from shardmill.schemas.storage.base import Storage as Storage
from shardmill.schemas.storage.base import absolute as absolute
from shardmill.schemas.storage.base import from_relative as from_relative
from shardmill.schemas.storage.base import is_link as is_link
from shardmill.schemas.storage.base import join as join
from shardmill.schemas.storage.base import scheme_of as scheme_of
from shardmill.schemas.storage.base import to_relative as to_relative


@lru_cache(maxsize=8)
def _storage_of(scheme: str) -> Storage:
    if scheme == "":
        from shardmill.schemas.storage.local import LocalStorage

        return LocalStorage()
    if scheme == "gs":
        from shardmill.schemas.storage.gcs import GcsStorage

        return GcsStorage()
    if scheme == "s3":
        from shardmill.schemas.storage.s3 import S3Storage

        return S3Storage()
    raise UsageError("scheme-unsupported", scheme=scheme)


def open_storage(path: str) -> Storage:
    """Return the storage that a path belongs to.

    Raises:
        UsageError: The scheme is unknown, or the package that it needs is not installed.
    """
    return _storage_of(scheme_of(path))
