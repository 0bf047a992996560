"""What TFRecords are packed in: nothing, GZIP or ZLIB, told by the bytes and never by the name."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import deflate

from shardmill.schemas.file_signatures import GZIP, describe_format
from shardmill.schemas.storage import RandomReader
from shardmill.schemas.tfrecord.framing import HEADER_BYTES, masked_crc
from shardmill.schemas.tfrecord.scanner import find_record

Compression = Literal["none", "gzip", "zlib"]
_HEAD = 4096
_LOOK = 1 << 20  # how far a damaged beginning is searched for a sound record
_INFLATED = 1 << 18  # at most, from one call: what a bomb can make us hold
_PIECE = 1 << 16  # fed to zlib at the start of a member: it copies what it leaves over
_WHOLE_INFLATED = 16 << 20  # members that claim more are inflated as a stream
_GZIP_BITS = 31  # zlib's name for gzip members
_FEXTRA, _FHCRC = 4, 2  # flags of a gzip header
_TRAILER_BYTES = 8
TENSORFLOW_READS = 256 << 10
_DATALESS = 16  # the trailer, and what of the deflate data may give no bytes


class PackedError(Exception):
    """Packed data is damaged; ``reason`` is one of ``scan.FAULTS``."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def starts_record(data: bytes) -> bool:
    """Tells whether data begins with the header of a record."""
    return len(data) >= HEADER_BYTES and masked_crc(data[:8]) == int.from_bytes(
        data[8:HEADER_BYTES], "little"
    )


def sniff(reader: RandomReader) -> tuple[Compression, str]:
    """Returns how a file is packed, and why it holds no TFRecords where that shows at once.

    Args:
        reader: The file; an empty one counts as not packed.
    """
    head = reader.read_at(0, _HEAD)
    if not head or starts_record(head):
        return "none", ""
    if head.startswith(GZIP):
        return "gzip", ""
    if _is_zlib(head):
        return "zlib", ""
    other = describe_other_content(reader.read_at(0, _LOOK), reader.size)
    return "none", f"it is not a TFRecord file but {other}" if other else ""


def _is_zlib(head: bytes) -> bool:
    if len(head) < 2 or head[0] & 15 != 8 or head[0] > 0x7F or (head[0] << 8 | head[1]) % 31:
        return False
    try:
        zlib.decompressobj().decompress(head, HEADER_BYTES)  # what is damaged later is zlib still
    except zlib.error:
        return False
    return True


def describe_other_content(data: bytes, size: int) -> str:
    """Return what data is if not TFRecords; empty if it may be a damaged TFRecord file.

    Args:
        data: The first bytes of a file, decompressed; they do not begin with a valid header.
        size: Decompressed size of the file in bytes, or an upper bound of it.
    """
    description = describe_format(data)
    if description:
        return description
    if not data.strip(b"\0"):
        return "only zeros: copy the file again"
    if find_record(data, size) > 0:
        return ""
    if _is_text(data[:_HEAD]):
        return "text"
    if size <= HEADER_BYTES:
        return ""
    return "binary data that does not begin with the header of a record"


def _is_text(data: bytes) -> bool:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3 or not error.start:  # else a character cut in two
            return False
        text = data[: error.start].decode()
    return all(letter.isprintable() or letter in "\t\r\n\f" for letter in text)


def raw_chunks(reader: RandomReader, start: int, end: int) -> Iterator[bytes]:
    """Yields the bytes of a file from start to end."""
    for at in range(start, end, reader.chunk):
        yield reader.read_at(at, min(reader.chunk, end - at))


def empty_member(at: int) -> str:
    """Returns the warning for an empty gzip member that others follow."""
    return (
        f"an empty gzip member stands at byte {at:,}: TensorFlow may stop reading there and lose "
        "the records behind it"
    )


def stops_early(ends: Iterable[int], size: int) -> int:
    """Returns the end of a gzip member behind which TensorFlow loses the rest of a file, or -1.

    Its reader takes a call that inflates nothing for the end when the file has no more bytes to
    give. That happens when the last of its reads, 256 KiB each, begins inside the last bytes of a
    member, which hold checks and no data. Seen in TensorFlow 2.21 with the default buffer.

    Args:
        ends: Where members end.
        size: Bytes of the file.
    """
    last = (size - 1) // TENSORFLOW_READS * TENSORFLOW_READS
    if last <= 0:
        return -1
    return next((end for end in ends if 0 < end - last <= _DATALESS and end < size), -1)


def early_stop(end: int) -> str:
    """Returns the warning for what ``stops_early`` finds."""
    return (
        f"a gzip member ends at byte {end:,}, just behind a multiple of 256 KiB: TensorFlow stops "
        "reading there and loses the records behind it"
    )


def inflate_member(member: bytes, at: int) -> Iterator[bytes]:
    """Returns what is in bytes that should be one gzip member; at once where that is not much.

    Args:
        member: The bytes.
        at: Offset of the first in its file, for messages.

    Raises:
        PackedError: They are damaged or cut, or something else stands behind; when iterated over.
    """
    size = int.from_bytes(member[-4:], "little")
    if 0 < size <= _WHOLE_INFLATED:  # where 0 is asked for, nothing is looked at
        with contextlib.suppress(deflate.DeflateError, ValueError):
            data = bytes(deflate.gzip_decompress(member, size))
            if _is_one(member, data):
                return iter((data,))
    return gzip_chunks(iter((member,)), at)  # which says what is wrong


def _is_one(member: bytes, data: bytes) -> bool:
    """Tells whether one gzip member is all that is there; libdeflate has inflated the first one.

    It looks neither at what follows nor at the CRC of a header.
    """
    if member[3] & _FHCRC:
        return False
    end = _stored_end(member)
    if end:
        return end + _TRAILER_BYTES == len(member)
    # What was inflated ends where its CRC-32 and size stand: at the end, and nowhere earlier.
    trailer = struct.pack("<II", deflate.crc32(data), len(data))
    return member.find(trailer) == len(member) - _TRAILER_BYTES


def _stored_end(member: bytes) -> int:
    """Returns where the deflate data of a sound member ends, or 0 unless it is all stored."""
    at, flags = 10, member[3]
    if flags == _FEXTRA:
        at += 2 + int.from_bytes(member[10:12], "little")
    elif flags:
        return 0
    while member[at] <= 1:  # a stored block; 1 is the last
        last = member[at]
        at += 5 + int.from_bytes(member[at + 1 : at + 3], "little")
        if last:
            return at
    return 0


def gzip_chunks(
    chunks: Iterator[bytes], start: int = 0, warn: Callable[[str], object] | None = None
) -> Iterator[bytes]:
    """Yields what is in the gzip members that a stream of bytes consists of.

    Args:
        chunks: The bytes.
        start: Offset of the first in its file, for messages.
        warn: Told of what is sound and yet read differently by others.

    Raises:
        PackedError: A member is damaged or cut, or something else stands behind one.
    """
    members = _Members(start, warn)
    for chunk in chunks:
        yield from members.feed(chunk)
    members.close()


def _until_damage(inflate: Callable[[memoryview], bytes], piece: memoryview) -> Iterator[bytes]:
    """Yields what a damaged piece holds before the damage, which zlib does not give out."""
    with contextlib.suppress(zlib.error):
        for at in range(len(piece)):
            yield inflate(piece[at : at + 1])


class _Members:
    """Inflates one gzip member after the other."""

    def __init__(self, start: int, warn: Callable[[str], object] | None) -> None:
        self._begin = self._at = start  # of the member; of the next byte fed
        self._first = start
        self._warn = warn
        self._stream = zlib.decompressobj(_GZIP_BITS)
        self._inflated = 0
        self._empty = -1  # where an empty member before this one begins
        self._ends: deque[int] = deque()  # of members, as far as TensorFlow's last read may reach

    def feed(self, data: bytes) -> Iterator[bytes]:
        view = memoryview(data)
        at = 0
        while at < len(data):
            room = min(_INFLATED, max(_PIECE, self._at - self._begin))
            piece = view[at : at + room]
            if self._first < self._begin == self._at and piece[0] != GZIP[0]:
                raise self._garbage()
            before = self._stream.copy() if self._at > self._begin else None
            try:
                out = self._stream.decompress(piece, _INFLATED)
            except zlib.error as error:
                begin = before or zlib.decompressobj(_GZIP_BITS)
                yield from _until_damage(begin.decompress, piece)
                raise self._error(error) from error
            ended = self._stream.eof
            left = self._stream.unused_data if ended else self._stream.unconsumed_tail
            at += len(piece) - len(left)
            self._at += len(piece) - len(left)
            self._inflated += len(out)
            if out:
                self._note_data()
                yield out
            if ended:
                self._next_member()

    def _note_data(self) -> None:
        if self._empty >= 0 and self._warn is not None:
            self._warn(empty_member(self._empty))
            self._warn = None

    def _next_member(self) -> None:
        if not self._inflated:
            self._empty = self._begin
        self._ends.append(self._at)
        while self._ends[0] < self._at - TENSORFLOW_READS - _DATALESS:
            self._ends.popleft()
        self._stream = zlib.decompressobj(_GZIP_BITS)
        self._begin, self._inflated = self._at, 0

    def _error(self, error: zlib.error) -> PackedError:
        what = str(error).rpartition(": ")[2]
        if what == "incorrect header check" and self._begin > self._first:
            return self._garbage()
        if what in ("incorrect data check", "incorrect length check"):
            what = "it fails gzip's own CRC-32 or length"
        return PackedError(
            "bad_gzip",
            f"the gzip member at byte {self._begin:,} of the file cannot be inflated ({what})",
        )

    def _garbage(self) -> PackedError:
        return PackedError(
            "trailing_garbage",
            f"what follows the gzip data at byte {self._begin:,} of the file is no gzip data",
        )

    def close(self) -> None:
        # A flush would give what zlib holds back of a member that was cut.
        if self._at > self._begin:
            raise PackedError(
                "truncated",
                f"the file ends inside the gzip member that begins at its byte {self._begin:,}",
            )
        end = stops_early(self._ends, self._at)
        if end >= 0 and self._warn is not None:
            self._warn(early_stop(end))


def zlib_chunks(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields what is in the one zlib stream that a stream of bytes consists of.

    Raises:
        PackedError: It is damaged or cut, or something stands behind it.
    """
    stream = zlib.decompressobj()
    for chunk in chunks:
        view = memoryview(chunk)
        at = 0
        while at < len(chunk):
            if stream.eof:
                raise PackedError("trailing_garbage", "bytes follow the end of the zlib data")
            piece = view[at : at + _INFLATED]  # zlib copies what it leaves over
            before = stream.copy()
            try:
                out = stream.decompress(piece, _INFLATED)
            except zlib.error as error:
                yield from _until_damage(before.decompress, piece)
                what = str(error).rpartition(": ")[2]
                raise PackedError(
                    "bad_gzip", f"the zlib data cannot be inflated ({what})"
                ) from error
            at += len(piece) - len(stream.unused_data if stream.eof else stream.unconsumed_tail)
            if out:
                yield out
    if not stream.eof:
        raise PackedError("truncated", "the file ends inside its zlib data")
