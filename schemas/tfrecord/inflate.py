"""Decompression of gzip data, as streams in bounded memory.

It also detects valid gzip files that TensorFlow does not read to their end.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import deflate

from shardmill.schemas.errors import FormatError
from shardmill.schemas.file_signatures import GZIP
from shardmill.schemas.storage import RandomReader
from shardmill.schemas.tfrecord.gzip_member import FHCRC, GZIP_TRAILER_BYTES, deflate_offset

TENSORFLOW_READS = 256 << 10  # bytes of each read of TensorFlow's GZIP reader
_MAX_OUTPUT = 1 << 18  # bytes of one call: limits the memory that a decompression bomb can take
_FIRST_INPUT = 1 << 16  # bytes fed at the start of a member: zlib copies the input that it leaves
_MAX_WHOLE = 16 << 20  # larger members are inflated as a stream
_GZIP_BITS = 31  # zlib's window bits for the gzip format
_MAX_DATALESS = 16  # bytes at the end of a member that may yield no data: trailer and last codes


class InflateError(FormatError):
    """Compressed data is damaged; ``reason`` is one of ``scanner.FAULTS``."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def raw_chunks(reader: RandomReader, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file from start to end."""
    for at in range(start, end, reader.chunk):
        yield reader.read_at(at, min(reader.chunk, end - at))


def empty_member_warning(offset: int) -> str:
    """Return the warning for an empty gzip member that is followed by others."""
    return (
        f"the gzip member at byte {offset:,} is empty: TensorFlow may stop reading there and lose "
        "the records after it"
    )


def find_early_stop(ends: Iterable[int], size: int) -> int:
    """Return the end of a gzip member after which TensorFlow loses the rest of a file, or -1.

    Its reader takes a call that inflates nothing for the end of the data if the file has no more
    bytes. That happens when its last read, of 256 KiB, begins within the last bytes of a member,
    which hold checksums and no data. Seen in TensorFlow 2.21 with the default buffer size.

    Args:
        ends: Offsets at which members end.
        size: Size of the file in bytes.
    """
    last = (size - 1) // TENSORFLOW_READS * TENSORFLOW_READS
    if last <= 0:
        return -1
    return next((end for end in ends if 0 < end - last <= _MAX_DATALESS and end < size), -1)


def early_stop_warning(end: int) -> str:
    """Return the warning for the offset that ``find_early_stop`` returns."""
    return (
        f"a gzip member ends at byte {end:,}, just after a multiple of 256 KiB: TensorFlow stops "
        "reading there and loses the records after it"
    )


def inflate_member(member: bytes, offset: int) -> Iterator[bytes]:
    """Return the content of one gzip member, in one piece if it is small.

    Args:
        member: The bytes of the member.
        offset: Offset of the member in its file, for messages.

    Raises:
        InflateError: The member is damaged or truncated, or other data follows it; raised when
            the result is iterated over.
    """
    size = int.from_bytes(member[-4:], "little")
    if 0 < size <= _MAX_WHOLE:  # libdeflate checks nothing if the size is 0
        with contextlib.suppress(deflate.DeflateError, ValueError):
            data = bytes(deflate.gzip_decompress(member, size))
            if _is_one_member(member, data):
                return iter((data,))
    return gzip_chunks(iter((member,)), offset)  # zlib reports the problem


def _is_one_member(member: bytes, data: bytes) -> bool:
    """Return whether member is a single gzip member with the content data.

    libdeflate inflates the first member and checks neither following bytes nor the header's CRC.
    """
    if member[3] & FHCRC:
        return False
    end = _stored_end(member)
    if end:
        return end + GZIP_TRAILER_BYTES == len(member)
    # The trailer of the inflated member must be the last bytes and occur nowhere before.
    trailer = struct.pack("<II", deflate.crc32(data), len(data))
    return member.find(trailer) == len(member) - GZIP_TRAILER_BYTES


def _stored_end(member: bytes) -> int:
    """Return where the deflate data of a valid member ends; 0 unless all blocks are stored."""
    at = deflate_offset(member)
    while at > 0 and member[at] <= 1:  # RFC 1951 section 3.2.3: BTYPE 0; bit 0 is BFINAL
        is_last = member[at]
        at += 5 + int.from_bytes(member[at + 1 : at + 3], "little")
        if is_last:
            return at
    return 0


def gzip_chunks(
    chunks: Iterator[bytes], start: int = 0, warn: Callable[[str], object] | None = None
) -> Iterator[bytes]:
    """Yield the content of consecutive gzip members.

    Args:
        chunks: The members' bytes, cut anywhere.
        start: Offset of the first byte in its file, for messages.
        warn: Called with a sentence if other programs read the valid data differently.

    Raises:
        InflateError: A member is damaged or truncated, or other data follows one.
    """
    return _Inflater(start, warn).inflate(chunks)


def _inflate_until_damage(
    inflate: Callable[[memoryview], bytes], piece: memoryview
) -> Iterator[bytes]:
    """Yield the content before the damage, which a single call of zlib does not return."""
    with contextlib.suppress(zlib.error):
        for at in range(len(piece)):
            yield inflate(piece[at : at + 1])


class _Inflater:
    """Inflates consecutive gzip members."""

    def __init__(self, start: int, warn: Callable[[str], object] | None) -> None:
        self._begin = self._at = start  # offsets of the current member and of the next byte
        self._first = start
        self._warn = warn
        self._stream = zlib.decompressobj(_GZIP_BITS)
        self._inflated = 0
        self._empty = -1  # offset of an empty member before the current one
        self._ends: deque[int] = deque()  # of members within reach of TensorFlow's last read

    def inflate(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield from self._feed(chunk)
        self._close()

    def _feed(self, data: bytes) -> Iterator[bytes]:
        view = memoryview(data)
        at = 0
        while at < len(data):
            room = min(_MAX_OUTPUT, max(_FIRST_INPUT, self._at - self._begin))
            piece = view[at : at + room]
            if self._first < self._begin == self._at and piece[0] != GZIP[0]:
                raise self._garbage()
            before = self._stream.copy() if self._at > self._begin else None
            try:
                out = self._stream.decompress(piece, _MAX_OUTPUT)
            except zlib.error as error:
                begin = before or zlib.decompressobj(_GZIP_BITS)
                yield from _inflate_until_damage(begin.decompress, piece)
                raise self._error(error) from error
            ended = self._stream.eof
            left = self._stream.unused_data if ended else self._stream.unconsumed_tail
            at += len(piece) - len(left)
            self._at += len(piece) - len(left)
            self._inflated += len(out)
            if out:
                if self._empty >= 0 and self._warn is not None:
                    self._warn(empty_member_warning(self._empty))
                    self._warn = None
                yield out
            if ended:
                self._next_member()

    def _next_member(self) -> None:
        if not self._inflated:
            self._empty = self._begin
        self._ends.append(self._at)
        while self._ends[0] < self._at - TENSORFLOW_READS - _MAX_DATALESS:
            self._ends.popleft()
        self._stream = zlib.decompressobj(_GZIP_BITS)
        self._begin, self._inflated = self._at, 0

    def _error(self, error: zlib.error) -> InflateError:
        problem = str(error).rpartition(": ")[2]
        if problem == "incorrect header check" and self._begin > self._first:
            return self._garbage()
        if problem in ("incorrect data check", "incorrect length check"):
            problem = "its CRC-32 or length does not match"
        return InflateError(
            "bad_gzip", f"the gzip member at byte {self._begin:,} cannot be inflated ({problem})"
        )

    def _garbage(self) -> InflateError:
        return InflateError(
            "trailing_garbage",
            f"the data from byte {self._begin:,}, after the last gzip member, is not gzip data",
        )

    def _close(self) -> None:
        # A flush would return data of a truncated member.
        if self._at > self._begin:
            raise InflateError(
                "truncated",
                f"the file ends inside the gzip member that begins at byte {self._begin:,}",
            )
        end = find_early_stop(self._ends, self._at)
        if end >= 0 and self._warn is not None:
            self._warn(early_stop_warning(end))
