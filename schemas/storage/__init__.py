"""Where bytes lie: one small interface over a local disk, object stores and HDFS."""

from shardmill.schemas.storage.base import (
    OPTIONS_VARIABLE,
    Entry,
    RandomReader,
    Storage,
    Written,
    is_link,
    join,
    lists_all,
    open_storage,
    scheme_of,
)

__all__ = [
    "OPTIONS_VARIABLE",
    "Entry",
    "RandomReader",
    "Storage",
    "Written",
    "is_link",
    "join",
    "lists_all",
    "open_storage",
    "scheme_of",
]
