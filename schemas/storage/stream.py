"""ReaderStream: a file that is open for random access, as a stream."""

from __future__ import annotations

import io
from typing import Any

from shardmill.schemas.storage.base import RandomReader


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
