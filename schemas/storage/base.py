"""The storage interface, and how a path finds its implementation."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import NamedTuple, Protocol

from shardmill.schemas.errors import UsageError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CHANGED_MS = re.compile(r"@(\d+)\Z")  # at the end of the versions of s3://
_NS_PER_US = 1000
_NS_PER_MS = 1_000_000
_OLDEST_GENERATION = 1_104_537_600_000_000  # 2005: no such service was there before


class Entry(NamedTuple):
    """A file as a listing or a stat shows it.

    Attributes:
        path: Full path or URI.
        size: Bytes.
        version: Modification time in nanoseconds, the object's generation, or what else the
            medium tells a file's contents apart by, as text.
        kind: ``file``, ``dir`` or ``other`` (pipes, sockets, devices).
    """

    path: str
    size: int
    version: str
    kind: str = "file"

    @property
    def changed_ns(self) -> int | None:
        """When it last changed, in nanoseconds since 1970; None where the version does not tell.

        The generations of Google's service are the microseconds since 1970. That is no promise of
        theirs, so a number that cannot be a time is none.
        """
        told = _CHANGED_MS.search(self.version)
        if told is not None:
            return int(told.group(1)) * _NS_PER_MS
        if not self.version.isdecimal():
            return None
        version = int(self.version)
        if not scheme_of(self.path):
            return version
        return version * _NS_PER_US if version >= _OLDEST_GENERATION else None


class Written(Protocol):
    """A new file that is being written."""

    def write(self, data: bytes, /) -> int:
        """Writes data at the current position and returns its length."""
        ...

    def seek(self, position: int, /) -> int:
        """Moves to a position from the start, to fill in what was left open."""
        ...


class RandomReader(Protocol):
    """A file that is read at any place.

    Attributes:
        size: Bytes of the file when it was opened.
        version: As in ``Entry``.
        chunk: Bytes that are well read at a time.
        gap: Bytes that are read as quickly as they are skipped by another call.
    """

    chunk: int
    gap: int
    size: int
    version: str

    def read_at(self, offset: int, length: int) -> bytes:
        """Returns length bytes at an offset; fewer only where the file ends.

        Raises:
            ChangedError: The file was replaced.
            StorageError: The medium failed.
        """
        ...


class Storage(Protocol):
    """What Shardmill needs of a file system.

    Every call raises ``FileNotFoundError`` where the path must exist and does not, ``StorageError``
    when the medium failed after its own retries, ``DeniedError`` (which is one, and a
    ``PermissionError``) when it refused, and leaves existing files whole on any failure.
    """

    def stat(self, path: str) -> Entry | None:
        """Returns the file or folder at path, or None when there is none."""
        ...

    def read(self, path: str) -> bytes:
        """Returns a file's bytes."""
        ...

    def read_version(self, path: str) -> tuple[bytes, str]:
        """Returns a file's bytes and their version, for ``replace_if`` and ``delete``."""
        ...

    def read_unchanged(self, path: str, size: int, version: str) -> bytes:
        """Returns a file's bytes if it still has a size and version.

        Raises:
            FileNotFoundError: Nothing is there any more.
            ChangedError: It has not, or is no file any more.
            PermissionError: Reading is not allowed.
        """
        ...

    def open_read(self, path: str) -> AbstractContextManager[Iterable[bytes]]:
        """Opens a file as a stream of chunks."""
        ...

    def open_at(self, path: str) -> AbstractContextManager[RandomReader]:
        """Opens a file to be read at any place.

        Raises:
            ChangedError: It is no file.
        """
        ...

    def open_write(self, path: str) -> AbstractContextManager[Written]:
        """Opens a new file; it appears complete when the block ends and not at all if it raises."""
        ...

    def create(self, path: str, data: bytes, aside: str = "") -> bool:
        """Writes a file unless it exists; returns whether this call wrote it. Atomic.

        Args:
            path: The file.
            data: Its content.
            aside: Folder on the same medium for what is not complete yet, where the medium needs
                one; by default the file's own folder.
        """
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Writes a file over whatever was there. Atomic."""
        ...

    def replace_if(self, path: str, data: bytes, version: str) -> bool:
        """Writes a file over one version of it; returns whether this call wrote it. Atomic.

        Of several processes that replace the same version, exactly one succeeds. ``create`` is the
        counterpart for a file that does not exist.

        Args:
            path: The file.
            data: Its new content.
            version: What is to be replaced, as ``read_version`` or ``stat`` returned it.
        """
        ...

    def concat(self, sources: list[str], tail: list[tuple[int, bytes]], path: str) -> None:
        """Joins files into a new one.

        Args:
            sources: Files in order.
            tail: Bytes to put in: (after how many sources, the bytes).
            path: The new file.
        """
        ...

    def move(self, source: str, path: str) -> None:
        """Renames a file over whatever stands at path; nothing happens if it already moved."""
        ...

    def delete(self, path: str, version: str = "") -> None:
        """Deletes a file if it exists; given a version, only if it still has that version."""
        ...

    def delete_tree(self, path: str, still: Callable[[], bool] | None = None) -> None:
        """Deletes a folder and all below it if it exists.

        Args:
            path: The folder.
            still: Is called after the folder has been listed; if it returns False, nothing is
                deleted. On object stores only the listed versions are deleted.
        """
        ...

    def list_dir(self, path: str) -> Iterator[Entry]:
        """Yields what stands directly in a folder, sorted by name; nothing if it is missing."""
        ...

    def walk(self, path: str) -> Iterator[Entry]:
        """Yields all that lies below a folder; nothing if it is missing.

        Folders stand in it where the medium has them; links are of kind ``other`` and not followed.
        """
        ...

    def checksum(self, path: str) -> int:
        """Returns the CRC-32C of a file's bytes."""
        ...

    def lock(self, path: str) -> AbstractContextManager[None]:
        """Holds back other processes that lock the same path, where the medium can.

        A local disk can; object stores cannot and rely on the preconditions of each call.
        """
        ...


def scheme_of(path: str) -> str:
    """Returns the scheme of a URI, or an empty text for a plain path."""
    match = _SCHEME.match(path)
    return match.group(1).lower() if match else ""


def is_link(path: str) -> bool:
    """Tells whether a path is a symbolic link; object stores have none."""
    return not scheme_of(path) and os.path.islink(path)


def join(base: str, *parts: str) -> str:
    """Returns a path below base; base may be a local folder or a URI."""
    return "/".join((base.rstrip("/") or "", *parts))


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
    raise UsageError(
        f"{scheme}:// is not supported: use a local path, gs://BUCKET/PATH or s3://BUCKET/PATH."
    )


def open_storage(path: str) -> Storage:
    """Returns the storage that a path belongs to.

    Raises:
        UsageError: The scheme is unknown, or the package that it needs is not installed.
    """
    return _storage_of(scheme_of(path))
