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


def read_payloads(
    reader: RandomReader, compression: Compression, limit: int = 0
) -> Iterator[bytes]:
    """Yield each valid payload of an open file.

    Args:
        reader: The file.
        compression: Its compression.
        limit: See ``open_records``.

    Raises:
        DamagedError: At the first damaged or incomplete record.
        TooLargeError: At the first record over the limit.
    """
    taken: list[bytes] = []
    scanner = RecordScanner(take=taken.append)
    chunks = raw_chunks(reader, 0, reader.size)
    content = gzip_chunks(chunks) if compression == "gzip" else chunks
    for _ in scan_content(scanner, content, compression, reader.size):
        yield from taken
        taken.clear()
        size = scanner.pending_end - scanner.offset
        if 0 < limit < size:
            raise TooLargeError(
                f"record {scanner.records:,} at byte {scanner.offset:,} has {size:,} bytes, "
                f"over the limit of {limit:,}"
            )


@contextlib.contextmanager
def open_records(path: str, limit: int = 0) -> Iterator[Iterator[bytes]]:
    """Open a TFRecord file to read its payloads one after the other.

    Args:
        path: Path or URI of the file.
        limit: Most bytes of a record, since compressed files may hold gigabytes; 0 for any number.

    Raises:
        DamagedError: The file cannot be opened, or is not a TFRecord file.
        StorageError: The storage failed.
    """
    with open_file(path, "") as reader:
        yield read_payloads(reader, detect_compression(reader), limit)
