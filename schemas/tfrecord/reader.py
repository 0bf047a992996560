"""Counting and reading any TFRecord file, ours or other people's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardmill.schemas.storage import RandomReader
from shardmill.schemas.tfrecord.compression import (
    Compression,
    PackedError,
    gzip_chunks,
    raw_chunks,
    sniff,
    zlib_chunks,
)
from shardmill.schemas.tfrecord.framing import HEADER_BYTES, combine_crc32c
from shardmill.schemas.tfrecord.open import LOST, open_file
from shardmill.schemas.tfrecord.ranges import (
    UNKNOWN,
    Check,
    Found,
    RangeCount,
    explain,
    fault_of,
    find_ranges,
    scan_range,
)
from shardmill.schemas.tfrecord.scanner import DamagedError, Fault, RecordScanner

__all__ = ["DamagedError", "FileCount", "RecordReader", "count_file", "join_ranges", "open_records"]


class FileCount(NamedTuple):
    """What was found in a file.

    Attributes:
        records: Records before the end or the fault.
        num_bytes: The file's size.
        crc32c: CRC-32C of the file as 8 hexadecimal digits; empty when it was not read whole.
        compression: How it is packed.
        fault: What is wrong with it.
        warnings: Sentences about what is sound and yet odd.
    """

    records: int
    num_bytes: int
    crc32c: str = ""
    compression: Compression = "none"
    fault: Fault | None = None
    warnings: tuple[str, ...] = ()


def count_file(path: str, check: Check = "records") -> FileCount:
    """Returns what is in a TFRecord file.

    Args:
        path: A local path or gs:// URI.
        check: ``records`` reads everything and checks every CRC; ``index`` trusts a sound index
            and otherwise reads no more than it must to count.

    Raises:
        StorageError: The medium failed.
    """
    found = find_ranges(path, "", check)
    return join_ranges(found, [scan_range(part, check) for part in found.ranges], check)


def join_ranges(found: Found, counts: Sequence[RangeCount], check: Check) -> FileCount:
    """Returns the count of a file from those of its ranges, in any order.

    A range that does not begin where the one before ended is scanned again from there, so the
    result is always that of one scan from the beginning.

    Args:
        found: What a look at the file said.
        counts: What was found in each of its ranges.
        check: How much was read.
    """
    if found.fault is not None or found.records != UNKNOWN:
        records = max(0, found.records)
        warnings = (found.warning,) * bool(found.warning)
        return FileCount(records, found.size, "", found.compression, found.fault, warnings)
    counts = sorted(counts, key=lambda count: count.start)
    told = [found.warning]
    if found.compression == "none":
        records, fault = _chain(found, counts, check)
    elif any(count.unsound for count in counts):
        first = found.ranges[0]
        whole = scan_range(first._replace(kind="gzip", start=0, end=found.size, members=()), check)
        counts, records, fault = [whole], whole.records, whole.fault
        if fault is None:
            told = ["its index does not say what is in it, so all of it was read as a whole"]
    else:
        records, fault = _sum(counts)
    crc = _whole_crc(counts) if check == "records" and fault is None else ""
    warnings = tuple(filter(None, (*told, *(count.warning for count in counts))))
    return FileCount(records, found.size, crc, found.compression, fault, warnings)


def _chain(found: Found, counts: Sequence[RangeCount], check: Check) -> tuple[int, Fault | None]:
    """Joins ranges of an uncompressed file, each from where the one before ended."""
    records = at = 0
    for part, count in zip(found.ranges, counts, strict=True):
        if count.fault is not None and count.fault.reason in LOST:
            return records, count.fault
        if at >= part.end:
            continue  # a record from before covers it
        if count.first != at:
            count = scan_range(part._replace(start=at, anchored=True), check)  # noqa: PLW2901
        if count.fault is not None:
            return records + count.fault.record, count.fault._replace(
                record=records + count.fault.record
            )
        records += count.records
        at = count.next
    return records, None


def _sum(counts: Sequence[RangeCount]) -> tuple[int, Fault | None]:
    """Adds up ranges of a compressed file, up to the first fault."""
    records = offset = 0
    for count in counts:
        if count.fault is not None:
            fault = count.fault
            fault = fault._replace(record=records + fault.record, offset=offset + fault.offset)
            return fault.record, fault
        records += count.records
        offset += count.next
    return records, None


def _whole_crc(counts: Sequence[RangeCount]) -> str:
    crc = 0
    for count in counts:
        crc = combine_crc32c(crc, count.crc32c, count.end - count.start)
    return f"{crc:08x}"


class RecordReader:
    """The records of an open file: iterate over it for their payloads.

    Attributes:
        compression: How the file is packed.
        size: Its size in bytes.
    """

    def __init__(self, reader: RandomReader, compression: Compression) -> None:
        self.compression = compression
        self.size = reader.size
        self._reader = reader

    def __iter__(self) -> Iterator[bytes]:
        """Yields each payload that passed its checks.

        Raises:
            DamagedError: At the first that does not, and where the file is cut.
        """
        taken: list[bytes] = []
        scanner = RecordScanner(take=taken.append)
        chunks = raw_chunks(self._reader, 0, self.size)
        if self.compression == "gzip":
            chunks = gzip_chunks(chunks)
        elif self.compression == "zlib":
            chunks = zlib_chunks(chunks)
        head = b""
        try:
            for chunk in chunks:
                if len(head) < HEADER_BYTES:
                    head += chunk
                try:
                    scanner.feed(chunk)
                finally:
                    yield from taken
                    taken.clear()
                if self.compression == "none" and scanner.pending_end > self.size:
                    raise scanner.cut(self.size)
            scanner.close()
        except (DamagedError, PackedError) as error:
            fault = fault_of(scanner, error)
            raise DamagedError(explain(fault, self.compression, head)) from error


@contextlib.contextmanager
def open_records(path: str) -> Iterator[RecordReader]:
    """Opens a TFRecord file to be read from its beginning.

    Args:
        path: A local path or gs:// URI.

    Raises:
        DamagedError: It cannot be opened, or holds no TFRecords.
        StorageError: The medium failed.
    """
    with open_file(path, "") as reader:
        compression, why = sniff(reader)
        if why:
            raise DamagedError(Fault("not_tfrecord", 0, 0, why))
        yield RecordReader(reader, compression)
