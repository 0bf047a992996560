"""Members of a shard: its gzip members, or chunks of an uncompressed file."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardmill.schemas.errors import FormatError, InputError
from shardmill.schemas.numbers import plural
from shardmill.schemas.tfrecord.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    starts_record,
    truncated_record,
    wrong_length_crc,
)
from shardmill.schemas.tfrecord.gzip_member import HEADER, read_index
from shardmill.schemas.tfrecord.reader import open_file

_CHUNK_BYTES = 2 << 20  # of an uncompressed file, read at a time in sequential reading
_HEADERS_IN_GAP = 4  # reads of headers: 4 KiB each on a local disk, 1 MiB on an object store


class OpenFile:
    """An open file, which is closed when it is garbage-collected.

    A thread that reads must hold this object, not the reader inside it: the cache of open files may
    drop the object, and so close the file, while another thread still reads.

    Args:
        path: Path of the file.
        size: Its size by the manifest.
        version: Its version in a listing, or empty.
        is_copy: Whether it is a local copy of a remote shard.
    """

    def __init__(self, path: str, size: int, version: str = "", *, is_copy: bool = False) -> None:
        with contextlib.ExitStack() as stack:
            self._reader = stack.enter_context(open_file(path, version, size))
            weakref.finalize(self, stack.pop_all().close)  # also before the interpreter ends
        self.size, self.gap, self._is_copy = self._reader.size, self._reader.gap, is_copy

    def needs_request(self, offset: int, length: int) -> bool:
        """Return whether the storage of the dataset is asked for some bytes."""
        return not (self._is_copy or self._reader.has(offset, length))

    def read_at(self, offset: int, length: int) -> bytes:
        """Return some bytes of the shard, shorter at its end."""
        return self._reader.read_at(offset, length)


class FileReads(NamedTuple):
    """How to read an open file.

    Attributes:
        read_at: Returns some bytes: from an offset, of a length.
        size: Size of the file.
        gap: See ``RandomReader``.
    """

    read_at: Callable[[int, int], bytes]
    size: int
    gap: int


class Members(NamedTuple):
    """The members of a shard, or the chunks of an uncompressed one.

    Attributes:
        offset: Position in the file, shape [members].
        num_bytes: Size in the file, shape [members].
        first: Number of the first record, shape [members + 1]; the last is the record count.
        is_gzip: Whether they are gzip members.
    """

    offset: npt.NDArray[np.int64]
    num_bytes: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    is_gzip: bool


def read_members(file: FileReads, folder: str, path: str, records: int) -> Members:
    """Returns the members of a shard.

    Args:
        file: The shard.
        folder: Folder of the dataset, for messages.
        path: Path of the shard, for messages.
        records: Number of its records by the manifest.

    Raises:
        InputError: It is a gzip file of another program.
        FormatError: It is damaged, or has another number of records.
    """
    index = read_index(file.read_at, file.size)
    if index is None:
        head = file.read_at(0, HEADER_BYTES)
        if head.startswith(HEADER[:4]):
            raise InputError(
                f"{path} has no member index, which Shardmill's readers need: read it with "
                "tf.data, or build the dataset with Shardmill; if Shardmill built it, run "
                f"`shardmill verify {folder}`."
            )
        if head.startswith(HEADER[:2]):
            raise FormatError("its member index is damaged or does not cover the whole file")
    chunks = _find_chunks(file) if index is None else index
    table = np.array(chunks, np.int64).reshape(-1, 3)
    first = np.concatenate([[0], np.cumsum(table[:, 2])])
    if first[-1] != records:
        raise different_records(actual=first[-1], expected=records)
    return Members(table[:, 0].copy(), table[:, 1].copy(), first, index is not None)


def different_records(actual: int, expected: int) -> FormatError:
    """Return the error for a shard with another number of records than its manifest."""
    return FormatError(f"it has {plural(actual, 'record')} and the manifest says {expected:,}")


def _find_chunks(file: FileReads) -> list[tuple[int, int, int]]:
    """Returns (offset, bytes, records) of chunks of whole records of an uncompressed file."""
    chunks: list[tuple[int, int, int]] = []
    at = start = number = first = 0
    data, data_start = b"", 0
    while at < file.size:
        if at + HEADER_BYTES > data_start + len(data):
            data, data_start = file.read_at(at, file.gap // _HEADERS_IN_GAP), at
        header = data[at - data_start : at - data_start + HEADER_BYTES]
        if not starts_record(header):
            raise wrong_length_crc(number)
        at += HEADER_BYTES + int.from_bytes(header[:8], "little") + FOOTER_BYTES
        if at > file.size:
            raise truncated_record(number)
        number += 1
        if at - start >= _CHUNK_BYTES or at == file.size:
            chunks.append((start, at - start, number - first))
            start, first = at, number
    return chunks
