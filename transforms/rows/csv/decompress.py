"""Compressed CSV files: what they hold, as a stream, and no more of it than is safe."""

from __future__ import annotations

import bz2
import io
import lzma
from collections.abc import Iterator

from shardmill.schemas.tfrecord.compression import PackedError, gzip_chunks

# More than the first, and more than the second times its packed size, is a bomb.
MAX_UNPACKED_BYTES = 256 << 20
MAX_RATIO = 250
_XZ_MEMORY = 256 << 20
_PIECE = 4 << 10  # taken at a time where a call that fails gives nothing of its piece
_UNPACKED = 1 << 18  # at most, from one call
_MISTRUST = "; rows before it may be wrong too, so replace the file"
_ZSTD_ENDS = ("Truncated", "Unknown frame")  # what Arrow says where the file, or a frame, ended


class PackedEndError(Exception):
    """A compressed stream cannot be read on.

    Attributes:
        error: ``compressed`` or ``too_large``.
        message: Why, as a sentence goes on that begins with the line.
        wrong: Whether what came before may be wrong too.
    """

    def __init__(self, error: str, message: str, wrong: str = "") -> None:
        super().__init__(error, message + wrong)
        self.error = error
        self.message = message + wrong
        self.wrong = bool(wrong)


class _Counted(io.RawIOBase):
    """Chunks of bytes as a file, and how many were taken."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._left = b""
        self.taken = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        self._left = self._left or next(self._chunks, b"")
        piece = self._left if size < 0 else self._left[:size]
        self._left = self._left[len(piece) :]
        self.taken += len(piece)
        return piece

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yields what is left in pieces."""
        while piece := self.read(size):
            yield piece


def unpack(chunks: Iterator[bytes], packing: str) -> Iterator[bytes]:
    """Yields what a compressed file holds; streams that follow each other are one.

    Args:
        chunks: The file's bytes.
        packing: As from ``file_signatures.compression_format``.

    Raises:
        PackedEndError: It is damaged or cut, or grows too large. All before was yielded.
    """
    source = _Counted(chunks)
    streams = {"gzip": _gzip, "zstd": _zstd, "bzip2": _bzip2, "xz": _xz}
    size = 0
    for piece in streams[packing](source):
        size += len(piece)
        if size > MAX_UNPACKED_BYTES and size > MAX_RATIO * source.taken:
            raise PackedEndError(
                "too_large",
                f"is where reading stops: the text has more than {MAX_RATIO} times the size of the "
                "file, the mark of a decompression bomb; decompress it yourself if you trust it",
            )
        yield piece


def _gzip(source: _Counted) -> Iterator[bytes]:
    try:
        yield from gzip_chunks(source.pieces(1 << 16))
    except PackedError as error:
        wrong = _MISTRUST if error.reason == "bad_gzip" else ""
        message = f"is where the text stops short: {error}"
        raise PackedEndError("compressed", message, wrong) from error


def _bzip2(source: _Counted) -> Iterator[bytes]:
    return _streams(source, "bzip2")


def _xz(source: _Counted) -> Iterator[bytes]:
    return _streams(source, "xz")


def _streams(source: _Counted, packing: str) -> Iterator[bytes]:
    decoder = _decoder(packing)
    fed = begun = False
    for piece in source.pieces(_PIECE):
        left = piece
        while left or not decoder.needs_input:
            if decoder.eof:
                left = left.lstrip(b"\0") if packing == "xz" else left  # padding is part of xz
                if not left:
                    break
                decoder, begun = _decoder(packing), False
            try:
                out = decoder.decompress(left, _UNPACKED)
            except (OSError, ValueError, lzma.LZMAError) as error:
                # A stream that ended was proved by its checksum.
                raise _damaged(packing, str(error), _MISTRUST if begun else "") from error
            begun = begun or bool(out)
            fed, left = True, decoder.unused_data if decoder.eof else b""
            if out:
                yield out
            if decoder.eof and not left:
                break
    if fed and not decoder.eof:
        raise _damaged(packing, "the file ends inside of it")


def _decoder(packing: str) -> bz2.BZ2Decompressor | lzma.LZMADecompressor:
    if packing == "bzip2":
        return bz2.BZ2Decompressor()
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)


def _damaged(packing: str, why: str, wrong: str = "") -> PackedEndError:
    return PackedEndError(
        "compressed", f"is where the text stops short: the {packing} data is damaged: {why}", wrong
    )


def _zstd(source: _Counted) -> Iterator[bytes]:
    import pyarrow as pa

    stream = pa.CompressedInputStream(pa.PythonFile(source, "r"), "zstd")
    while True:
        try:
            out = stream.read(_PIECE)
        except OSError as error:  # Arrow's; what the storage raises is none
            known = any(text in str(error) for text in _ZSTD_ENDS)
            raise _damaged("zstd", str(error), "" if known else _MISTRUST) from error
        if not out:
            return
        yield out
