"""Opening TFRecord files, and detecting their compression from their first bytes.

A file that cannot be opened or read is reported as a ``FileFault``. Its name decides nothing.
"""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Iterator
from typing import Literal

import numpy as np

from shardmill.schemas.errors import ChangedError
from shardmill.schemas.file_signatures import GZIP, describe_format, zlib_content
from shardmill.schemas.storage import RandomReader, open_storage
from shardmill.schemas.storage.base import became_shorter
from shardmill.schemas.tfrecord.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    length_crcs,
    mask,
    starts_record,
)
from shardmill.schemas.tfrecord.scanner import DamagedError, FileFault

Compression = Literal["none", "gzip"]

ZLIB_REMEDY = "write it with tf.io.TFRecordOptions('GZIP'), or without compression"
_HEAD = 4096  # the first bytes are cached: several functions read them
_SEARCHED = 1 << 20  # bytes in which a valid record is searched if the first one is damaged


@contextlib.contextmanager
def open_file(path: str, version: str, size: int = -1) -> Iterator[CheckedReader]:
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
                raise ChangedError("the file changed since it was listed")
        yield CheckedReader(reader)


class CheckedReader:
    """A ``RandomReader`` that raises DamagedError if it cannot return all requested bytes."""

    def __init__(self, reader: RandomReader) -> None:
        self.chunk, self.gap = reader.chunk, reader.gap
        self.size, self.version = reader.size, reader.version
        self._read_at = reader.read_at
        self._head = b""

    def has(self, offset: int, length: int) -> bool:
        """Return whether bytes are in the head that was read before, so that none are read."""
        return offset + length <= len(self._head)

    def read_at(self, offset: int, length: int) -> bytes:
        """Return bytes at an offset, from the head that was read before where it has them."""
        if self.has(offset, length):
            return self._head[offset : offset + length]
        with _as_faults():
            data = self._read_at(offset, length)
            if len(data) < min(length, self.size - offset):
                raise became_shorter()
        if not offset and len(data) <= _HEAD:
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


def detect_compression(reader: RandomReader) -> Compression:
    """Return the compression of a file; an empty file is not compressed.

    Raises:
        DamagedError: It is not a TFRecord file.
    """
    head = reader.read_at(0, _HEAD)
    if not head or starts_record(head):
        return "none"
    if head.startswith(GZIP):
        return "gzip"
    problem = f"its compression is ZLIB, which is not read: {ZLIB_REMEDY}"
    if zlib_content(head, HEADER_BYTES) is None:
        other = describe_other_content(reader.read_at(0, _SEARCHED), reader.size)
        if not other:
            return "none"
        problem = f"it is not a TFRecord file but {other}"
    raise DamagedError(FileFault("not_tfrecord", 0, 0, problem))


def has_zlib_records(head: bytes) -> bool:
    """Return whether a file begins like TFRecords with ZLIB compression."""
    content = zlib_content(head, HEADER_BYTES)
    return content is not None and starts_record(content)


def describe_other_content(data: bytes, size: int) -> str:
    """Describe data that is not TFRecords; empty if it may be a damaged TFRecord file.

    Args:
        data: The first bytes of a file, decompressed; they do not begin with a valid header.
        size: Decompressed size of the file in bytes, or an upper bound of it.
    """
    description = describe_format(data)
    if description:
        return description
    if not data.strip(b"\0"):
        return "only zeros: copy the file again"
    if _holds_record(data, size):
        return ""
    if _is_text(data[:_HEAD]):
        return "text"
    if size <= HEADER_BYTES:
        return ""
    return "binary data that does not begin with the header of a record"


def _holds_record(data: bytes, size: int) -> bool:
    """Return whether a record can begin after the first byte of data.

    There, a length matches its CRC and the record fits. In random data that is one offset in 2**32.

    Args:
        data: The first bytes of a file.
        size: Size of the file in bytes.
    """
    room = size - HEADER_BYTES - FOOTER_BYTES
    count = min(len(data) - HEADER_BYTES, room)
    if count < 1:
        return False
    # A stride of one byte reads a number at each offset, also at unaligned ones.
    lengths = np.ndarray((count,), "<u8", data, 1, strides=(1,))
    masks = np.ndarray((count,), "<u4", data, 9, strides=(1,))
    fits = np.flatnonzero(lengths < np.uint64(room) - np.arange(count, dtype=np.uint64))
    return bool((mask(length_crcs(lengths[fits])) == masks[fits]).any())


def _is_text(data: bytes) -> bool:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return bool(text) and all(letter.isprintable() or letter in "\t\r\n\f" for letter in text)
