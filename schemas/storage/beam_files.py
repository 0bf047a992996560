"""What file systems reached through Apache Beam's clients share: s3:// and hdfs://.

Beam is imported when one of them is first used, never before.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import IO, Any, Protocol

import google_crc32c

from shardmill.schemas.errors import ChangedError, StorageError, UsageError
from shardmill.schemas.storage.base import OPTIONS_VARIABLE, Entry, RandomReader

_CHUNK = 1 << 20
_READ = 8 << 20
_SPOOL = 64 << 20
_IDLE_STREAMS = 16  # of one file that is read at any place


@lru_cache(maxsize=4)
def _options_of(flags: str) -> Any:
    from apache_beam.options.pipeline_options import PipelineOptions

    try:
        return PipelineOptions(shlex.split(flags))
    except ValueError as error:
        raise UsageError(
            f"{OPTIONS_VARIABLE} is no list of flags ({error}): write it as on a command line."
        ) from error


def beam_options() -> Any:
    """Returns the pipeline options that Beam's file systems use in this process.

    They come from an environment variable: a command sets it to the flags it was given, for
    itself and for the processes that it starts. Beam sets them in the workers of its runners.

    Raises:
        UsageError: The variable is no list of flags.
    """
    from apache_beam.io.filesystems import FileSystems

    flags = os.environ.get(OPTIONS_VARIABLE)
    found = FileSystems._pipeline_options  # noqa: SLF001 - there is no other way to ask
    return found if flags is None and found is not None else _options_of(flags or "")


class Stream(Protocol):
    """A file that is read at a position, best where the last read ended."""

    def read(self, offset: int, length: int) -> bytes:
        """Returns length bytes, fewer only where the file ends."""
        ...


class BeamStorage(ABC):
    """What can be said of all of them by reading, listing and writing whole files.

    Nothing here is exclusive unless the file system makes it so: see docs/storage.md. What is
    written goes through this process.
    """

    @abstractmethod
    def stat(self, path: str) -> Entry | None:
        """See ``Storage.stat``."""

    @abstractmethod
    def list_dir(self, path: str) -> Iterator[Entry]:
        """See ``Storage.list_dir``."""

    @abstractmethod
    def walk(self, path: str) -> Iterator[Entry]:
        """See ``Storage.walk``."""

    @abstractmethod
    def create(self, path: str, data: bytes, aside: str = "") -> bool:
        """See ``Storage.create``; each file system tells how exclusive it is."""

    @abstractmethod
    def move(self, source: str, path: str) -> None:
        """See ``Storage.move``."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """See ``Storage.delete``."""

    @abstractmethod
    def delete_tree(self, path: str) -> None:
        """See ``Storage.delete_tree``."""

    @abstractmethod
    def _file(self, path: str) -> Entry:
        """Returns a file's entry.

        Raises:
            FileNotFoundError: No file is there.
        """

    @abstractmethod
    def _stream(self, entry: Entry) -> Stream:
        """Opens a file that is not empty for one thread."""

    @abstractmethod
    def _put(self, path: str, chunks: Iterable[bytes]) -> None:
        """Writes a whole file over whatever was there; if the chunks raise, none appears."""

    def read(self, path: str) -> bytes:
        """See ``Storage.read``."""
        entry = self._file(path)
        data = self._whole(entry)
        if len(data) != entry.size:
            raise _replaced("read", path)
        return data

    def read_unchanged(self, path: str, size: int, version: str) -> bytes:
        """See ``Storage.read_unchanged``; looked at after reading, so nothing slips between."""
        data = self._whole(Entry(path, size, version))
        now = self._file(path)
        if len(data) != size or now.version != version or now.size != size:
            raise ChangedError(f"it had {size} bytes when it was listed and has {now.size} now")
        return data

    def _whole(self, entry: Entry) -> bytes:
        return self._stream(entry).read(0, entry.size) if entry.size else b""

    @contextlib.contextmanager
    def open_read(self, path: str) -> Iterator[Iterable[bytes]]:
        """See ``Storage.open_read``; fails in the end if the file was replaced meanwhile."""
        yield self._chunks(self._file(path))

    def _chunks(self, entry: Entry) -> Iterator[bytes]:
        stream = self._stream(entry) if entry.size else None
        done = 0
        while stream is not None and done < entry.size:
            data = stream.read(done, min(_READ, entry.size - done))
            if not data:
                break
            done += len(data)
            yield data
        if self._file(entry.path)[:3] != entry[:3] or done != entry.size:
            raise _replaced("read", entry.path)

    @contextlib.contextmanager
    def open_at(self, path: str) -> Iterator[RandomReader]:
        """See ``Storage.open_at``."""
        reader = BeamReader(self, self._file(path))
        try:
            yield reader
        finally:
            reader.close()

    @contextlib.contextmanager
    def open_write(self, path: str) -> Iterator[IO[bytes]]:
        """See ``Storage.open_write``; held in a temporary file until it is complete."""
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL) as file:
            yield file
            file.seek(0)
            self._put(path, iter(lambda: file.read(_CHUNK), b""))

    def replace(self, path: str, data: bytes) -> None:
        """See ``Storage.replace``."""
        self._put(path, (data,))

    def concat(self, sources: list[str], tail: list[tuple[int, bytes]], path: str) -> None:
        """See ``Storage.concat``; all bytes pass through this process, a chunk at a time."""
        self._put(path, self._joined(sources, list(tail)))

    def _joined(self, sources: list[str], pending: list[tuple[int, bytes]]) -> Iterator[bytes]:
        for number, source in enumerate(sources):
            while pending and pending[0][0] == number:
                yield pending.pop(0)[1]
            yield from self._chunks(self._file(source))
        for _, data in pending:
            yield data

    def checksum(self, path: str) -> int:
        """See ``Storage.checksum``; the file is read."""
        crc = 0
        with self.open_read(path) as chunks:
            for chunk in chunks:
                crc = google_crc32c.extend(crc, chunk)
        return crc

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """See ``Storage.lock``: there are none."""
        del path
        yield


class BeamReader:
    """A file that is read at any place by any thread; each read checks that it is still the same.

    Attributes:
        chunk: See ``RandomReader``.
        gap: See ``RandomReader``.
    """

    chunk = 16 << 20
    gap = 4 << 20

    def __init__(self, storage: BeamStorage, entry: Entry) -> None:
        self._storage, self._entry = storage, entry
        self.size, self.version = entry.size, entry.version
        self._lock = threading.Lock()
        self._idle: list[tuple[int, Stream]] = []  # where each one stands

    def read_at(self, offset: int, length: int) -> bytes:
        """See ``RandomReader.read_at``."""
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        stream = self._take(offset) or self._storage._stream(self._entry)  # noqa: SLF001
        data = stream.read(offset, length)
        now = self._storage._file(self._entry.path)  # noqa: SLF001
        if now.version != self.version or len(data) != length:
            raise ChangedError("it was replaced while it was read")
        with self._lock:
            self._idle.append((offset + length, stream))
            del self._idle[:-_IDLE_STREAMS]
        return data

    def _take(self, offset: int) -> Stream | None:
        """Returns a stream that no thread uses, one that stands at an offset if there is one."""
        with self._lock:
            for number, (position, _) in enumerate(self._idle):
                if position == offset:
                    return self._idle.pop(number)[1]
            return self._idle.pop(0)[1] if len(self._idle) == _IDLE_STREAMS else None

    def close(self) -> None:
        """Lets go of all connections."""
        with self._lock:
            self._idle.clear()


def _replaced(action: str, path: str) -> StorageError:
    return StorageError(f"Cannot {action} {path}: it was replaced at the same time; run again.")


def one_line(text: object) -> str:
    """Returns a text as one line without its full stop."""
    return " ".join(str(text).split()).rstrip(".")


def missing_package(scheme: str, package: str, extra: str) -> UsageError:
    """Returns the sentence for a package that Beam's file system needs."""
    return UsageError(f"{scheme}:// needs {package}: pip install 'shardmill[{extra}]'.")
