"""Counting and sequential reading of TFRecord files, also those of other programs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardmill.schemas.errors import FormatError
from shardmill.schemas.storage import RandomReader
from shardmill.schemas.tfrecord.framing import combine_crc32c
from shardmill.schemas.tfrecord.inflate import decompress, raw_chunks
from shardmill.schemas.tfrecord.range_scan import RangeCount, Take, scan_content, scan_range
from shardmill.schemas.tfrecord.ranges import (
    UNKNOWN,
    Check,
    Compression,
    FileRanges,
    detect_compression,
    find_ranges,
    open_file,
)
from shardmill.schemas.tfrecord.scanner import DamagedError, FileFault, RecordScanner


class FileCount(NamedTuple):
    """Result of the scan of a file.

    Attributes:
        records: Number of records before the end or the fault.
        num_bytes: Size of the file.
        crc32c: CRC-32C of the file as 8 hexadecimal digits; empty if it was not read completely.
        compression: Compression of the file.
        fault: The first problem of the file.
        warnings: Sentences about valid data that other programs read differently.
    """

    records: int
    num_bytes: int
    crc32c: str = ""
    compression: Compression = "none"
    fault: FileFault | None = None
    warnings: tuple[str, ...] = ()


def count_file(path: str, check: Check = "records", take: Take | None = None) -> FileCount:
    """Return the number of records of a TFRecord file.

    Args:
        path: Path or URI of the file.
        check: ``records`` reads everything and checks every CRC; ``index`` trusts a valid index,
            and reads only what is needed to count a file without one.
        take: Called with each valid payload.

    Raises:
        StorageError: The storage failed.
    """
    found = find_ranges(path, "", check)
    return join_ranges(found, [scan_range(part, check, take) for part in found.ranges], check)


def join_ranges(found: FileRanges, counts: Sequence[RangeCount], check: Check) -> FileCount:
    """Return the count of a file from those of its ranges.

    Args:
        found: The ranges of the file.
        counts: The results of all ranges, in any order.
        check: The check with which they were scanned.
    """
    if found.fault is not None or found.records != UNKNOWN:
        records = max(0, found.records)
        given = (found.warning,) * bool(found.warning)
        return FileCount(records, found.size, "", found.compression, found.fault, given)
    counts = sorted(counts, key=lambda count: count.start)
    warnings = [found.warning]
    if any(count.index_mismatch for count in counts):
        first = found.ranges[0]
        whole = scan_range(first._replace(kind="gzip", start=0, end=found.size, members=()), check)
        counts, records, fault = [whole], whole.records, whole.fault
        if fault is None:
            warnings = ["its index does not match its records, so the whole file was scanned"]
    else:
        records = sum(count.records for count in counts)
        fault = next((count.fault for count in counts if count.fault is not None), None)
    crc = _whole_crc(counts) if check == "records" and fault is None else ""
    warnings += [count.warning for count in counts]
    given = tuple(filter(None, warnings))
    return FileCount(records, found.size, crc, found.compression, fault, given)


def _whole_crc(counts: Sequence[RangeCount]) -> str:
    crc = 0
    for count in counts:
        crc = combine_crc32c(crc, count.crc32c, count.end - count.start)
    return f"{crc:08x}"


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
        content = decompress(raw_chunks(self._reader, 0, self.size), self.compression)
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
        compression, problem = detect_compression(reader)
        if problem:
            raise DamagedError(FileFault("not_tfrecord", 0, 0, problem))
        yield RecordReader(reader, compression, limit)
