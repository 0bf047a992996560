"""Decompress CSV files as a stream, with a limit against decompression bombs."""

from __future__ import annotations

import bz2
import io
import lzma
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from shardmill.schemas.errors import DeniedError
from shardmill.schemas.storage.base import RandomReader, ReaderStream
from shardmill.schemas.tfrecord.inflate import InflateError, gzip_chunks

# A text that exceeds both this size and this ratio to its compressed size is a bomb.
MAX_TEXT_BYTES = 256 << 20
MAX_RATIO = 250
_XZ_MEMORY = 256 << 20
_READ_BYTES = 1 << 20
_CHUNK = 4 << 10  # small: a failing call returns no output for its input
_MAX_OUTPUT = 1 << 18  # of one call
_REPLACE = "; rows before it may be wrong too, so replace the file"
_ZSTD_TRUNCATED = ("Truncated", "Unknown frame")  # in Arrow's message if a file or frame is cut


class DecompressionError(Exception):
    """A compressed stream is damaged, cut or too large.

    Attributes:
        untrusted: Whether the text before the error may be wrong too.
    """

    def __init__(self, message: str, *, untrusted: bool = False) -> None:
        if untrusted:
            message += _REPLACE
        super().__init__(f"reading stops here: {message}")
        self.untrusted = untrusted


def decompress(reader: RandomReader, compression: str) -> Iterator[bytes]:
    """Yield the content of a compressed file; concatenated streams are one text.

    Args:
        reader: The file.
        compression: As returned by ``file_signatures.compression_format``.

    Raises:
        DecompressionError: The file is damaged, cut or too large. All text before was yielded.
    """
    size = 0
    with io.BufferedReader(ReaderStream(reader), _READ_BYTES) as source:
        for piece in _streams(source, compression):
            size += len(piece)
            if size > MAX_TEXT_BYTES and size > MAX_RATIO * source.tell():
                raise DecompressionError(
                    f"the text has more than {MAX_RATIO} times the size of the file, which "
                    "indicates a decompression bomb; decompress the file yourself if you trust it"
                )
            yield piece


def _streams(source: BinaryIO, compression: str) -> Iterator[bytes]:
    if compression == "gzip":
        return _gzip(source)
    if compression == "zstd":
        return _zstd(source)
    return _bzip2_or_xz(source, compression)


def _gzip(source: BinaryIO) -> Iterator[bytes]:
    try:
        yield from gzip_chunks(iter(partial(source.read, 1 << 16), b""))
    except InflateError as error:
        untrusted = error.reason == "bad_gzip"
        raise DecompressionError(str(error), untrusted=untrusted) from error


def _bzip2_or_xz(source: BinaryIO, compression: str) -> Iterator[bytes]:
    decoder = _decoder(compression)
    fed = begun = False
    for piece in iter(partial(source.read, _CHUNK), b""):
        left = piece
        while left or not decoder.needs_input:
            if decoder.eof:
                if compression == "xz":
                    left = left.lstrip(b"\0")  # stream padding
                if not left:
                    break
                decoder, begun = _decoder(compression), False
            try:
                out = decoder.decompress(left, _MAX_OUTPUT)
            except (OSError, ValueError, lzma.LZMAError) as error:
                # Earlier streams are trusted: each ended with a valid checksum.
                raise _damaged(compression, error, untrusted=begun) from error
            begun = begun or bool(out)
            fed = True
            left = decoder.unused_data if decoder.eof else b""
            if out:
                yield out
            if decoder.eof and not left:
                break
    if fed and not decoder.eof:
        raise _damaged(compression, "the file ends inside a stream", untrusted=False)


def _decoder(compression: str) -> bz2.BZ2Decompressor | lzma.LZMADecompressor:
    if compression == "bzip2":
        return bz2.BZ2Decompressor()
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)


def _damaged(compression: str, why: object, *, untrusted: bool) -> DecompressionError:
    message = f"the {compression} data is damaged: {why}"
    return DecompressionError(message, untrusted=untrusted)


def _zstd(source: BinaryIO) -> Iterator[bytes]:
    import pyarrow as pa  # not for commands that read no such file

    stream = pa.CompressedInputStream(pa.PythonFile(source, "r"), "zstd")
    while True:
        try:
            out = stream.read(_CHUNK)
        except DeniedError:  # an OSError too
            raise
        except OSError as error:  # raised by Arrow
            truncated = any(text in str(error) for text in _ZSTD_TRUNCATED)
            raise _damaged("zstd", error, untrusted=not truncated) from error
        if not out:
            return
        yield out
