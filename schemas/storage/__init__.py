"""Where bytes lie: one small interface over a local disk, Google Cloud Storage and S3."""

from shardmill.schemas.storage.base import (
    Entry,
    RandomReader,
    Storage,
    Written,
    is_link,
    join,
    open_storage,
    scheme_of,
)

__all__ = [
    "Entry",
    "RandomReader",
    "Storage",
    "Written",
    "is_link",
    "join",
    "open_storage",
    "scheme_of",
]
