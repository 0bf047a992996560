"""CsvText: the decompressed text of a CSV file, read in blocks and decoded where necessary."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Iterator

from blake3 import blake3

from shardmill.schemas.decompress import DecompressionError, decompress
from shardmill.schemas.file_signatures import compression_format, describe_format, json_format
from shardmill.schemas.refs import RejectedError
from shardmill.schemas.storage import RandomReader, open_storage
from shardmill.schemas.storage.base import became_shorter
from shardmill.schemas.text_file import UTF_8, find_mark, find_utf_16
from shardmill.schemas.tfrecord.framing import starts_record
from shardmill.schemas.tfrecord.reader import ZLIB_REMEDY, has_zlib_records
from shardmill.transforms.sources.csv.dialect import WHITESPACE, Dialect, is_ascii_compatible
from shardmill.transforms.sources.csv.row_bounds import Syntax

BLOCK_BYTES = 1 << 20
_PEEK_BYTES = 64 << 10  # read to distinguish text from other formats
MAGIC_BYTES = 16
_ERROR_HANDLER = "shardmill.rows.surrogates"
_SURROGATE = 0xDC00  # plus the undecodable byte; no valid text contains these characters
_UTF_16_CONTROLS = 0.45  # share in any UTF-16, also a short one: half of the bytes of ASCII
_MAX_CONTROL_SHARE = 0.05  # random bytes have 0.086
_MIN_CONTROLS = 16  # any text may have up to this many
# Without those that separate cells in some tables: 0x01 is Hive's delimiter.
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\x01\t\n\r\f\x1a\x1b\x1c\x1d\x1e\x1f")
_NOT_CSV = {
    "jsonl": ("jsonl", "JSON Lines: give files of one kind as --input"),
    "json": ("not_csv", "one JSON document: write each row as one object in one line"),
}


class CsvText:
    """The text of an open CSV file.

    Attributes:
        dialect: Dialect of the file.
        size: Size of the file in bytes.
        seekable: Whether offsets in the text are offsets in the file, so that reading may start
            anywhere.
        begin: Offset of the first character, after a byte order mark if offsets count it.
        codec: Encoding of the text's bytes: UTF-8 or a single-byte encoding.
        encoding: Encoding of the file.
        syntax: Delimiter and quote as bytes of the text.
        fault: Why the last ``blocks`` ended before the end of the file, or None.
        hash: BLAKE3 of the text that ``blocks`` yielded.
    """

    def __init__(self, reader: RandomReader, dialect: Dialect, head_bytes: int) -> None:
        """Detect compression and encoding.

        Args:
            reader: The file.
            dialect: Dialect of the file.
            head_bytes: Number of bytes to detect them from; 0 means uncompressed text without a
                byte order mark.
        """
        self.dialect = dialect
        self.size = reader.size
        self.fault: DecompressionError | None = None
        self.hash = blake3()
        self._reader = reader
        self._peeked = b""
        head = reader.read_at(0, min(head_bytes, self.size)) if head_bytes else b""
        self._first = head  # block, which the check, the header and the first rows need
        self._compression = compression_format(head)
        if self._compression:
            head = self._peek()
        mark, encoding = find_mark(head)
        self.encoding = encoding or dialect.codec
        if self.encoding == UTF_8 and not mark and b"\0" in head[:MAGIC_BYTES]:
            self.encoding = find_utf_16(self._peek()) or UTF_8
        if self.encoding in ("utf-16", "utf-32"):
            # Without a mark, the zero bytes of ASCII characters show the byte order.
            first, last = (self._peek()[at::4].count(0) for at in (0, 3))
            byte_order = "-be" if first > last else "-le"
            self.encoding += byte_order
        ascii_compatible = is_ascii_compatible(self.encoding)
        self.seekable = ascii_compatible and not self._compression
        self._bom = len(mark)
        self.begin = len(mark) if ascii_compatible else 0
        self.codec = self.encoding if ascii_compatible else UTF_8
        self.syntax = Syntax(
            dialect.separator.encode(self.codec),
            dialect.quote.encode(),
            dialect.comment.encode(),
            dialect.escape.encode(),
            white_space=dialect.delimiter == WHITESPACE,
        )

    def blocks(self, start: int, end: int = -1) -> Iterator[bytes]:
        """Yield the text between two offsets, or up to its end.

        Raises:
            ChangedError: The file became shorter or was replaced.
            StorageError: The storage failed.
        """
        if self.seekable:
            blocks = self._read(start, end)
        else:
            text = self._to_codec(_to_blocks(self._decompress(self._bom)))
            blocks = _skip_bytes(text, start - self.begin)
        for block in blocks:
            self.hash.update(block)
            yield block

    def check(self, expected: str = "") -> None:
        """Check that the file is text.

        Args:
            expected: ``jsonl`` if it must be JSON Lines; else it must not be JSON.

        Raises:
            RejectedError: It is something else.
        """
        head, json_kind = self._peek(), ""
        if has_zlib_records(head):
            kind = f"TFRecords with ZLIB compression ({ZLIB_REMEDY})"
        elif compression_format(head):
            kind = "compressed twice"
        elif starts_record(head):
            kind = "TFRecords"
        else:
            kind = describe_format(head)
        if not kind:
            text = b"".join(self._to_codec(iter([head[self._bom :]])))
            controls = len(text) - len(text.translate(None, _CONTROLS))
            most = max(_MIN_CONTROLS, _MAX_CONTROL_SHARE * len(text))
            if controls > min(most, _UTF_16_CONTROLS * len(text)):
                kind = "binary data, or UTF-16 without a mark (of rows, set --encoding=utf-16)"
            json_kind = json_format(text)
        if expected == json_kind and not kind:
            return
        if not kind:
            error, kind = _NOT_CSV.get(json_kind, ("other_table", "another kind of text"))
        elif expected:
            error = "other_table"
        else:
            error = {"a Parquet file": "parquet"}.get(kind, "not_csv")
        name = "JSON Lines" if expected else "CSV"
        raise RejectedError("read", error, f"it is not a {name} file but {kind}")

    def check_compression(self) -> None:
        """Decompress a compressed file completely, to check its checksums.

        Raises:
            RejectedError: The data is damaged; a file that is only cut is accepted.
        """
        if not self._compression:
            return
        for _ in self._decompress(0):
            pass
        if self.fault is not None and self.fault.untrusted:
            raise RejectedError(
                "read",
                "compressed",
                f"its {self._compression} data is damaged, so that none of its rows can be "
                "trusted: replace the file",
            )

    def _peek(self) -> bytes:
        """Return the first bytes of the file, decompressed."""
        if not self._peeked:
            for piece in self._decompress(0):
                self._peeked += piece
                if len(self._peeked) >= _PEEK_BYTES:
                    break
            self._peeked = self._peeked[:_PEEK_BYTES]
        return self._peeked

    def _read(self, start: int, end: int) -> Iterator[bytes]:
        at = start
        if end < 0:
            end = self.size
        while at < end:
            if at < BLOCK_BYTES:
                stop = min(BLOCK_BYTES, end)
                if len(self._first) < min(BLOCK_BYTES, self.size):
                    self._first = self._reader.read_at(0, min(BLOCK_BYTES, self.size))
                block = self._first[at:stop]
            else:
                stop = min(at + BLOCK_BYTES, end)
                block = self._reader.read_at(at, stop - at)
            if len(block) < stop - at:
                raise became_shorter()
            yield block
            at = stop

    def _decompress(self, start: int) -> Iterator[bytes]:
        """Yield the decompressed bytes of the file from an offset; sets ``fault``."""
        self.fault = None
        if not self._compression:
            yield from self._read(start, -1)
            return
        try:
            yield from _skip_bytes(decompress(self._reader, self._compression), start)
        except DecompressionError as error:
            self.fault = error

    def _to_codec(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        if self.codec == self.encoding:
            yield from blocks
            return
        codecs.register_error(_ERROR_HANDLER, _to_surrogates)
        decoder = codecs.getincrementaldecoder(self.encoding)(_ERROR_HANDLER)
        for block in blocks:
            yield decoder.decode(block).encode(UTF_8, "surrogatepass")
        yield decoder.decode(b"", final=True).encode(UTF_8, "surrogatepass")


@contextlib.contextmanager
def open_text(uri: str, dialect: Dialect, head_bytes: int = BLOCK_BYTES) -> Iterator[CsvText]:
    """Open a CSV file; see ``CsvText``.

    Raises:
        FileNotFoundError: The file does not exist.
        ChangedError: It is not a regular file any more.
        StorageError: The storage failed.
    """
    with open_storage(uri).open_at(uri) as reader:
        yield CsvText(reader, dialect, head_bytes)


def undecodable_byte(row: bytes, codec: str, encoding: str) -> int:
    """Return the first byte of the file's row that does not decode, or -1.

    Args:
        row: Bytes of the row in the text.
        codec: Encoding of the text.
        encoding: Encoding of the file.
    """
    try:
        row.decode(codec)
    except UnicodeDecodeError as error:
        bad = row[error.start : error.start + 3]
        surrogate = bad.decode(UTF_8, "surrogatepass") if codec != encoding else ""
        if surrogate:
            return ord(surrogate) - _SURROGATE
        return bad[0]
    return -1


def _to_surrogates(error: UnicodeError) -> tuple[str, int]:
    """Decode each undecodable byte as a lone surrogate, an error handler for ``codecs``."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    undecodable = error.object[error.start : error.end]
    return "".join(chr(_SURROGATE + byte) for byte in undecodable), error.end


def _skip_bytes(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield a stream without its first ``size`` bytes."""
    for piece in pieces:
        if len(piece) > size:
            yield piece[max(size, 0) :]
        size -= len(piece)


def _to_blocks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield a stream in blocks of ``BLOCK_BYTES``, which decide the batches of rows."""
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= BLOCK_BYTES:
            yield bytes(held[:BLOCK_BYTES])
            del held[:BLOCK_BYTES]
    yield bytes(held)
