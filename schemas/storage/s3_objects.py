"""Amazon S3: keys, entries, conditions and parts of uploads, without any call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage.base import Entry
from shardmill.schemas.storage.objects import split_uri

_PART = 16 << 20  # bytes of one part of an upload; an upload has at most 10,000 parts


def split_object(uri: str, *, exists: bool = False) -> tuple[str, str]:
    """Return the bucket and key of the URI of an object.

    Args:
        uri: The URI.
        exists: Whether the object is read, and not written.

    Raises:
        FileNotFoundError: The URI names a bucket or a folder, and ``exists``.
        UsageError: It does, and cannot be written to.
    """
    bucket, key = split_uri(uri)
    if key and not key.endswith("/"):
        return bucket, key
    if exists:
        raise FileNotFoundError(uri)
    raise UsageError(f"{uri} names no file: write s3://BUCKET/PATH.")


def upload_parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts of an upload: all but the last of one size, and at least one."""
    buffer = bytearray()
    sent = False
    for chunk in chunks:
        buffer += chunk
        while len(buffer) > _PART:
            yield bytes(buffer[:_PART])
            del buffer[:_PART]
            sent = True
    if buffer or not sent:
        yield bytes(buffer)


def entry_of(uri: str, item: dict[str, Any]) -> Entry:
    """Return the entry of an object as a listing, a HEAD or a GET reports it."""
    size = item["Size"] if "Size" in item else item["ContentLength"]
    # A listing reports milliseconds, the other calls only seconds.
    seconds = int(item["LastModified"].timestamp())
    return Entry(uri, size, f"{item['ETag'].strip(chr(34))}@{seconds * 1000}")


def listed(bucket: str, page: dict[str, Any]) -> list[Entry]:
    """Return the entries of the objects in one answer of a listing."""
    return [entry_of(f"s3://{bucket}/{item['Key']}", item) for item in page.get("Contents", [])]


def if_match(version: str) -> dict[str, str]:
    """Return the condition that an object still has a version; none for no version."""
    return {"IfMatch": f'"{version.rpartition("@")[0]}"'} if version else {}
