"""Scanning of one byte range of a TFRecord file, which ``ranges.find_ranges`` chose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import google_crc32c

from shardmill.schemas.storage import RandomReader
from shardmill.schemas.tfrecord.framing import HEADER_BYTES
from shardmill.schemas.tfrecord.inflate import (
    InflateError,
    decompress,
    gzip_chunks,
    inflate_member,
    raw_chunks,
)
from shardmill.schemas.tfrecord.ranges import (
    ACCESS_REASONS,
    UNKNOWN,
    Check,
    Range,
    RangeKind,
    describe_other_content,
    open_file,
)
from shardmill.schemas.tfrecord.scanner import DamagedError, FileFault, RecordScanner

_WHOLE_MEMBER = 8 << 20  # larger members are read and inflated as a stream
_UNKNOWN_SIZE = 1 << 62

Take = Callable[[bytes], object]


class RangeCount(NamedTuple):
    """Result of the scan of a range.

    Attributes:
        start: Offset of the first byte of the range.
        end: Offset after its last byte.
        records: Number of records before the end or the fault.
        crc32c: CRC-32C of the range's bytes in the file; -1 if they were not all read.
        fault: The first problem. Its record is relative to the range.
        index_mismatch: Whether the range is damaged or differs from the index: the file must be
            scanned as a whole.
        warning: A sentence about valid data that other programs read differently.
    """

    start: int
    end: int
    records: int = 0
    crc32c: int = UNKNOWN
    fault: FileFault | None = None
    index_mismatch: bool = False
    warning: str = ""


def scan_range(part: Range, check: Check, take: Take | None = None) -> RangeCount:
    """Return the result of scanning a range; the range is read in chunks.

    Args:
        part: The range.
        check: ``records`` checks every CRC; ``index`` only counts.
        take: Called with each valid payload.

    Raises:
        StorageError: The storage failed.
    """
    try:
        with open_file(part.path, part.version, part.size) as reader:
            if part.kind == "none" and check == "index":
                return _count_by_lengths(reader)
            if part.kind == "indexed":
                return _scan_members(reader, part, take)
            return _scan_stream(reader, part, check, take)
    except DamagedError as error:
        return RangeCount(part.start, part.end, fault=error.fault)


class _RunningCrc:
    """CRC-32C of the chunks of a file that passed through."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, data: bytes) -> bytes:
        """Add a chunk and return it."""
        self.value = google_crc32c.extend(self.value, data)
        return data

    def over(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Add and yield each chunk."""
        return map(self.add, chunks)


def _count_by_lengths(reader: RandomReader) -> RangeCount:
    """Count the records of an uncompressed file by their lengths, without reading all payloads."""
    at = records = read = 0
    while at < reader.size:
        # Small records: one read has many headers. Large records: only their headers are read.
        near = at - read < reader.gap
        data = reader.read_at(at, reader.chunk if near else HEADER_BYTES)
        read = at + len(data)
        # A new scanner for each read, since the bytes of large payloads between are skipped.
        scanner = RecordScanner(at, check=False)
        scanner.records = records
        try:
            scanner.feed(data)
            at, records, end = scanner.offset, scanner.records, scanner.pending_end
            if end > reader.size or (at < read == reader.size and not end):
                raise scanner.truncated_error(reader.size)
        except DamagedError as error:
            return RangeCount(0, reader.size, error.fault.record, fault=error.fault)
        if end:
            at, records = end, records + 1
    return RangeCount(0, reader.size, records)


def _scan_members(reader: RandomReader, part: Range, take: Take | None) -> RangeCount:
    """Scan the members of an indexed file, each of which is inflated and checked on its own."""
    # One scanner for all members: records that span members are detected, not lost.
    scanner = RecordScanner(take=take)
    crc = _RunningCrc()
    found = RangeCount(part.start, part.end)
    try:
        for at, num_bytes, records, data in read_members(reader, part):
            expected = scanner.records + records
            if data:
                pieces = inflate_member(crc.add(data), at)
            else:
                pieces = gzip_chunks(crc.over(raw_chunks(reader, at, at + num_bytes)), at)
            for piece in pieces:
                scanner.feed(piece)
            if not scanner.is_between_records or scanner.records != expected:
                # Later members may have other bounds than the index says, so none is scanned.
                return found._replace(index_mismatch=True)
    except (DamagedError, InflateError) as error:
        if isinstance(error, DamagedError) and error.fault.reason in ACCESS_REASONS:
            raise
        # The member may be damaged, or the index names other bytes than those of a member. Only a
        # scan of the whole file, which does not use the index, distinguishes them.
        return found._replace(index_mismatch=True)
    return found._replace(records=scanner.records, crc32c=crc.value)


def read_members(reader: RandomReader, part: Range) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield each member's offset, size, number of records and bytes (empty for a large member).

    Consecutive small members are read with one call.
    """
    at = held_at = part.start
    held = b""
    for number, (num_bytes, records) in enumerate(part.members, 1):
        if num_bytes > _WHOLE_MEMBER:
            yield at, num_bytes, records, b""
        else:
            if at + num_bytes > held_at + len(held):
                length = num_bytes
                # Read ahead as many members as fit one call of the storage.
                for more, _ in part.members[number:]:
                    if length + more > reader.chunk:
                        break
                    length += more
                held, held_at = reader.read_at(at, length), at
            yield at, num_bytes, records, held[at - held_at : at - held_at + num_bytes]
        at += num_bytes


def _scan_stream(reader: RandomReader, part: Range, check: Check, take: Take | None) -> RangeCount:
    """Scan a file without an index from beginning to end."""
    scanner, crc = RecordScanner(check=check == "records", take=take), _RunningCrc()
    chunks = crc.over(raw_chunks(reader, part.start, part.end))
    warnings: list[str] = []
    fault = None
    try:
        content = decompress(chunks, part.kind, warnings.append)
        for _ in scan_content(scanner, content, part.kind, part.size):
            pass
    except DamagedError as error:
        if error.fault.reason in ACCESS_REASONS:
            raise
        fault = error.fault
    warning = "".join(warnings)
    return RangeCount(part.start, part.end, scanner.records, crc.value, fault, warning=warning)


def scan_content(
    scanner: RecordScanner, content: Iterator[bytes], kind: RangeKind, size: int
) -> Iterator[None]:
    """Feed the decompressed content of a file to a scanner; yield after each chunk.

    Args:
        scanner: The scanner.
        content: The content, which may raise InflateError.
        kind: Compression of the file.
        size: Bytes of the file.

    Raises:
        DamagedError: The content is damaged. The records before the damage have been scanned.
    """
    head = b""
    try:
        for chunk in content:
            if len(head) < HEADER_BYTES:
                head += chunk
            try:
                scanner.feed(chunk)
            finally:  # a fault leaves valid records before it, which the caller takes first
                yield
            # A forged length could otherwise make the scan read the rest of the file.
            if kind == "none" and scanner.pending_end > size:
                raise scanner.truncated_error(size)
        scanner.close()
    except DamagedError as error:
        raise DamagedError(_refine_fault(error.fault, kind, head)) from error
    except InflateError as error:
        fault = FileFault(error.reason, scanner.records, scanner.offset, str(error))
        raise DamagedError(fault) from error


def _refine_fault(fault: FileFault, kind: RangeKind, head: bytes) -> FileFault:
    """Return a fault, or ``not_tfrecord`` instead of it if compressed data is not TFRecords.

    Args:
        fault: The fault that the scanner found.
        kind: Compression of the file.
        head: First decompressed bytes.
    """
    if kind == "none" or fault.reason != "length_crc" or fault.offset:
        return fault
    other = describe_other_content(head, _UNKNOWN_SIZE)
    message = f"its {kind} data does not hold TFRecords but {other}"
    return FileFault("not_tfrecord", 0, 0, message) if other else fault
