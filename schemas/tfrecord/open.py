"""Opening TFRecord files: a file that cannot be opened or read is reported as a ``FileFault``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shardmill.schemas.errors import ChangedError
from shardmill.schemas.storage import RandomReader, open_storage
from shardmill.schemas.tfrecord.scanner import DamagedError, FileFault

ACCESS_REASONS = ("changed", "not_found", "unreadable")  # not related to a place in the file
_HEAD = 4096  # the first bytes are cached: several functions read them


@contextlib.contextmanager
def open_file(path: str, version: str, size: int = -1) -> Iterator[RandomReader]:
    """Open a file for random access.

    Args:
        path: Path or URI of the file.
        version: Expected version of the file, as in ``Entry``; empty: any.
        size: Expected size in bytes; negative: any.

    Raises:
        DamagedError: The file does not exist, is not the expected one or may not be read; raised
            by this function or by a later read.
        StorageError: The storage failed.
    """
    with contextlib.ExitStack() as stack:
        with _as_faults():  # errors of the caller's code are not faults of the file
            reader = stack.enter_context(open_storage(path).open_at(path))
            changed = version and reader.version != version
            if changed or size not in (-1, reader.size):
                raise ChangedError("changed-since-listed")
        yield _CheckedReader(reader)


class _CheckedReader:
    """A ``RandomReader`` that raises DamagedError if it cannot return all requested bytes."""

    def __init__(self, reader: RandomReader) -> None:
        self.chunk, self.gap = reader.chunk, reader.gap
        self.size, self.version = reader.size, reader.version
        self._read_at = reader.read_at
        self._head = b""

    def read_at(self, offset: int, length: int) -> bytes:
        """Return bytes at an offset, from the head that was read before where it has them."""
        if offset + length <= len(self._head):
            return self._head[offset : offset + length]
        with _as_faults():
            data = self._read_at(offset, length)
            if len(data) < min(length, self.size - offset):
                raise ChangedError("changed-became-shorter")
        if not offset and length <= _HEAD:
            self._head = data
        return data


@contextlib.contextmanager
def _as_faults() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedError(FileFault("not_found", 0, 0, "the file does not exist")) from error
    except PermissionError as error:
        raise DamagedError(FileFault("unreadable", 0, 0, "reading it is not allowed")) from error
    except ChangedError as error:
        raise DamagedError(FileFault("changed", 0, 0, str(error))) from error
