"""Opening a TFRecord file: what stands in the way is a fault of that file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shardmill.schemas.errors import ChangedError
from shardmill.schemas.storage import RandomReader, open_storage
from shardmill.schemas.tfrecord.scanner import DamagedError, Fault

LOST = ("changed", "not_found", "unreadable")  # what ends the reading of a file at any place
_HEAD = 4096  # kept from the first look, which more looks follow


@contextlib.contextmanager
def open_file(path: str, version: str, size: int = -1) -> Iterator[RandomReader]:
    """Opens a file to be read at any place.

    Args:
        path: The file.
        version: Which version of it is meant; empty for any.
        size: Its size; negative for any.

    Raises:
        DamagedError: It is not there, not that one, or may not be read: now or at a later call.
        StorageError: The medium failed.
    """
    with contextlib.ExitStack() as stack:
        with _as_faults():  # not what the caller does with the file
            reader = stack.enter_context(open_storage(path).open_at(path))
            changed = version and reader.version != version
            if changed or size not in (-1, reader.size):
                raise ChangedError("the file is another than the one that was listed")
        yield _Reader(reader)


class _Reader:
    """A reader that gives all that is asked for, or says what is the matter with the file."""

    def __init__(self, reader: RandomReader) -> None:
        self.chunk, self.gap = reader.chunk, reader.gap
        self.size, self.version = reader.size, reader.version
        self._read_at = reader.read_at
        self._head = b""

    def read_at(self, offset: int, length: int) -> bytes:
        """See ``RandomReader.read_at``."""
        if offset + length <= len(self._head):
            return self._head[offset : offset + length]
        with _as_faults():
            data = self._read_at(offset, length)
            if len(data) < min(length, self.size - offset):
                raise ChangedError("the file became shorter while it was read")
        if not offset and length <= _HEAD:
            self._head = data
        return data


@contextlib.contextmanager
def _as_faults() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedError(Fault("not_found", 0, 0, "the file does not exist")) from error
    except PermissionError as error:
        raise DamagedError(Fault("unreadable", 0, 0, "reading it is not allowed")) from error
    except ChangedError as error:
        raise DamagedError(Fault("changed", 0, 0, str(error))) from error
