"""Sequential reading and counting of TFRecord files of any program.

The first bytes of a file decide how it is read, and its name nothing. A file that cannot be opened
or read is reported as a ``FileFault``.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import google_crc32c
import numpy as np

from shardmill.schemas.errors import ChangedError, FormatError
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
from shardmill.schemas.tfrecord.gzip_member import IndexedMember, read_index
from shardmill.schemas.tfrecord.inflate import (
    InflateError,
    early_stop_warning,
    empty_member_warning,
    find_early_stop,
    gzip_chunks,
    inflate_member,
    raw_chunks,
)
from shardmill.schemas.tfrecord.scanner import LOCATED, DamagedError, FileFault, RecordScanner

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
            reader = stack.enter_context(open_storage(path).open_at(path, size, version))
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


Check = Literal["records", "index"]
Take = Callable[[bytes], object]

INFLATE_COST = 4  # relative to reading
_WHOLE_MEMBER = 8 << 20  # larger members are read and inflated as a stream
_UNKNOWN_SIZE = 1 << 62
_INDEX_MISMATCH = "its index does not match its records, so the whole file was scanned"


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


def count_file(
    path: str,
    check: Check = "records",
    take: Take | None = None,
    version: str = "",
    size: int = -1,
) -> FileCount:
    """Return the number of records of a TFRecord file, which is read in chunks.

    Args:
        path: Path or URI of the file.
        check: ``records`` reads everything and checks every CRC; ``index`` trusts a valid index,
            and reads no more of a file without one than counting needs.
        take: Called with each valid payload.
        version: Expected version of the file, as in ``Entry``; empty: any.
        size: Expected size in bytes; negative: any.

    Raises:
        StorageError: The storage failed.
    """
    file_count = FileCount(0, 0)
    try:
        with open_file(path, version, size) as reader:
            file_count = FileCount(0, reader.size)
            compression = detect_compression(reader)
            file_count = file_count._replace(compression=compression)
            if compression == "gzip":
                members = read_index(reader.read_at, reader.size)
                if members is not None:
                    return _count_indexed(reader, members, check, take)
            if compression == "none" and check == "index":
                return _count_by_lengths(reader)
            return _scan_stream(reader, compression, check, take)
    except DamagedError as error:
        return file_count._replace(fault=error.fault)


def _count_indexed(
    reader: RandomReader, members: Sequence[IndexedMember], check: Check, take: Take | None
) -> FileCount:
    file_count = FileCount(0, reader.size, "", "gzip", warnings=tuple(_warnings(members)))
    if check == "index":
        return file_count._replace(records=sum(member.records for member in members))
    scanned = _scan_members(reader, members, take)
    if scanned is not None:
        return file_count._replace(records=scanned[0], crc32c=scanned[1])
    whole = _scan_stream(reader, "gzip", check)
    before = file_count.warnings if whole.fault else (_INDEX_MISMATCH,)
    return whole._replace(warnings=before + whole.warnings)


def _warnings(members: Sequence[IndexedMember]) -> Iterator[str]:
    """Yield a warning if TensorFlow would not read all records of a file."""
    # The index shows both cases without inflating a member.
    for member, following in itertools.pairwise(members):
        if not member.records and following.records:
            yield empty_member_warning(member.offset)
            return
    ends = [member.offset + member.num_bytes for member in members]
    end = find_early_stop(ends, ends[-1])
    if end >= 0:
        yield early_stop_warning(end)


def _summed(chunks: Iterable[bytes], crc: google_crc32c.Checksum) -> Iterator[bytes]:
    """Yield chunks of a file after adding them to its CRC-32C."""
    for chunk in chunks:
        crc.update(chunk)
        yield chunk


def _count_by_lengths(reader: RandomReader) -> FileCount:
    """Count the records of an uncompressed file by their lengths, without reading all payloads."""
    at = records = read = 0
    while at < reader.size:
        # Small records: one read has many headers. Large records: only their headers are read.
        size = reader.chunk if at - read < reader.gap else HEADER_BYTES
        data = reader.read_at(at, size)
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
            return FileCount(error.fault.record, reader.size, fault=error.fault)
        if end:
            at, records = end, records + 1
    return FileCount(records, reader.size)


def _scan_members(
    reader: RandomReader, members: Sequence[IndexedMember], take: Take | None
) -> tuple[int, str] | None:
    """Scan the members of an indexed file; each is inflated and checked alone.

    Returns:
        The number of records and the CRC-32C of the file; None if the file is damaged or differs
        from its index.
    """
    # One scanner for all members: records that span members are detected, not lost.
    scanner = RecordScanner(take=take)
    crc = google_crc32c.Checksum()
    try:
        for member, data in read_members(reader, members):
            expected = scanner.records + member.records
            if data:
                crc.update(data)
                pieces = inflate_member(data, member.offset)
            else:
                chunks = raw_chunks(reader, member.offset, member.offset + member.num_bytes)
                pieces = gzip_chunks(_summed(chunks, crc), member.offset)
            for piece in pieces:
                scanner.feed(piece)
            if not scanner.is_between_records or scanner.records != expected:
                # Later members may have other bounds than the index says, so none is scanned.
                return None
    except (DamagedError, InflateError) as error:
        if isinstance(error, DamagedError) and error.fault.reason not in LOCATED:
            raise
        # The member may be damaged, or the index may name bytes that are not a member. Only a
        # scan of the whole file, which does not use the index, distinguishes them.
        return None
    return scanner.records, crc.hexdigest().decode()


def read_members(
    reader: RandomReader, members: Sequence[IndexedMember]
) -> Iterator[tuple[IndexedMember, bytes]]:
    """Yield consecutive members with their bytes, which are empty for a large member.

    Consecutive small members are read with one call.
    """
    held, held_at = b"", 0
    for number, member in enumerate(members, 1):
        at, num_bytes, _ = member
        if num_bytes > _WHOLE_MEMBER:
            yield member, b""
            continue
        if at + num_bytes > held_at + len(held):
            length = num_bytes
            # Read ahead as many members as fit one call of the storage.
            for more in members[number:]:
                if length + more.num_bytes > reader.chunk:
                    break
                length += more.num_bytes
            held, held_at = reader.read_at(at, length), at
        yield member, held[at - held_at : at - held_at + num_bytes]


def _scan_stream(
    reader: RandomReader, compression: Compression, check: Check, take: Take | None = None
) -> FileCount:
    """Scan a file from beginning to end, without an index."""
    scanner, crc = RecordScanner(check=check == "records", take=take), google_crc32c.Checksum()
    content = _summed(raw_chunks(reader, 0, reader.size), crc)
    warnings: list[str] = []
    fault = None
    try:
        if compression == "gzip":
            content = gzip_chunks(content, warn=warnings.append)
        for _ in scan_content(scanner, content, compression, reader.size):
            pass
    except DamagedError as error:
        fault = error.fault
    whole = "" if fault or check == "index" else crc.hexdigest().decode()
    return FileCount(scanner.records, reader.size, whole, compression, fault, tuple(warnings))


def scan_content(
    scanner: RecordScanner, content: Iterator[bytes], kind: Compression, size: int
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


def _refine_fault(fault: FileFault, kind: Compression, head: bytes) -> FileFault:
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
    if other:
        return FileFault("not_tfrecord", 0, 0, message)
    return fault


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
