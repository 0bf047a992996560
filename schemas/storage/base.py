"""The storage interface, functions of paths, and functions of many items on threads."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import IO, Any, NamedTuple, NoReturn, Protocol, TypeVar

import google_crc32c

from shardmill.schemas.errors import ChangedError, StorageError, UsageError
from shardmill.schemas.numbers import plural

REMEDY = "run again when the service answers"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
T = TypeVar("T")
S = TypeVar("S")
_STORAGE_CALLS = 16


class Entry(NamedTuple):
    """A file or folder, as returned by a listing or a stat.

    Attributes:
        path: Full path or URI.
        size: Size in bytes.
        version: Text that changes with the content: the modification time in nanoseconds, the
            generation of an object, or another identifier of the storage.
        kind: ``file``, ``dir`` or ``other`` (pipes, sockets, devices).
        ctime: Time of the last change of a local file or of its attributes, in nanoseconds, which
            no program can set; 0 for objects.
        changed_ns: Time of the last change of the content, in nanoseconds since 1970; None if the
            storage does not record it, as for folders of object stores.
    """

    path: str
    size: int
    version: str
    kind: str = "file"
    ctime: int = 0
    changed_ns: int | None = None

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]


class RandomReader(Protocol):
    """A file that is open for random access.

    Attributes:
        size: Size in bytes when the file was opened.
        version: Version of the file, as in ``Entry``.
        chunk: Efficient number of bytes of one read.
        gap: Number of bytes that are read as fast as they are skipped by a second call.
    """

    chunk: int
    gap: int
    size: int
    version: str

    def read_at(self, offset: int, length: int) -> bytes:
        """Return length bytes at an offset; fewer only at the end of the file.

        Raises:
            ChangedError: The file was replaced.
            StorageError: The storage failed.
        """


class Storage(Protocol):
    """The operations that Shardmill needs of a file system.

    Every call raises ``FileNotFoundError`` if a path that must exist does not, ``StorageError`` if
    the storage failed after its retries, and ``DeniedError`` (a ``StorageError`` and a
    ``PermissionError``) if permissions are missing. A failed call never damages an existing file.
    """

    def stat(self, path: str) -> Entry | None:
        """Return the file or folder at path, or None if it does not exist."""

    def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        return self.read_version(path)[0]

    def read_version(self, path: str) -> tuple[bytes, str]:
        """Return a file's bytes and their version, for ``replace_if`` and ``delete``."""

    def read_unchanged(self, path: str, size: int, version: str) -> bytes:
        """Return a file's bytes if it still has the given size and version.

        Raises:
            FileNotFoundError: The path does not exist any more.
            ChangedError: The size or version differs, or the path is not a file any more.
            PermissionError: Reading is not allowed.
        """

    @contextlib.contextmanager
    def open_read(self, path: str) -> Iterator[Iterable[bytes]]:
        """Open one version of a file as a stream of chunks; reading fails if it is replaced."""
        try:
            with self.open_at(path) as file:
                yield (file.read_at(at, file.chunk) for at in range(0, file.size, file.chunk))
        except ChangedError as error:
            raise replaced_error("read", path) from error

    def open_at(
        self, path: str, size: int = -1, version: str = ""
    ) -> AbstractContextManager[RandomReader]:
        """Open a file for random access.

        Given the size and version of a listing, an object store sends no request before the first
        read, which fails if the object has changed. Other storages ignore them.

        Raises:
            ChangedError: The path is not a file.
        """

    def open_write(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """Open a new file. It appears when the block ends, and never if the block raises."""

    def create(self, path: str, data: bytes) -> bool:
        """Write a file unless it exists; return whether this call wrote it. Atomic."""

    def replace(self, path: str, data: bytes) -> None:
        """Write a file, or replace an existing one. Atomic."""

    def replace_if(self, path: str, data: bytes, version: str) -> bool:
        """Replace one version of a file; return whether this call wrote it. Atomic and durable.

        Of several processes that replace the same version, exactly one succeeds.

        Args:
            path: Path of the file.
            data: New content of the file.
            version: Version to replace, as returned by ``read_version`` or ``stat``; empty if the
                file must not exist.
        """

    def concat(self, sources: Sequence[str], path: str) -> None:
        """Concatenate files, at least one, into a new one.

        Args:
            sources: The paths of the files, in order.
            path: Path of the new file.
        """

    def copy(self, source: str, path: str) -> None:
        """Copy a file to a new path; by a hard link or in the service, where possible."""

    def sync(self, path: str) -> None:
        """Write a folder and all its files to the disk, so that they survive a power failure.

        Objects are durable once they are written.
        """

    def delete(self, path: str, version: str = "") -> None:
        """Delete a file if it exists; given a version, only if it still has that version."""

    def delete_tree(self, path: str) -> None:
        """Delete a folder and its content if it exists; object stores delete the listed objects."""

    def list_dir(self, path: str) -> Iterator[Entry]:
        """Yield the entries of a folder, sorted by name; nothing if it does not exist.

        A link to nothing has the kind ``other``.
        """

    def walk(self, path: str) -> Iterator[Entry]:
        """Yield all entries below a folder, recursively; nothing if it does not exist.

        They include folders if the storage has them. Links have the kind ``other`` and are not
        followed.
        """

    def checksum(self, path: str) -> int:
        """Return the CRC-32C of a file's bytes."""
        crc = 0
        with self.open_read(path) as chunks:
            for chunk in chunks:
                crc = google_crc32c.extend(crc, chunk)
        return crc

    def lock(self, path: str) -> AbstractContextManager[bool]:
        """Lock a path against other processes that lock it; the value is whether it is locked.

        Object stores and some network file systems have no locks.
        """


def replaced_error(action: str, path: str) -> StorageError:
    """Return the error for a file that was replaced during a call."""
    return StorageError(f"Cannot {action} {path}: it was replaced at the same time; run again.")


def scheme_of(path: str) -> str:
    """Return the scheme of a URI, or an empty text for a plain path."""
    match = _SCHEME.match(path)
    if match:
        return match.group(1).lower()
    return ""


def one_line(error: object) -> str:
    """Return an error's text as one line without its full stop."""
    return " ".join(str(error).split()).rstrip(".")


def is_link(path: str) -> bool:
    """Return whether a path is a symbolic link; object stores have none."""
    return not scheme_of(path) and os.path.islink(path)


def absolute(path: str) -> str:
    """Return an absolute path; URIs are not changed.

    Raises:
        UsageError: The path is not valid UTF-8, or the current folder was deleted.
    """
    if scheme_of(path):
        if scheme_of(path.rstrip("/")):
            return path.rstrip("/")
        return path
    try:
        path = os.path.abspath(os.path.expanduser(path))
        path.encode()  # paths are part of manifests
    except UnicodeEncodeError:
        escaped = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise UsageError(f"The path {escaped} is not valid UTF-8: rename it.") from None
    except FileNotFoundError:
        raise UsageError(
            f"The path {path!r} is relative, and the current folder was deleted: change to another "
            "folder, or give an absolute path."
        ) from None
    return path


def resolve_links(path: str) -> str:
    """Return a local path without symbolic links; a URI unchanged."""
    if scheme_of(path):
        return path
    return os.path.realpath(path)


def join(base: str, *parts: str) -> str:
    """Return a path below base; base may be a local folder or a URI."""
    return "/".join((base.rstrip("/") or "", *parts))


def to_relative(path: str, root: str) -> str:
    """Return a path below root as ``./NAME``, which moves with it; other paths unchanged.

    The name has its exact characters, also where the key of an input is another Unicode form.
    """
    prefix = root.rstrip("/") + "/"
    if root and path.startswith(prefix):
        return f"./{path[len(prefix) :]}"
    return path


def from_relative(path: str, root: str) -> str:
    """Undo ``to_relative``."""
    if path.startswith("./"):
        return join(root, path[2:])
    return path


class ReaderStream(io.RawIOBase):
    """The raw stream of a file, for libraries that read streams.

    Args:
        reader: The open file.
    """

    def __init__(self, reader: RandomReader) -> None:
        self._reader, self._at = reader, 0

    def readable(self) -> bool:
        """Return whether the stream can be read."""
        return True

    def seekable(self) -> bool:
        """Return whether the position can be changed."""
        return True

    def seek(self, offset: int, origin: int = io.SEEK_SET, /) -> int:
        """Change the position and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._reader.size}[origin]
        if base + offset < 0:
            raise ValueError(f"offset {base + offset} is before the start of the file")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return the number of bytes."""
        view = memoryview(buffer)
        data = self._reader.read_at(self._at, len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def _check_process(process: int) -> None:
    if os.getpid() != process:
        raise UsageError(
            "this iteration began in another process, whose threads do not exist here: begin a new "
            "one."
        )


def map_ordered(
    function: Callable[[T], S],
    items: Iterable[T],
    threads: int,
    *,
    window: int = 0,
    size_of: Callable[[T], int] = lambda _: 0,
    max_size: float = 0,
    wait: bool = True,
) -> Generator[S, None, None]:
    """Yield the result of a function for each item, in the order of the items.

    Args:
        function: Called on threads; its error is raised in place of the result.
        items: Its arguments; their error is raised after the results of those before it.
        threads: Number of threads; 0 to call in the caller's thread.
        window: Largest number of results that wait; 0 for twice the threads.
        size_of: Size of an item.
        max_size: Largest total size of items in calls that wait; one may exceed it alone. 0 for no
            limit.
        wait: Whether closing waits for running calls, which may use a file that the caller closes
            next.

    Raises:
        UsageError: It goes on in a fork of the process, which has no threads.
    """
    if not threads:
        yield from map(function, items)
        return

    def sized() -> Iterator[tuple[int, Callable[[], Any]]]:
        try:
            for item in items:
                yield size_of(item), partial(function, item)
        except Exception as error:  # noqa: BLE001 - raised in its turn
            yield 0, partial(_raise, error)

    calls: deque[tuple[int, Future[S]]] = deque()
    total = 0
    process = os.getpid()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ordered")
    try:
        for size, call in sized():
            while calls and (len(calls) >= (window or 2 * threads) or 0 < max_size < total + size):
                taken, first = calls.popleft()
                total -= taken
                yield first.result()
                _check_process(process)
            calls.append((size, pool.submit(call)))
            total += size
        while calls:
            yield calls.popleft()[1].result()
            _check_process(process)
    finally:
        if os.getpid() == process:
            pool.shutdown(wait=wait, cancel_futures=True)


def _raise(error: Exception) -> NoReturn:
    raise error


def storage_threads(path: str) -> int:
    """Return how many calls of a path's storage wait for the network at a time; 0 for one.

    On gs:// and s3:// one call after the other takes an hour for ten thousand shards.
    """
    if scheme_of(path):
        return _STORAGE_CALLS
    return 0


def changed_size(size: int, actual: object) -> ChangedError:
    """Return the error for a file that has another size than when it was listed."""
    return ChangedError(f"it had {plural(size, 'byte')} when it was listed and has {actual} now")


def became_shorter() -> ChangedError:
    """Return the error for a file that became shorter while it was read."""
    return ChangedError("the file became shorter while it was read")


def describe_failure(action: object, path: object, error: object, remedy: object) -> str:
    """Return the sentence for a storage call that failed."""
    return f"Cannot {action} {path}: {error}; {remedy}."


def describe_denial(action: object, uri: object, why: object) -> str:
    """Return the sentence for a storage call that the permissions do not allow."""
    return f"Cannot {action} {uri}: {why}; check the credentials and ask for that permission."
