"""Sequential reading of TFRecord files, also those of other programs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shardmill.schemas.errors import FormatError
from shardmill.schemas.storage import RandomReader
from shardmill.schemas.tfrecord.count_file import scan_content
from shardmill.schemas.tfrecord.inflate import gzip_chunks, raw_chunks
from shardmill.schemas.tfrecord.open_file import Compression, detect_compression, open_file
from shardmill.schemas.tfrecord.scanner import RecordScanner


class TooLargeError(FormatError):
    """A record is larger than the caller's limit."""


class RecordReader:
    """The payloads of an open file's records; may be iterated over repeatedly.

    Attributes:
        compression: Compression of the file.
        size: Size of the file in bytes.
    """

    def __init__(self, reader: RandomReader, compression: Compression, limit: int) -> None:
        self.compression = compression
        self.size = reader.size
        self._reader = reader
        self._limit = limit

    def __iter__(self) -> Iterator[bytes]:
        """Yield each valid payload.

        Raises:
            DamagedError: At the first damaged or incomplete record.
            TooLargeError: At the first record over the limit.
        """
        taken: list[bytes] = []
        scanner = RecordScanner(take=taken.append)
        chunks = raw_chunks(self._reader, 0, self.size)
        content = gzip_chunks(chunks) if self.compression == "gzip" else chunks
        for _ in scan_content(scanner, content, self.compression, self.size):
            yield from taken
            taken.clear()
            size = scanner.pending_end - scanner.offset
            if 0 < self._limit < size:
                raise TooLargeError(
                    f"record {scanner.records:,} at byte {scanner.offset:,} has {size:,} bytes, "
                    f"over the limit of {self._limit:,}"
                )


@contextlib.contextmanager
def open_records(path: str, limit: int = 0) -> Iterator[RecordReader]:
    """Open a TFRecord file for sequential reading.

    Args:
        path: Path or URI of the file.
        limit: Most bytes of a record, since compressed files may hold gigabytes; 0 for any number.

    Raises:
        DamagedError: The file cannot be opened, or is not a TFRecord file.
        StorageError: The storage failed.
    """
    with open_file(path, "") as reader:
        yield RecordReader(reader, detect_compression(reader), limit)
