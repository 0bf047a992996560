"""What TFRecords are packed in: nothing, GZIP or ZLIB, told by the bytes and never by the name."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import Literal

from shardmill.schemas.framing import HEADER_BYTES, masked_crc
from shardmill.schemas.scan import find_record
from shardmill.schemas.storage import RandomReader

Compression = Literal["none", "gzip", "zlib"]
_GZIP = b"\x1f\x8b"
_HEAD = 4096
_LOOK = 1 << 20  # how far a damaged beginning is searched for a sound record
_INFLATED = 1 << 20  # at most, from one call: what a bomb can make us hold
_LFS = b"version https://git-lfs.github.com/"
_WEB = re.compile(rb"\s*<(!doctype|html|\?xml)", re.IGNORECASE)
_KINDS = {
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
    b"PK\x03\x04": "a ZIP archive",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x28\xb5\x2f\xfd": "Zstandard data",
    b"BZh": "bzip2 data",
    b"\xfd7zXZ": "xz data",
    b"\x89HDF": "an HDF5 file",
}


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
    if head.startswith(_GZIP):
        return "gzip", ""
    if _is_zlib(head):
        return "zlib", ""
    return "none", why_no_records(reader.read_at(0, _LOOK), reader.size)


def _is_zlib(head: bytes) -> bool:
    if len(head) < 2 or head[0] & 15 != 8 or head[0] > 0x7F or (head[0] << 8 | head[1]) % 31:
        return False
    try:
        inflated = zlib.decompressobj().decompress(head, _HEAD)
    except zlib.error:
        return False
    return len(inflated) >= HEADER_BYTES or inflated == b""


def why_no_records(data: bytes, size: int) -> str:
    """Returns what a file without TFRecords is, or nothing when it may be a damaged one.

    Args:
        data: Its beginning, uncompressed, which is no sound header.
        size: Its uncompressed size in bytes, as far as that is known.
    """
    if data.startswith(_LFS):
        return "it is a Git LFS pointer, not the file itself: run `git lfs pull`"
    if _WEB.match(data):
        return "it holds no TFRecords but a web page: download it again"
    kind = next((name for magic, name in _KINDS.items() if data.startswith(magic)), "")
    if kind:
        return f"it holds no TFRecords, it is {kind}"
    if not data.strip(b"\0"):
        return "it holds no TFRecords, only zeros: copy it again"
    if find_record(data, size) > 0:
        return ""
    if _is_text(data[:_HEAD]):
        return "it holds no TFRecords but text"
    if size <= HEADER_BYTES:
        return ""
    return "it holds no TFRecords: nothing in it is the header of a record"


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
    while start < end:
        data = reader.read_at(start, min(reader.chunk, end - start))
        if not data:
            raise PackedError("changed", "the file became shorter while it was read")
        yield data
        start += len(data)


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


class _Members:
    """Inflates one gzip member after the other."""

    def __init__(self, start: int, warn: Callable[[str], object] | None) -> None:
        self._begin = self._at = start  # of the member; of the next byte fed
        self._first = start
        self._warn = warn
        self._stream = zlib.decompressobj(31)
        self._inflated = 0
        self._empty = -1  # where an empty member before this one begins

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            before = len(data)
            try:
                out = self._stream.decompress(data, _INFLATED)
            except zlib.error as error:
                raise self._error(error) from error
            self._inflated += len(out)
            if out:
                self._note_data()
                yield out
            ended = self._stream.eof
            data = self._stream.unused_data if ended else self._stream.unconsumed_tail
            self._at += before - len(data)
            if ended:
                self._next_member()

    def _note_data(self) -> None:
        if self._empty >= 0 and self._warn is not None:
            self._warn(
                f"an empty gzip member stands at byte {self._empty:,}: TensorFlow may stop "
                "reading there and lose the records behind it"
            )
            self._warn = None

    def _next_member(self) -> None:
        if not self._inflated:
            self._empty = self._begin
        self._stream = zlib.decompressobj(31)
        self._begin, self._inflated = self._at, 0

    def _error(self, error: zlib.error) -> PackedError:
        what = str(error).rpartition(": ")[2]
        if what == "incorrect header check" and self._begin > self._first:
            return PackedError(
                "trailing_garbage",
                f"what follows the gzip data at byte {self._begin:,} of the file is no gzip data",
            )
        if what in ("incorrect data check", "incorrect length check"):
            what = "it fails gzip's own CRC-32 or length"
        return PackedError(
            "bad_gzip",
            f"the gzip member at byte {self._begin:,} of the file cannot be inflated ({what})",
        )

    def close(self) -> None:
        # A flush would give what zlib holds back of a member that was cut.
        if self._at > self._begin:
            raise PackedError(
                "truncated",
                f"the file ends inside the gzip member that begins at its byte {self._begin:,}",
            )


def zlib_chunks(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields what is in the one zlib stream that a stream of bytes consists of.

    Raises:
        PackedError: It is damaged or cut, or something stands behind it.
    """
    stream = zlib.decompressobj()
    for chunk in chunks:
        data = chunk
        while data:
            if stream.eof:
                raise PackedError("trailing_garbage", "bytes follow the end of the zlib data")
            try:
                out = stream.decompress(data, _INFLATED)
            except zlib.error as error:
                what = str(error).rpartition(": ")[2]
                raise PackedError(
                    "bad_gzip", f"the zlib data cannot be inflated ({what})"
                ) from error
            if out:
                yield out
            data = stream.unused_data if stream.eof else stream.unconsumed_tail
    if not stream.eof:
        raise PackedError("truncated", "the file ends inside its zlib data")
