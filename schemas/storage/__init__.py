"""One small interface to local disks, Google Cloud Storage and S3."""

from shardmill.schemas.storage.base import (
    Entry,
    RandomReader,
    Storage,
    WritableFile,
    is_link,
    join,
    scheme_of,
)
from shardmill.schemas.storage.registry import open_storage

__all__ = [
    "Entry",
    "RandomReader",
    "Storage",
    "WritableFile",
    "is_link",
    "join",
    "open_storage",
    "scheme_of",
]
