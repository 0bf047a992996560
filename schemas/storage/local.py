"""A local disk, or anything mounted like one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat as stat_flags
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import google_crc32c

from shardmill.schemas.errors import ChangedError, DeniedError, StorageError
from shardmill.schemas.storage.base import Entry, RandomReader

_CHUNK = 1 << 20
_REMEDY = {
    errno.ENOSPC: "free some space and run again, finished parts are kept",
    errno.EDQUOT: "free some of your quota and run again, finished parts are kept",
    errno.EROFS: "choose an output on a writable file system",
    errno.EACCES: "check the permissions",
    errno.EPERM: "check the permissions",
    errno.ENOTDIR: "a file stands where a folder is needed; choose another path",
    errno.ENAMETOOLONG: "choose shorter names",
}
# A folder on the way became a file, or a link that leads to itself.
_NOT_THERE = frozenset({errno.ENOTDIR, errno.ELOOP})


def storage_error(action: str, path: str, error: OSError) -> StorageError:
    """Returns the plain sentence for a failed call on a local path."""
    remedy = _REMEDY.get(error.errno or 0, "run again when the disk answers")
    kind = DeniedError if isinstance(error, PermissionError) else StorageError
    return kind(f"Cannot {action} {path}: {error.strerror or error}; {remedy}.")


@contextlib.contextmanager
def _plainly(action: str, path: str) -> Iterator[None]:
    """Turns an OSError into a StorageError, but for a missing file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise storage_error(action, path, error) from error


def _entry(path: str, status: os.stat_result) -> Entry:
    if stat_flags.S_ISREG(status.st_mode):
        kind = "file"
    else:
        kind = "dir" if stat_flags.S_ISDIR(status.st_mode) else "other"
    return Entry(path, status.st_size, str(status.st_mtime_ns), kind)


def _temporary(path: str, aside: str = "") -> str:
    folder, name = os.path.split(path)
    folder = aside or folder
    os.makedirs(folder or ".", exist_ok=True)
    return os.path.join(folder, f".{name[:64]}.{uuid.uuid4().hex}.tmp")


class LocalStorage:
    """Files on a local disk; exclusive creation by hard link, publication by rename."""

    def stat(self, path: str) -> Entry | None:
        """See ``Storage.stat``."""
        with _plainly("look at", path):
            try:
                return _entry(path, os.stat(path))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read(self, path: str) -> bytes:
        """See ``Storage.read``."""
        return self.read_version(path)[0]

    def read_version(self, path: str) -> tuple[bytes, str]:
        """See ``Storage.read_version``; the modification time is the version."""
        with _plainly("read", path), open(path, "rb", buffering=0) as file:
            return file.readall(), str(os.fstat(file.fileno()).st_mtime_ns)

    def read_unchanged(self, path: str, size: int, version: str) -> bytes:
        """See ``Storage.read_unchanged``; the modification time is the version."""
        with _plainly("read", path), open(path, "rb", buffering=0, opener=_open_input) as file:
            data = file.read(size + 1)
            while len(data) <= size and (more := file.read(size + 1 - len(data))):
                data += more
            now = os.fstat(file.fileno())
        if len(data) != size or str(now.st_mtime_ns) != version:
            raise ChangedError(f"it had {size} bytes when it was listed and has {now.st_size} now")
        return data

    @contextlib.contextmanager
    def open_read(self, path: str) -> Iterator[Iterable[bytes]]:
        """See ``Storage.open_read``."""
        with _plainly("read", path), open(path, "rb", buffering=0) as file:
            yield iter(lambda: file.read(_CHUNK), b"")

    @contextlib.contextmanager
    def open_at(self, path: str) -> Iterator[RandomReader]:
        """See ``Storage.open_at``."""
        with _plainly("read", path):
            descriptor = _open_input(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield LocalReader(path, descriptor)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def open_write(self, path: str) -> Iterator[BinaryIO]:
        """See ``Storage.open_write``."""
        with _plainly("write", path):
            temporary = _temporary(path)
            try:
                with open(temporary, "xb") as file:
                    yield file
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise

    def create(self, path: str, data: bytes, aside: str = "") -> bool:
        """See ``Storage.create``.

        The content is written aside and linked into place, so nobody sees half of it. On a file
        system without hard links the file is created exclusively and then filled.
        """
        with _plainly("write", path):
            temporary = _temporary(path, aside)
            try:
                # Not synced: that would wait for all that other files have pending, and readers
                # of what is created so check it.
                with open(temporary, "xb") as file:
                    file.write(data)
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    return False
                except OSError as error:
                    if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                        raise
                    return _create_without_links(path, data)
                return True
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)

    def replace(self, path: str, data: bytes) -> None:
        """See ``Storage.replace``."""
        with _plainly("write", path):
            _replace(path, data)

    def replace_if(self, path: str, data: bytes, version: str) -> bool:
        """See ``Storage.replace_if``; the check and the rename are done under a lock."""
        with _plainly("write", path), _locked_version(path, version) as unchanged:
            if unchanged:
                _replace(path, data)
            return unchanged

    def concat(self, sources: list[str], tail: list[tuple[int, bytes]], path: str) -> None:
        """See ``Storage.concat``."""
        pending = list(tail)
        with self.open_write(path) as target:
            for number, source in enumerate(sources):
                while pending and pending[0][0] == number:
                    target.write(pending.pop(0)[1])
                with open(source, "rb") as file:
                    shutil.copyfileobj(file, target, _CHUNK)
            for _, data in pending:
                target.write(data)

    def move(self, source: str, path: str) -> None:
        """See ``Storage.move``."""
        with _plainly("write", path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                os.replace(source, path)
            except FileNotFoundError:
                if not os.path.exists(path):
                    raise

    def delete(self, path: str, version: str = "") -> None:
        """See ``Storage.delete``."""
        with _plainly("delete", path), contextlib.suppress(FileNotFoundError):
            if not version:
                os.unlink(path)
                return
            with _locked_version(path, version) as unchanged:
                if unchanged:
                    os.unlink(path)

    def delete_tree(self, path: str, still: Callable[[], bool] | None = None) -> None:
        """See ``Storage.delete_tree``; what another process adds meanwhile may stay."""
        if still is None or still():
            with _plainly("delete", path):
                shutil.rmtree(path, ignore_errors=True)

    def list_dir(self, path: str) -> Iterator[Entry]:
        """See ``Storage.list_dir``."""
        with _plainly("list", path):
            try:
                names = sorted(os.listdir(path))
            except FileNotFoundError:
                return
        for name in names:
            entry = self.stat(os.path.join(path, name))
            if entry is not None:
                yield entry

    def walk(self, path: str) -> Iterator[Entry]:
        """See ``Storage.walk``."""
        folders = [path]
        while folders:
            folder = folders.pop()
            with _plainly("list", folder):
                try:
                    names = sorted(os.listdir(folder))
                except FileNotFoundError:
                    continue
            for name in names:
                entry = _look_at(os.path.join(folder, name))
                if entry is not None:
                    yield entry
                    folders += [entry.path] * (entry.kind == "dir")

    def checksum(self, path: str) -> int:
        """See ``Storage.checksum``."""
        crc = 0
        with self.open_read(path) as chunks:
            for chunk in chunks:
                crc = google_crc32c.extend(crc, chunk)
        return crc

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """See ``Storage.lock``; the operating system frees it when the process dies."""
        with _plainly("lock", path):
            descriptor = os.open(path, os.O_RDONLY)
        try:
            # Where locks are not to be had (some network mounts), publishing is one builder's.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class LocalReader:
    """An open file, read at any place."""

    chunk = 1 << 20
    gap = 16 << 10

    def __init__(self, path: str, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self._path, self._descriptor = path, descriptor
        self.size, self.version = status.st_size, str(status.st_mtime_ns)

    def read_at(self, offset: int, length: int) -> bytes:
        """See ``RandomReader.read_at``."""
        try:
            data = os.pread(self._descriptor, length, offset)
            while len(data) < length and (
                more := os.pread(self._descriptor, length - len(data), offset + len(data))
            ):
                data += more  # a call gives no more than 2 GiB
        except OSError as error:
            raise storage_error("read", self._path, error) from error
        return data


def _look_at(path: str) -> Entry | None:
    """Returns what stands at a path, a link as itself, or None when it is gone."""
    with _plainly("look at", path):
        try:
            return _entry(path, os.lstat(path))
        except FileNotFoundError:
            return None


def _replace(path: str, data: bytes) -> None:
    """Writes a file next to another one, syncs it and renames it over that one."""
    temporary = _temporary(path)
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _make_newer(temporary, path)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _make_newer(path: str, other: str) -> None:
    """Sets the modification time of a file after that of another one, if it exists.

    Kernels before Linux 6.13 stamp files by a clock that ticks every few milliseconds, so two
    versions that follow each other could have the same time.
    """
    with contextlib.suppress(FileNotFoundError):
        old, new = os.stat(other).st_mtime_ns, os.stat(path).st_mtime_ns
        if new <= old:
            os.utime(path, ns=(old + 1, old + 1))


@contextlib.contextmanager
def _locked_version(path: str, version: str) -> Iterator[bool]:
    """Locks a file and yields whether it still has a version.

    The lock is on the file, not on its folder, which callers may have locked. Replacing renames
    another file to the path, so a process that waited for the lock finds that other file.
    """
    descriptor = -1
    try:
        # An unreadable file can be replaced and deleted, but not locked.
        with contextlib.suppress(PermissionError, FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with contextlib.suppress(OSError):  # file systems without locks: one builder at a time
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield _has_version(path, version, descriptor)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _has_version(path: str, version: str, descriptor: int) -> bool:
    """Returns whether a path still names the open file and that has a version."""
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return False
    same = descriptor < 0 or os.path.samestat(now, os.fstat(descriptor))
    return same and str(now.st_mtime_ns) == version


def _create_without_links(path: str, data: bytes) -> bool:
    try:
        file = open(path, "xb")  # noqa: SIM115 - only this call may find that it exists
    except FileExistsError:
        return False
    try:
        with file:
            file.write(data)
    except BaseException:
        os.unlink(path)
        raise
    return True


def _open_input(path: str, flags: int) -> int:
    """Opens what was listed as a file; whatever took its place since must not hold us up."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise FileNotFoundError(error.errno, error.strerror, path) from error
        if error.errno == errno.ENXIO:
            raise ChangedError("it was a file when it was listed and is a socket now") from error
        raise
    if not stat_flags.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ChangedError("it was a file when it was listed and is none now")
    return descriptor
