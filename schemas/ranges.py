"""Ranges: the pieces that a TFRecord file is cut into, each scanned by itself.

A file with a sound index is cut at members, an uncompressed one anywhere: a range begins at the
first record that begins in it, found by its length's CRC, and ends where the last one ends. All
else is one range. ``tfrecords.join_ranges`` puts them together again.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import deflate
import google_crc32c

from shardmill.schemas.containers import (
    Compression,
    PackedError,
    gzip_chunks,
    raw_chunks,
    sniff,
    why_no_records,
    zlib_chunks,
)
from shardmill.schemas.errors import ChangedError
from shardmill.schemas.framing import HEADER_BYTES, combine_crc32c
from shardmill.schemas.index import IndexedMember, read_index
from shardmill.schemas.scan import DamagedError, Fault, RecordScanner, find_record
from shardmill.schemas.storage import RandomReader, open_storage

Check = Literal["records", "index"]
Kind = Literal["none", "gzip", "zlib", "indexed"]

RANGE_BYTES = 64 << 20
_WHOLE_MEMBER = 8 << 20  # larger ones are inflated as a stream
_WHOLE_INFLATED = 64 << 20
UNKNOWN = -1


class Range(NamedTuple):
    """A piece of a file that is scanned by itself.

    Attributes:
        path: The file.
        version: Of the file, as in ``Entry``; empty where it does not matter.
        size: Of the file.
        kind: How it is packed.
        start: First byte of the piece.
        end: The byte behind it.
        members: For an indexed file, bytes and records of each member in the piece.
        anchored: Whether a record is known to begin at ``start``.
    """

    path: str
    version: str
    size: int
    kind: Kind
    start: int
    end: int
    members: tuple[tuple[int, int], ...] = ()
    anchored: bool = False


class RangeCount(NamedTuple):
    """What was found in a range.

    Attributes:
        start: First byte of the range.
        end: The byte behind it.
        first: For an uncompressed file, where the first record that begins in the range begins;
            -1 when none does.
        next: Where the record after the last one begins, in the same bytes as ``first``; for
            compressed ranges, their uncompressed size.
        records: Records before the end or the fault.
        crc32c: CRC-32C of the range's bytes in the file; -1 when they were not all read.
        fault: What is wrong; its record, and where compressed its offset, count from the range.
        unsound: The index does not say what is there: the file must be read as a whole.
        warning: A sentence about what is sound and yet odd.
    """

    start: int
    end: int
    first: int = 0
    next: int = 0
    records: int = 0
    crc32c: int = UNKNOWN
    fault: Fault | None = None
    unsound: bool = False
    warning: str = ""


Take = Callable[[bytes], object]


class Found(NamedTuple):
    """What a look at a file says.

    Attributes:
        size: Of the file.
        compression: How it is packed.
        records: How many there are, where an index already tells; else -1.
        ranges: What is to be scanned.
        fault: Why it cannot be.
    """

    size: int
    compression: Compression = "none"
    records: int = UNKNOWN
    ranges: tuple[Range, ...] = ()
    fault: Fault | None = None


def find_ranges(path: str, version: str, check: Check, range_bytes: int = RANGE_BYTES) -> Found:
    """Returns the ranges of a file, or its count where nothing more needs to be read.

    Args:
        path: The file.
        version: Which version of it is meant; empty for any.
        check: How much will be read.
        range_bytes: About how large a range is.

    Raises:
        StorageError: The medium failed.
    """
    try:
        with open_file(path, version) as reader:
            compression, no_records = sniff(reader)
            found = Found(reader.size, compression)
            if no_records:
                return found._replace(fault=Fault("not_tfrecord", 0, 0, no_records))
            members = read_index(reader.read_at, reader.size) if compression == "gzip" else None
            if members is None:
                ranges = _byte_ranges(reader, path, compression, range_bytes)
            elif check == "index":
                return found._replace(records=sum(member.records for member in members))
            else:
                ranges = _member_ranges(reader, path, members, range_bytes)
            return found._replace(ranges=tuple(ranges))
    except DamagedError as error:
        return Found(0, fault=error.fault)


@contextlib.contextmanager
def open_file(path: str, version: str) -> Iterator[RandomReader]:
    """Opens a file, telling what stands in the way as a fault."""
    try:
        with open_storage(path).open_at(path) as reader:
            if version and reader.version != version:
                raise ChangedError("the file is another than the one that was listed")
            yield reader
    except FileNotFoundError as error:
        raise DamagedError(Fault("not_found", 0, 0, "the file does not exist")) from error
    except PermissionError as error:
        raise DamagedError(Fault("unreadable", 0, 0, "reading it is not allowed")) from error
    except ChangedError as error:
        raise DamagedError(Fault("changed", 0, 0, str(error))) from error


def _byte_ranges(
    reader: RandomReader, path: str, compression: Compression, range_bytes: int
) -> Iterator[Range]:
    step = range_bytes if compression == "none" else reader.size
    for start in range(0, reader.size, step):
        end = min(start + step, reader.size)
        yield Range(path, reader.version, reader.size, compression, start, end, anchored=start == 0)


def _member_ranges(
    reader: RandomReader, path: str, members: Sequence[IndexedMember], range_bytes: int
) -> Iterator[Range]:
    group: list[IndexedMember] = []
    for number, member in enumerate(members, 1):
        group.append(member)
        end = member.offset + member.num_bytes
        if end - group[0].offset >= range_bytes or number == len(members):
            listed = tuple((each.num_bytes, each.records) for each in group)
            yield Range(path, reader.version, reader.size, "indexed", group[0].offset, end, listed)
            group = []


def scan_range(part: Range, check: Check, take: Take | None = None) -> RangeCount:
    """Returns what is in a range; reads it in pieces, so memory stays flat.

    Args:
        part: The range.
        check: ``records`` checks every CRC; ``index`` only counts.
        take: Called with each payload that passed.

    Raises:
        StorageError: The medium failed.
    """
    try:
        with open_file(part.path, part.version) as reader:
            if part.kind == "none":
                if check == "index":
                    return _hop_range(reader, part)
                return _scan_plain(reader, part, take)
            if part.kind == "indexed":
                return _scan_members(reader, part, take)
            return _scan_stream(reader, part, check, take)
    except DamagedError as error:
        return RangeCount(part.start, part.end, fault=error.fault)


def _scan_plain(reader: RandomReader, part: Range, take: Take | None) -> RangeCount:
    """Scans the records that begin in a range of an uncompressed file."""
    first = part.start if part.anchored else _find_first(reader, part.start, part.end)
    begin = part.end if first < 0 else first
    scanner = RecordScanner(begin, part.end, take=take)
    inside = _Summed(raw_chunks(reader, part.start, part.end))
    behind = raw_chunks(reader, part.end, part.size)  # where the last record ends
    at = part.start
    try:
        for data in itertools.chain(inside, behind):
            if scanner.done:
                break
            if at + len(data) > begin:
                scanner.feed(data[max(0, begin - at) :] if at < begin else data)
            at += len(data)
        scanner.close()
        fault = None
    except (DamagedError, PackedError) as error:
        fault = fault_of(scanner, error)
    # Also after a fault: where a record only seemed to begin, the file may well be sound.
    crc = UNKNOWN if fault and fault.reason == "changed" else inside.crc_at_end()
    return RangeCount(part.start, part.end, first, scanner.offset, scanner.records, crc, fault)


class _Summed:
    """Passes pieces of a file on and sums them up."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._crc = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._crc = google_crc32c.extend(self._crc, chunk)
            yield chunk

    def crc_at_end(self) -> int:
        """Returns the CRC-32C of all pieces, those that nobody wanted too."""
        for _ in self:
            pass
        return self._crc


def _find_first(reader: RandomReader, start: int, end: int) -> int:
    """Returns where the first record that begins in a range seems to begin, or -1."""
    at = start
    while at < end:
        data = reader.read_at(at, min(reader.chunk, end - at + HEADER_BYTES - 1))
        found = find_record(data, reader.size - at)
        if found >= 0:
            return at + found
        at += max(1, len(data) - HEADER_BYTES + 1)
    return UNKNOWN


def _hop_range(reader: RandomReader, part: Range) -> RangeCount:
    """Counts the records that begin in a range by their lengths; payloads are skipped."""
    first = part.start if part.anchored else _find_first(reader, part.start, part.end)
    if first < 0:
        return RangeCount(part.start, part.end, first, part.end)
    at, records, read = first, 0, first
    try:
        while at < part.end:
            near = at - read < reader.gap
            data = reader.read_at(at, reader.chunk if near else HEADER_BYTES)
            read = at + len(data)
            scanner = RecordScanner(at, part.end, check=False)
            scanner.records = records
            scanner.feed(data)
            at, records = scanner.offset, scanner.records
            end = scanner.pending_end
            if end > part.size or (at < part.end and read == part.size and not end):
                raise scanner.cut(part.size)
            if not data:
                raise scanner.damaged("changed", "the file became shorter while it was read")
            if end:
                at, records = end, records + 1
    except DamagedError as error:
        return RangeCount(part.start, part.end, first, at, records, fault=error.fault)
    return RangeCount(part.start, part.end, first, at, records)


def _scan_members(reader: RandomReader, part: Range, take: Take | None) -> RangeCount:
    """Scans members that an index lists, each inflated and checked by itself."""
    scanner = RecordScanner(take=take)
    at, crc, fault, unsound = part.start, 0, None, False
    try:
        for num_bytes, records in part.members:
            seen = scanner.records
            if num_bytes <= _WHOLE_MEMBER:
                data = reader.read_at(at, num_bytes)
                crc = google_crc32c.extend(crc, data)
                pieces = _inflate(data, at)
            else:
                raw = _Summed(raw_chunks(reader, at, at + num_bytes))
                pieces = gzip_chunks(iter(raw), at)
            for piece in pieces:
                scanner.feed(piece)
            if num_bytes > _WHOLE_MEMBER:
                crc = combine_crc32c(crc, raw.crc_at_end(), num_bytes)
            unsound = not scanner.between or scanner.records - seen != records
            if unsound:
                break
            at += num_bytes
    except (PackedError, DamagedError) as error:
        fault = fault_of(scanner, error)
    return RangeCount(part.start, part.end, 0, scanner.offset, scanner.records, crc, fault, unsound)


def _inflate(member: bytes, at: int) -> Iterator[bytes]:
    """Returns what is in one gzip member; all at once where that is not much."""
    size = int.from_bytes(member[-4:], "little")
    if size <= _WHOLE_INFLATED:
        with contextlib.suppress(deflate.DeflateError, ValueError):
            data = deflate.gzip_decompress(member, size)
            if len(data) == size:
                return iter((data,))
    return gzip_chunks(iter((member,)), at)  # which says what is wrong


def _scan_stream(reader: RandomReader, part: Range, check: Check, take: Take | None) -> RangeCount:
    """Scans a compressed file from its beginning to its end."""
    scanner = RecordScanner(check=check == "records", take=take)
    raw = _Summed(raw_chunks(reader, part.start, part.end))
    warnings: list[str] = []
    fault = None
    data = b""
    try:
        if part.kind == "gzip":
            pieces = gzip_chunks(iter(raw), part.start, warnings.append)
        else:
            pieces = zlib_chunks(iter(raw))
        for data in pieces:
            scanner.feed(data)
        scanner.close()
    except (DamagedError, PackedError) as error:
        fault = fault_of(scanner, error)
    if fault is not None and fault.reason == "length_crc" and not fault.offset:
        why = why_no_records(data, part.size)
        fault = Fault("not_tfrecord", 0, 0, f"inside its {part.kind} data: {why}") if why else fault
    crc = raw.crc_at_end() if fault is None and check == "records" else UNKNOWN
    return RangeCount(
        part.start, part.end, 0, scanner.offset, scanner.records, crc, fault,
        warning="".join(warnings),
    )  # fmt: skip


def fault_of(scanner: RecordScanner, error: DamagedError | PackedError) -> Fault:
    """Returns what went wrong at the record that a scanner is at."""
    if isinstance(error, DamagedError):
        return error.fault
    return Fault(error.reason, scanner.records, scanner.offset, str(error))
