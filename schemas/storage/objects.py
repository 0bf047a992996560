"""The common part of the storages for object stores: clients, and folders as prefixes."""

from __future__ import annotations

import contextlib
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shardmill.schemas.errors import StorageError, UsageError
from shardmill.schemas.storage.base import Entry, RandomReader, Storage

CHUNK = 1 << 20
SPOOL = 64 << 20  # bytes of a new object in memory; a temporary file holds a larger one
WRITER = "shardmill-writer"  # metadata key that identifies the call that wrote an object
_DELETERS = 16


def split_uri(uri: str) -> tuple[str, str]:
    """Return the bucket and the object name of a URI.

    Raises:
        UsageError: The URI has no valid bucket name.
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, name = rest.partition("/")
    if not bucket:
        raise UsageError(f"{uri} names no bucket: write {scheme.lower()}://BUCKET/PATH.")
    if scheme.lower() == "gs" and not (bucket[0].isalnum() and bucket[-1].isalnum()):
        raise invalid_bucket(uri=uri, bucket=bucket, scheme="gs")
    return bucket, name


def missing_package(scheme: object, package: object, extra: object) -> UsageError:
    """Return the error for a storage whose package is not installed."""
    return UsageError(f"{scheme}:// needs {package}: pip install 'shardmill[{extra}]'.")


def invalid_bucket(uri: object, bucket: object, scheme: object) -> UsageError:
    """Return the error for an invalid name of a bucket."""
    return UsageError(
        f"{uri}: {bucket!r} is not a valid bucket name; write {scheme}://BUCKET/PATH."
    )


def folder_prefix(name: str) -> str:
    """Return the common prefix of the names of all objects in a folder."""
    if name.endswith("/") or not name:
        return name
    return name + "/"


def missing_bucket_error(action: str, uri: str) -> StorageError:
    """Return the error for a bucket that does not exist."""
    return StorageError(
        f"Cannot {action} {uri}: the bucket {split_uri(uri)[0]!r} does not exist; create it or "
        "correct its name."
    )


class ObjectStorage(Storage):
    """A storage of objects in buckets, which has no folders and no locks.

    Args:
        make_client: Function that returns a client that threads may share.
    """

    def __init__(self, make_client: Callable[[], Any]) -> None:
        self._make_client = make_client
        self._forget_client()
        # A forked child must use neither its parent's connections nor a lock that a thread of the
        # parent held.
        os.register_at_fork(after_in_child=self._forget_client)

    def _forget_client(self) -> None:
        self._lock = threading.Lock()
        self._shared: Any = None

    def _client(self) -> Any:
        """Return the client of this process, which is made once."""
        client = self._shared
        if client is None:
            with self._lock:
                client = self._shared = self._shared or self._make_client()
        return client

    @abstractmethod
    def _list(
        self, action: str, path: str, *, flat: bool = True, limit: int | None = None
    ) -> Iterator[Entry]:
        """Yield every object in a folder, sorted by name.

        The names of folder markers, which other programs create, end with a slash.

        Args:
            action: Verb for messages.
            path: The folder.
            flat: Whether to yield objects of subfolders too, instead of subfolders.
            limit: Number of entries that are needed.
        """

    @abstractmethod
    def _read_range(self, entry: Entry, start: int, stop: int) -> bytes:
        """Return the bytes of one version of an object from start to stop, which is greater."""

    def _file(self, path: str) -> Entry:
        """Return the entry of an object.

        Raises:
            FileNotFoundError: It does not exist.
        """
        entry = self.stat(path)
        if entry is None or entry.kind != "file":
            raise FileNotFoundError(path)
        return entry

    @contextlib.contextmanager
    def open_at(self, path: str, size: int = -1, version: str = "") -> Iterator[RandomReader]:
        """Open an object for random access; all reads are of one version."""
        entry = Entry(path, size, version) if size >= 0 and version else self._file(path)
        yield ObjectReader(entry, self._read_range)

    def create(self, path: str, data: bytes) -> bool:
        """Upload an object unless it exists. Uploads are atomic: no temporary object is needed."""
        return self.replace_if(path, data, "")

    def sync(self, path: str) -> None:
        """Do nothing: a finished upload is durable."""

    def delete_tree(self, path: str) -> None:
        """Delete the objects below a folder; objects written after the listing remain."""
        if split_uri(path)[1].rstrip("/"):
            self._delete_all(list(self._list("delete", path)))

    def _delete_all(self, entries: Sequence[Entry]) -> None:
        """Delete objects concurrently, each with a separate call."""
        with ThreadPoolExecutor(_DELETERS) as pool:
            for _ in pool.map(lambda entry: self.delete(entry.path, entry.version), entries):
                pass

    def list_dir(self, path: str) -> Iterator[Entry]:
        """Yield the objects and prefixes directly below a folder, sorted by name.

        The name of a folder is empty if the names of its objects have two slashes in a row.
        """
        entries = self._list("list", path, flat=False)
        yield from sorted(e for e in entries if e.kind == "dir" or not e.path.endswith("/"))

    def walk(self, path: str) -> Iterator[Entry]:
        """Return the objects below a folder, sorted by name, from one listing."""
        return (entry for entry in self._list("list", path) if not entry.path.endswith("/"))

    def lock(self, path: str) -> contextlib.AbstractContextManager[bool]:
        """Return False: object stores have no locks."""
        del path
        return contextlib.nullcontext(enter_result=False)


class ObjectReader:
    """A ``RandomReader`` of one version of an object."""

    chunk = 16 << 20
    gap = 4 << 20

    def __init__(self, entry: Entry, read_range: Callable[[Entry, int, int], bytes]) -> None:
        self._entry, self._read_range = entry, read_range
        self.size, self.version = entry.size, entry.version

    def read_at(self, offset: int, length: int) -> bytes:
        """Return bytes at an offset by one request; fewer at the end of the object."""
        stop = min(offset + length, self.size)
        if offset >= stop:
            return b""
        return self._read_range(self._entry, offset, stop)
