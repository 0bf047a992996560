"""The Hadoop file system, through Apache Beam's own (WebHDFS)."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from shardmill.schemas.errors import ChangedError, DeniedError, StorageError, UsageError
from shardmill.schemas.storage.base import OPTIONS_VARIABLE, Entry
from shardmill.schemas.storage.beam_files import (
    BeamStorage,
    Stream,
    beam_options,
    missing_package,
    one_line,
)

_TRIES = 5
_GONE = ("not found", "does not exist", "FileNotFoundException")
_DENIED = ("Permission denied", "AccessControlException")
_NO_FOLDER = "is not a directory"


class HdfsStorage(BeamStorage):
    """Files and folders; a file is written under another name and renamed.

    A rename there fails where something stands, so ``create`` is exclusive. ``replace`` and
    ``move`` over a file delete it first: for a moment there is none.
    """

    def __init__(self) -> None:
        from apache_beam.io import hadoopfilesystem
        from apache_beam.io.filesystem import CompressionTypes

        if hadoopfilesystem.hdfs is None:
            raise missing_package("hdfs", "hdfs", "hadoop")
        self._make: Any = hadoopfilesystem.HadoopFileSystem
        self._error: type[Exception] = hadoopfilesystem.hdfs.HdfsError
        self._plain = CompressionTypes.UNCOMPRESSED  # else a name's suffix would decide
        self._of_thread = threading.local()

    def _system(self) -> Any:
        """Returns this thread's connection."""
        options = beam_options()
        found = getattr(self._of_thread, "found", None)
        if found is None or found[0] != os.getpid() or found[1] is not options:
            try:
                found = os.getpid(), options, self._make(options)
            except ValueError as error:
                raise UsageError(
                    f"hdfs:// cannot be used: {error}; give --hdfs_host, --hdfs_port (of WebHDFS) "
                    f"and --hdfs_user, or set {OPTIONS_VARIABLE} to these flags."
                ) from error
            self._of_thread.found = found
        return found[2]

    @contextlib.contextmanager
    def _plainly(self, action: str, path: str) -> Iterator[None]:
        """Turns errors of Beam, of its client and of the network into ours."""
        try:
            yield
        except (FileNotFoundError, StorageError):
            raise
        except (self._error, OSError) as error:
            raise _plain_error(action, path, error) from error

    def _look(self, path: str) -> Entry:
        """Returns an entry whose kind is right if it has bytes.

        Raises:
            FileNotFoundError: Nothing is there.
        """
        system = self._system()
        with self._plainly("look at", path):
            return _entry(system.metadata(path))

    def _list(self, path: str) -> list[Entry] | None:
        """Returns what stands in a folder, or None when it is a file.

        Raises:
            FileNotFoundError: Nothing is there.
        """
        system = self._system()
        try:
            with self._plainly("list", path):
                # Beam's public way takes a pattern, in which some names cannot be written.
                return [_entry(found) for found in system._list(path)]  # noqa: SLF001
        except NotADirectoryError:
            return None

    def _with_kind(self, entry: Entry) -> Entry:
        """Beam tells no kind: what has no bytes is a folder if it can be listed."""
        if entry.size:
            return entry
        return entry if self._list(entry.path) is None else _folder(entry)

    def _file(self, path: str) -> Entry:
        entry = self._with_kind(self._look(path))
        if entry.kind != "file":
            raise ChangedError("it is a folder and no file")
        return entry

    def stat(self, path: str) -> Entry | None:
        """See ``Storage.stat``."""
        try:
            return self._with_kind(self._look(path))
        except FileNotFoundError:
            return None

    def list_dir(self, path: str) -> Iterator[Entry]:
        """See ``Storage.list_dir``."""
        try:
            found = self._list(path) or []
        except FileNotFoundError:
            return
        for entry in sorted(found):
            with contextlib.suppress(FileNotFoundError):
                yield self._with_kind(entry)

    def walk(self, path: str) -> Iterator[Entry]:
        """See ``Storage.walk``."""
        folders = [path]
        while folders:
            try:
                found = self._list(folders.pop()) or []
            except FileNotFoundError:
                continue
            for entry in sorted(found):
                with contextlib.suppress(FileNotFoundError):
                    known = self._with_kind(entry)
                    folders += [known.path] * (known.kind == "dir")
                    yield known

    def _stream(self, entry: Entry) -> Stream:
        with self._plainly("read", entry.path):
            file = self._system().open(entry.path, compression_type=self._plain)
        return _HdfsStream(self, entry.path, file)

    def _write(self, path: str, chunks: Iterable[bytes]) -> None:
        """Writes a new file, which is seen while it grows."""
        with self._plainly("write", path):
            file = self._system().create(path, compression_type=self._plain)
        try:
            for chunk in chunks:
                with self._plainly("write", path):
                    file.write(chunk)
        finally:
            with self._plainly("write", path):
                file.close()

    @contextlib.contextmanager
    def _aside(self, path: str, chunks: Iterable[bytes], aside: str = "") -> Iterator[str]:
        """Writes a file of another name, which is gone when the block ends."""
        folder, name = path.rstrip("/").rsplit("/", 1)
        temporary = f"{aside or folder}/.{name[:64]}.{uuid.uuid4().hex}.tmp"
        try:
            self._write(temporary, chunks)
            yield temporary
        finally:
            with contextlib.suppress(StorageError):
                self.delete(temporary)

    def _rename(self, source: str, path: str) -> bool:
        """Renames a file unless something stands at path; returns whether it did."""
        try:
            with self._plainly("write", path):
                self._system().rename([source], [path])
        except (StorageError, FileNotFoundError):
            if self.stat(path) is None:
                raise
            return False
        return True

    def _rename_over(self, source: str, path: str) -> None:
        for _ in range(_TRIES):
            if self._rename(source, path):
                return
            if self.stat(source) is None:  # another moved it, so what stands there is it
                return
            self.delete(path)
        raise StorageError(f"Cannot write {path}: others write it all the time; run one builder.")

    def _put(self, path: str, chunks: Iterable[bytes]) -> None:
        with self._aside(path, chunks) as temporary:
            self._rename_over(temporary, path)

    def create(self, path: str, data: bytes, aside: str = "") -> bool:
        """See ``Storage.create``; a rename that fails where something stands."""
        if self.stat(path) is not None:
            return False
        self._make_folder(path.rsplit("/", 1)[0])
        with self._aside(path, (data,), aside) as temporary:
            return self._rename(temporary, path)

    def move(self, source: str, path: str) -> None:
        """See ``Storage.move``; what stands at path is deleted first."""
        if self.stat(source) is None:
            self._file(path)  # it already moved, or is missing
            return
        if source != path:
            self._make_folder(path.rsplit("/", 1)[0])
            self._rename_over(source, path)

    def _make_folder(self, path: str) -> None:
        system = self._system()
        with self._plainly("write", path):
            if not system.exists(path):
                try:
                    system.mkdirs(path)
                except OSError:
                    if not system.exists(path):  # else another made it meanwhile
                        raise

    def delete(self, path: str) -> None:
        """See ``Storage.delete``."""
        with contextlib.suppress(FileNotFoundError), self._plainly("delete", path):
            self._system().delete([path])

    def delete_tree(self, path: str) -> None:
        """See ``Storage.delete_tree``; one call."""
        self.delete(path)


class _HdfsStream:
    """An open file; each read is one call of WebHDFS and one to the data node."""

    def __init__(self, storage: HdfsStorage, path: str, file: Any) -> None:
        self._storage, self._path = storage, path
        self._file = file  # kept, for it closes what lies below when it goes
        self._raw = file.raw  # the buffer above it would read 20 MiB at a time

    def read(self, offset: int, length: int) -> bytes:
        """See ``Stream.read``."""
        data = bytearray(length)
        done = 0
        with self._storage._plainly("read", self._path), memoryview(data) as view:  # noqa: SLF001
            self._raw.seek(offset)
            while done < length and (count := self._raw.readinto(view[done:])):
                done += count
        return bytes(data[:done])


def _entry(found: Any) -> Entry:
    changed = round(found.last_updated_in_seconds * 1000)
    return Entry(found.path, found.size_in_bytes, f"@{changed}")


def _folder(entry: Entry) -> Entry:
    return entry._replace(size=0, kind="dir")


def _plain_error(action: str, path: str, error: BaseException) -> Exception:
    """Returns the plain sentence for what Beam, its client or the network raised."""
    details = getattr(error, "exception_details", None)
    if isinstance(details, dict) and details:
        return _plain_error(action, path, next(iter(details.values())))
    if isinstance(details, Exception):
        return _plain_error(action, path, details)
    why = one_line((str(error).splitlines() or [type(error).__name__])[0])  # Java's trace follows
    if _NO_FOLDER in why:
        return NotADirectoryError(path)
    if any(text in why for text in _GONE):
        return FileNotFoundError(path)
    if any(text in why for text in _DENIED):
        return DeniedError(f"Cannot {action} {path}: {why}; ask for that permission.")
    return StorageError(f"Cannot {action} {path}: {why}; run again when the service answers.")
