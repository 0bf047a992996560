"""Ranges: the pieces that a TFRecord file is cut into, each scanned by itself.

A file with a sound index is cut at members, an uncompressed one anywhere: a range begins at the
first record that begins in it, found by its length's CRC, and ends where the last one ends. All
else is one range. ``tfrecords.join_ranges`` puts them together again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import google_crc32c

from shardmill.schemas.storage import RandomReader
from shardmill.schemas.tfrecord.compression import (
    Compression,
    PackedError,
    describe_other_content,
    early_stop,
    empty_member,
    gzip_chunks,
    inflate_member,
    raw_chunks,
    sniff,
    stops_early,
    zlib_chunks,
)
from shardmill.schemas.tfrecord.framing import HEADER_BYTES
from shardmill.schemas.tfrecord.member_index import IndexedMember, read_index
from shardmill.schemas.tfrecord.open import LOST, open_file
from shardmill.schemas.tfrecord.scanner import DamagedError, Fault, RecordScanner, find_record

Check = Literal["records", "index"]
Kind = Literal["none", "gzip", "zlib", "indexed"]

RANGE_BYTES = 64 << 20
_INFLATING = 4  # times as long as reading
_WHOLE_MEMBER = 8 << 20  # larger ones are read and inflated as a stream
_ANY_SIZE = 1 << 62  # where a size is not known
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

    @property
    def cost(self) -> int:
        """How long it takes to scan, in bytes that are only read."""
        return (self.end - self.start) * (1 if self.kind == "none" else _INFLATING)


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
        warning: A sentence about what is sound and yet odd.
    """

    size: int
    compression: Compression = "none"
    records: int = UNKNOWN
    ranges: tuple[Range, ...] = ()
    fault: Fault | None = None
    warning: str = ""


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
                return found._replace(ranges=tuple(ranges))
            found = found._replace(warning=_warning(members))
            if check == "index":
                return found._replace(records=sum(member.records for member in members))
            ranges = _member_ranges(reader, path, members, range_bytes)
            return found._replace(ranges=tuple(ranges))
    except DamagedError as error:
        return Found(0, fault=error.fault)


def _warning(members: Sequence[IndexedMember]) -> str:
    """Returns what TensorFlow would make of a file, where that is not all of it."""
    for member, following in itertools.pairwise(members):
        if not member.records and following.records:
            return empty_member(member.offset)
    ends = [member.offset + member.num_bytes for member in members]
    end = stops_early(ends, ends[-1])
    return early_stop(end) if end >= 0 else ""


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
        with open_file(part.path, part.version, part.size) as reader:
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
    raw = _Summed()
    inside = raw.over(raw_chunks(reader, part.start, part.end))
    behind = raw_chunks(reader, part.end, part.size)  # where the last record ends
    at = part.start
    try:
        for data in itertools.chain(inside, behind):
            if scanner.done:
                break
            if at + len(data) > begin:
                scanner.feed(data[max(0, begin - at) :] if at < begin else data)
            if scanner.pending_end > part.size:
                raise scanner.cut(part.size)
            at += len(data)
        scanner.close()
        fault = None
    except DamagedError as error:
        if error.fault.reason in LOST:
            raise
        fault = error.fault
    # Also after a fault: where a record only seemed to begin, the file may well be sound.
    for _ in inside:
        pass
    return RangeCount(part.start, part.end, first, scanner.offset, scanner.records, raw.crc, fault)


class _Summed:
    """The CRC-32C of pieces of a file, one after the other."""

    def __init__(self) -> None:
        self.crc = 0

    def add(self, data: bytes) -> bytes:
        """Returns a piece after adding it."""
        self.crc = google_crc32c.extend(self.crc, data)
        return data

    def over(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Passes pieces on."""
        return map(self.add, chunks)


def _find_first(reader: RandomReader, start: int, end: int) -> int:
    """Returns where the first record that begins from start to end seems to begin, or -1."""
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
    first = part.start
    if not part.anchored:  # where records are large, hopping on from the range before is quicker
        first = _find_first(reader, part.start, min(part.start + reader.chunk, part.end))
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
            if end:
                at, records = end, records + 1
    except DamagedError as error:
        fault = error.fault
        return RangeCount(part.start, part.end, first, fault.offset, fault.record, fault=fault)
    return RangeCount(part.start, part.end, first, at, records)


def _scan_members(reader: RandomReader, part: Range, take: Take | None) -> RangeCount:
    """Scans members that an index lists, each inflated and checked by itself."""
    scanner = RecordScanner(take=take)
    raw = _Summed()
    fault, unsound = None, False
    try:
        for at, num_bytes, records, data in _read_members(reader, part):
            seen = scanner.records
            if data:
                pieces = inflate_member(raw.add(data), at)
            else:
                pieces = gzip_chunks(raw.over(raw_chunks(reader, at, at + num_bytes)), at)
            for piece in pieces:
                scanner.feed(piece)
            unsound = not scanner.between or scanner.records - seen != records
            if unsound:
                break
    except PackedError:
        unsound = True  # it may only be cut in other places than the index says
    except DamagedError as error:
        fault = error.fault
        unsound = not scanner.records and fault.reason not in LOST  # it may hold none at all
    crc = UNKNOWN if fault or unsound else raw.crc
    return RangeCount(part.start, part.end, 0, scanner.offset, scanner.records, crc, fault, unsound)


def _read_members(reader: RandomReader, part: Range) -> Iterator[tuple[int, int, int, bytes]]:
    """Yields where each member begins, its size, records and bytes: none where they are too many.

    Small ones are read together.
    """
    at = held_at = part.start
    held = b""
    for number, (num_bytes, records) in enumerate(part.members, 1):
        if num_bytes > _WHOLE_MEMBER:
            yield at, num_bytes, records, b""
        else:
            if at + num_bytes > held_at + len(held):
                length = num_bytes
                for more, _ in part.members[number:]:
                    if length + more > reader.chunk:
                        break
                    length += more
                held, held_at = reader.read_at(at, length), at
            yield at, num_bytes, records, held[at - held_at : at - held_at + num_bytes]
        at += num_bytes


def _scan_stream(reader: RandomReader, part: Range, check: Check, take: Take | None) -> RangeCount:
    """Scans a compressed file from its beginning to its end."""
    scanner = RecordScanner(check=check == "records", take=take)
    raw = _Summed()
    chunks = raw.over(raw_chunks(reader, part.start, part.end))
    warnings: list[str] = []
    fault = None
    head = b""
    try:
        if part.kind == "gzip":
            pieces = gzip_chunks(chunks, part.start, warnings.append)
        else:
            pieces = zlib_chunks(chunks)
        for data in pieces:
            if len(head) < HEADER_BYTES:
                head += data
            scanner.feed(data)
        scanner.close()
    except (DamagedError, PackedError) as error:
        fault = explain(fault_of(scanner, error), part.kind, head)
    crc = raw.crc if fault is None and check == "records" else UNKNOWN
    return RangeCount(
        part.start, part.end, 0, scanner.offset, scanner.records, crc, fault,
        warning="".join(warnings),
    )  # fmt: skip


def explain(fault: Fault, kind: Kind, head: bytes) -> Fault:
    """Returns a fault, or another one where compressed data holds no TFRecords at all.

    Args:
        fault: The fault.
        kind: How the file is packed.
        head: How it begins, inflated.
    """
    if kind == "none" or fault.reason != "length_crc" or fault.offset:
        return fault
    other = describe_other_content(head, _ANY_SIZE)
    message = f"its {kind} data does not hold TFRecords but {other}"
    return Fault("not_tfrecord", 0, 0, message) if other else fault


def fault_of(scanner: RecordScanner, error: DamagedError | PackedError) -> Fault:
    """Returns what went wrong at the record that a scanner is at."""
    if isinstance(error, DamagedError):
        return error.fault
    return Fault(error.reason, scanner.records, scanner.offset, str(error))
