"""The compression of a TFRecord file, detected from its first bytes and never from its name."""

from __future__ import annotations

import codecs
import zlib
from typing import Literal

from shardmill.schemas.file_signatures import GZIP, describe_format
from shardmill.schemas.storage import RandomReader
from shardmill.schemas.tfrecord.framing import HEADER_BYTES, starts_record
from shardmill.schemas.tfrecord.scanner import find_record

Compression = Literal["none", "gzip", "zlib"]
_HEAD = 4096
_SEARCHED = 1 << 20  # bytes in which a valid record is searched if the first one is damaged


def detect_compression(reader: RandomReader) -> tuple[Compression, str]:
    """Return the compression of a file, and why it is not a TFRecord file; empty if it may be one.

    Args:
        reader: The file; an empty file is not compressed.
    """
    head = reader.read_at(0, _HEAD)
    if not head or starts_record(head):
        return "none", ""
    if head.startswith(GZIP):
        return "gzip", ""
    if _is_zlib(head):
        return "zlib", ""
    other = describe_other_content(reader.read_at(0, _SEARCHED), reader.size)
    return "none", f"it is not a TFRecord file but {other}" if other else ""


def _is_zlib(head: bytes) -> bool:
    # RFC 1950 section 2.2: CM is 8, CINFO at most 7, and the two bytes are a multiple of 31.
    if len(head) < 2 or head[0] & 15 != 8 or head[0] > 0x7F or (head[0] << 8 | head[1]) % 31:
        return False
    try:
        zlib.decompressobj().decompress(head, HEADER_BYTES)  # later damage is found by the scan
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
        text = codecs.getincrementaldecoder("utf-8")().decode(data)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return bool(text) and all(letter.isprintable() or letter in "\t\r\n\f" for letter in text)
