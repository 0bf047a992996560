"""Storage on local disks and mounted file systems."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat as stat_flags
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from shardmill.schemas.errors import ChangedError, DeniedError, StorageError
from shardmill.schemas.storage.base import (
    Entry,
    RandomReader,
    Storage,
    changed_size,
    describe_failure,
)

_CHUNK = 1 << 20
# A folder of the path became a file or a symbolic link to itself.
_MISSING = frozenset({errno.ENOTDIR, errno.ELOOP})
_SYNCS = 16  # at a time: a journaling file system then commits many files at once
# Errors of file systems that cannot link, or sync a folder.
_UNSUPPORTED = frozenset({errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.EINVAL})
_REMEDY = {
    errno.ENOSPC: "free some space and run again, finished parts are kept",
    errno.EDQUOT: "free some of your quota and run again, finished parts are kept",
    errno.ELOOP: "a link leads to itself: delete it",
    errno.EROFS: "choose an output on a writable file system",
    errno.EACCES: "check the permissions",
    errno.EPERM: "check the permissions",
    errno.ENOTDIR: "a folder of the path is a file; choose another path",
    errno.EEXIST: "a folder of the path is a file; choose another path",
    errno.ENAMETOOLONG: "choose shorter names",
}


def storage_error(action: str, path: str, error: OSError) -> StorageError:
    """Return the StorageError for a failed call on a local path."""
    remedy = _REMEDY.get(error.errno or 0, "run again when the disk answers")
    kind = DeniedError if isinstance(error, PermissionError) else StorageError
    return kind(
        describe_failure(action=action, path=path, error=error.strerror or error, remedy=remedy)
    )


@contextlib.contextmanager
def _translate_errors(action: str, path: str) -> Iterator[None]:
    """Raise an OSError as StorageError, except for a missing file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise storage_error(action, path, error) from error


def _entry(path: str, stat: Callable[[str], os.stat_result]) -> Entry | None:
    """Return the entry at a path, or None if it does not exist."""
    try:
        status = stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise storage_error("look at", path, error) from error
    kind = {stat_flags.S_IFREG: "file", stat_flags.S_IFDIR: "dir"}.get(
        stat_flags.S_IFMT(status.st_mode), "other"
    )
    changed = status.st_mtime_ns
    return Entry(path, status.st_size, str(changed), kind, status.st_ctime_ns, changed)


@contextlib.contextmanager
def _temporary_file(path: str) -> Iterator[BinaryIO]:
    """Open a new temporary file; delete it at the end unless the block renamed it."""
    folder, name = os.path.split(path)
    os.makedirs(folder or ".", exist_ok=True)
    temporary = os.path.join(folder, f".{name[:48]}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb", _CHUNK) as file:
            yield file
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


class LocalStorage(Storage):
    """Files on a local disk; exclusive creation by hard link, publication by rename."""

    def stat(self, path: str) -> Entry | None:
        """Return the file or folder at a path, links followed, or None if it does not exist."""
        return _entry(path, os.stat)

    def read_version(self, path: str) -> tuple[bytes, str]:
        """Return a file's bytes and their version, the modification time in nanoseconds."""
        with _translate_errors("read", path), open(path, "rb", buffering=0) as file:
            return file.readall(), str(os.fstat(file.fileno()).st_mtime_ns)

    def read_unchanged(self, path: str, size: int, version: str) -> bytes:
        """Return a file's bytes if size and modification time are as given."""
        with _translate_errors("read", path), os.fdopen(_open_input(path), "rb", 0) as file:
            data, now = _pread(file.fileno(), size + 1, 0), os.fstat(file.fileno())
        if not len(data) == now.st_size == size or str(now.st_mtime_ns) != version:
            raise changed_size(size=size, actual=now.st_size)
        return data

    @contextlib.contextmanager
    def open_at(self, path: str, size: int = -1, version: str = "") -> Iterator[RandomReader]:
        """Open a regular file for random access; the reader keeps its descriptor."""
        del size, version
        with contextlib.ExitStack() as stack:
            with _translate_errors("read", path):
                file = stack.enter_context(os.fdopen(_open_input(path), "rb", 0))
                reader = LocalReader(path, file.fileno())
            yield reader

    @contextlib.contextmanager
    def open_write(self, path: str) -> Iterator[BinaryIO]:
        """Write a temporary file, and rename it to the path when the block ends."""
        with _translate_errors("write", path), _temporary_file(path) as file:
            yield file
            file.close()
            os.replace(file.name, path)

    def create(self, path: str, data: bytes) -> bool:
        """Link a complete temporary file to the path unless that exists.

        On a file system without hard links the file is created exclusively and then filled.
        """
        # Not durable: fsync could wait for the pending writes of other files, and readers of such
        # files check their content.
        return _create(path, data, durable=False)

    def replace(self, path: str, data: bytes) -> None:
        """Write a temporary file and rename it to the path."""
        with _translate_errors("write", path):
            _replace(path, data)

    def replace_if(self, path: str, data: bytes, version: str) -> bool:
        """Replace one version of a file; the check and the rename are done under a lock."""
        if not version:
            return _create(path, data, durable=True)
        with _translate_errors("write", path), _locked_version(path, version) as unchanged:
            if unchanged:
                _replace(path, data)
                _sync(os.path.dirname(path))
            return unchanged

    def concat(self, sources: Sequence[str], path: str) -> None:
        """Concatenate files into a new one."""
        with self.open_write(path) as target:
            for source in sources:
                with open(source, "rb") as file:
                    shutil.copyfileobj(file, target, _CHUNK)

    def copy(self, source: str, path: str) -> None:
        """Give a file a second path by a hard link; copy it where links are not possible."""
        with _translate_errors("write", path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                os.link(source, path)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
                shutil.copyfile(source, path)

    def sync(self, path: str) -> None:
        """Fsync all files and folders below a folder, itself, and the two folders above it."""
        entries = [entry.path for entry in self.walk(path) if entry.kind != "other"]
        entries += [path, *(os.path.join(path, *up) for up in ([".."], ["..", ".."]))]
        with _translate_errors("write", path), ThreadPoolExecutor(_SYNCS) as pool:
            for _ in pool.map(_sync, entries):
                pass

    def delete(self, path: str, version: str = "") -> None:
        """Delete a file if it exists; given a version, under a lock if it still has it."""
        with _translate_errors("delete", path), contextlib.suppress(FileNotFoundError):
            if not version:
                os.unlink(path)
                return
            with _locked_version(path, version) as unchanged:
                if unchanged:
                    os.unlink(path)

    def delete_tree(self, path: str) -> None:
        """Delete a folder and its content; files that are added at the same time may remain."""
        with _translate_errors("delete", path):
            shutil.rmtree(path, ignore_errors=True)

    def list_dir(self, path: str) -> Iterator[Entry]:
        """Yield the entries of a folder, sorted by name; nothing if it does not exist."""
        paths = (os.path.join(path, name) for name in _names(path))
        entries = (self.stat(child) or _entry(child, os.lstat) for child in paths)
        return (entry for entry in entries if entry is not None)

    def walk(self, path: str) -> Iterator[Entry]:
        """Yield all entries below a folder; links are not followed."""
        folders = [path]
        while folders:
            folder = folders.pop()
            for name in _names(folder):
                entry = _entry(os.path.join(folder, name), os.lstat)
                if entry is not None:
                    yield entry
                    folders += [entry.path] * (entry.kind == "dir")

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[bool]:
        """Lock a path; the operating system releases the lock when the process ends."""
        with _translate_errors("lock", path):
            descriptor = os.open(path, os.O_RDONLY)
        try:
            yield _flock(descriptor)
        finally:
            os.close(descriptor)


def _open_input(path: str) -> int:
    """Open a listed file to read, without blocking on a pipe or device that replaced it.

    Raises:
        OSError: It cannot be opened; ``FileNotFoundError`` also where a folder is missing.
        ChangedError: It is not a file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _MISSING:
            raise FileNotFoundError(error.errno, error.strerror, path) from error
        if error.errno != errno.ENXIO:  # of a socket
            raise
        raise _changed_to_other() from error
    is_file = False
    try:
        is_file = stat_flags.S_ISREG(os.fstat(descriptor).st_mode)
    finally:
        if not is_file:
            os.close(descriptor)
    if not is_file:
        raise _changed_to_other()
    return descriptor


def _changed_to_other() -> ChangedError:
    return ChangedError("it was a file when it was listed and is not one now")


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    """Return bytes at an offset, read again where the system returns fewer, such as 2 GiB."""
    data = os.pread(descriptor, length, offset)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


class LocalReader:
    """A ``RandomReader`` of a local file."""

    chunk = 1 << 20
    gap = 16 << 10

    def __init__(self, path: str, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self._path, self._descriptor = path, descriptor
        self.size, self.version = status.st_size, str(status.st_mtime_ns)

    def read_at(self, offset: int, length: int) -> bytes:
        """Return bytes at an offset."""
        try:
            return _pread(self._descriptor, length, offset)
        except OSError as error:
            raise storage_error("read", self._path, error) from error


def replace_link(path: str, target: str) -> None:
    """Point a symbolic link to a target, unless the path is another kind of file. Atomic.

    Raises:
        OSError: The file system has no symbolic links, or does not accept this one.
    """
    if not os.path.islink(path) and os.path.lexists(path):
        return
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.tmp")  # replaces one left by a killed process
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    if os.path.islink(path) and os.readlink(path) == target:
        return
    os.symlink(target, temporary)
    os.replace(temporary, path)


def _sync(path: str) -> None:
    """Write a file or folder to the disk."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_NONBLOCK)
    try:
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS, where fsync does not reach the disk
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def _names(folder: str) -> list[str]:
    """Return the sorted names in a folder; none if it does not exist."""
    with _translate_errors("list", folder), contextlib.suppress(FileNotFoundError):
        return sorted(os.listdir(folder))
    return []


def _replace(path: str, data: bytes) -> None:
    """Write a temporary file, sync it and rename it to the path."""
    with _temporary_file(path) as file:
        file.write(data)
        file.close()
        _sync(file.name)
        _make_newer(file.name, path)
        os.replace(file.name, path)


def _make_newer(path: str, other: str) -> None:
    """Make a file newer than another one, if that exists.

    Before Linux 6.13 its resolution is a few milliseconds: two versions could have the same time.
    """
    with contextlib.suppress(FileNotFoundError):
        old, new = os.stat(other).st_mtime_ns, os.stat(path).st_mtime_ns
        if new <= old:
            os.utime(path, ns=(old + 1, old + 1))


@contextlib.contextmanager
def _locked_version(path: str, version: str) -> Iterator[bool]:
    """Lock a file and yield whether it still has a version.

    The lock is on the file, not on its folder, which callers may have locked. Replacing renames
    another file to the path, so a process that waited for the lock finds that other file.
    """
    descriptor, unchanged = -1, False
    try:
        with contextlib.suppress(FileNotFoundError):
            with contextlib.suppress(PermissionError):  # it can be replaced, but not locked
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                _flock(descriptor)
            now = os.stat(path)
            same = descriptor < 0 or os.path.samestat(now, os.fstat(descriptor))
            unchanged = same and str(now.st_mtime_ns) == version
        yield unchanged
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _flock(descriptor: int) -> bool:
    """Lock an open file; return False where the file system has no locks."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    return False


def _create(path: str, data: bytes, *, durable: bool) -> bool:
    with _translate_errors("write", path), _temporary_file(path) as file:
        file.write(data)
        file.close()
        if durable:
            _sync(file.name)
        try:
            os.link(file.name, path)
            written = True
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            written = _create_without_links(path, data)
        if durable:
            _sync(path)
            _sync(os.path.dirname(path))
        return written


def _create_without_links(path: str, data: bytes) -> bool:
    try:
        file = open(path, "xb")  # noqa: SIM115 - FileExistsError only of this call
    except FileExistsError:
        return False
    try:
        with file:
            file.write(data)
    except BaseException:
        os.unlink(path)
        raise
    return True
