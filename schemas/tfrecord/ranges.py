"""Splitting of TFRecord files into byte ranges that are scanned independently.

A file with a valid index is split between members. An uncompressed file is split anywhere: the
scan of a range begins at the first record that begins in it, which is found by the CRC of its
length, and ends with the last one. Any other file is one range. ``reader.join_ranges`` combines
the counts of a file's ranges.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from shardmill.schemas.storage import RandomReader
from shardmill.schemas.tfrecord.gzip_member import IndexedMember, read_index
from shardmill.schemas.tfrecord.inflate import (
    early_stop_warning,
    empty_member_warning,
    find_early_stop,
)
from shardmill.schemas.tfrecord.open import Compression, detect_compression, open_file
from shardmill.schemas.tfrecord.scanner import DamagedError, FileFault

Check = Literal["records", "index"]
RangeKind = Literal["none", "gzip", "zlib", "indexed"]

RANGE_BYTES = 64 << 20
_INFLATE_COST = 4  # relative to reading
UNKNOWN = -1


class Range(NamedTuple):
    """A byte range of a file that is scanned independently.

    Attributes:
        path: Path or URI of the file.
        version: Version of the file, as in ``Entry``; empty: any.
        size: Size of the file in bytes.
        kind: Compression of the file; ``indexed`` if it is gzip with a valid index.
        start: Offset of the first byte of the range.
        end: Offset after its last byte.
        members: For an indexed file, the bytes and records of each member in the range.
        anchored: Whether a record is known to begin at ``start``.
    """

    path: str
    version: str
    size: int
    kind: RangeKind
    start: int
    end: int
    members: tuple[tuple[int, int], ...] = ()
    anchored: bool = False

    @property
    def cost(self) -> int:
        """Estimated time to scan the range, in bytes that can be read in the same time."""
        return (self.end - self.start) * (1 if self.kind == "none" else _INFLATE_COST)


class FileRanges(NamedTuple):
    """The ranges of a file.

    Attributes:
        size: Size of the file in bytes.
        compression: Compression of the file.
        records: Number of records, if the index is trusted; else -1.
        ranges: The ranges that must be scanned.
        fault: Why the file cannot be scanned.
        warning: A sentence about valid data that other programs read differently.
    """

    size: int
    compression: Compression = "none"
    records: int = UNKNOWN
    ranges: tuple[Range, ...] = ()
    fault: FileFault | None = None
    warning: str = ""


def find_ranges(
    path: str, version: str, check: Check, range_bytes: int = RANGE_BYTES
) -> FileRanges:
    """Return the ranges of a file, or its number of records if no range must be scanned.

    Args:
        path: Path or URI of the file.
        version: Expected version of the file; empty: any.
        check: ``records`` reads all ranges; ``index`` trusts a valid index.
        range_bytes: Approximate size of a range.

    Raises:
        StorageError: The storage failed.
    """
    try:
        with open_file(path, version) as reader:
            compression, problem = detect_compression(reader)
            found = FileRanges(reader.size, compression)
            if problem:
                return found._replace(fault=FileFault("not_tfrecord", 0, 0, problem))
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
        return FileRanges(0, fault=error.fault)


def _warning(members: Sequence[IndexedMember]) -> str:
    """Return a warning if TensorFlow would not read all records of a file; else empty."""
    # The index shows both cases without inflating a member.
    for member, following in itertools.pairwise(members):
        if not member.records and following.records:
            return empty_member_warning(member.offset)
    ends = [member.offset + member.num_bytes for member in members]
    end = find_early_stop(ends, ends[-1])
    return early_stop_warning(end) if end >= 0 else ""


def _byte_ranges(
    reader: RandomReader, path: str, compression: Compression, range_bytes: int
) -> Iterator[Range]:
    # Without an index, a compressed stream can only be read from its beginning.
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
        # Ranges end at members, so each is inflated without the others.
        if end - group[0].offset >= range_bytes or number == len(members):
            listed = tuple((each.num_bytes, each.records) for each in group)
            yield Range(path, reader.version, reader.size, "indexed", group[0].offset, end, listed)
            group = []
