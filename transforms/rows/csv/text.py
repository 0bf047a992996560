"""The text of a CSV file: decompressed, decoded as far as is needed, in blocks."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from shardmill.schemas.errors import ChangedError
from shardmill.schemas.file_signatures import compression_format, describe_format
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.storage import RandomReader, open_storage
from shardmill.schemas.tfrecord.compression import starts_record
from shardmill.transforms.rows.csv.decompress import PackedEndError, unpack
from shardmill.transforms.rows.csv.dialect import UTF_8, Dialect, is_transparent
from shardmill.transforms.rows.csv.row_bounds import Syntax

BLOCK_BYTES = 1 << 20
_LOOK = 64 << 10  # what is looked at to tell text from other things
_HEAD = 16
_MARKS = "shardmill.rows.marks"
_FIRST_MARK = 0xDC00  # with the byte added; no text holds such characters
_BOMS = (
    (b"\xff\xfe\0\0", "utf-32-le"),
    (b"\0\0\xfe\xff", "utf-32-be"),
    (b"\xef\xbb\xbf", UTF_8),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_MAX_CONTROLS = 0.05  # random bytes have 0.086
_SOME_CONTROLS = 16  # that any text may have
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\r\f\x1a\x1b\x1c\x1d\x1e\x1f")
_WIDE = 0.6  # of every other byte is NUL


class Fault(NamedTuple):
    """Why a text ends before its file does; as in ``PackedEndError``."""

    error: str
    message: str
    wrong: bool = False


class CsvText:
    """The text of an open file.

    Attributes:
        size: Bytes of the file.
        seekable: Whether the text's bytes are the file's, so that one may begin anywhere.
        begin: Offset of the text's first byte: behind a byte order mark, where offsets count it.
        codec: What the text's bytes are encoded in: UTF-8, or one byte a character.
        encoding: What the file is encoded in.
        syntax: Delimiter and quote as the text's bytes hold them.
        fault: Why the last blocks ended before the file did.
    """

    def __init__(self, reader: RandomReader, dialect: Dialect, head: bytes | None = None) -> None:
        """Looks at a file.

        Args:
            reader: The file.
            dialect: How it is written.
            head: Its first bytes, where they are known; empty stands for ordinary text.
        """
        self.size = reader.size
        self.fault: Fault | None = None
        self._taken = self._given = 0  # bytes of the file and of the text
        self._reader = reader
        self._beginning = b""
        head = reader.read_at(0, _HEAD) if head is None else head
        self._packing = compression_format(head)
        if self._packing:
            head = self._look()
        mark, self.encoding = _encoding(head, dialect.encoding)
        if self.encoding in ("utf-16", "utf-32"):
            self.encoding += _byte_order(self._look())
        transparent = is_transparent(self.encoding)
        self.seekable = transparent and not self._packing
        self._bom = len(mark)
        self.begin = len(mark) if transparent else 0
        self.codec = self.encoding if transparent else UTF_8
        self.syntax = Syntax(dialect.delimiter.encode(self.codec), dialect.quote.encode())

    def blocks(self, start: int, end: int = -1) -> Iterator[bytes]:
        """Yields the text from one offset to another, or to its end.

        Raises:
            ChangedError: The file became shorter, or was replaced.
            StorageError: The medium failed.
        """
        self._taken = self._given = 0
        if self.seekable:
            return self._read(start, end)
        return _from(start - self.begin, self._decoded(self._plain(self._bom)))

    def estimate(self) -> int:
        """Returns about how many bytes the text has, judged by the last blocks."""
        if self.seekable or not self._taken:
            return self.size
        return self.size * self._given // self._taken

    def check(self) -> None:
        """Looks whether this is text at all.

        Raises:
            RejectedError: It is something else.
        """
        head = self._look()
        what = _what_else(head)
        if not what and not self._bom:
            what = _wide(head, self.encoding)
        if not what:
            letters = b"".join(self._recoded(iter([head[self._bom :]])))
            controls = len(letters) - len(letters.translate(None, _CONTROLS))
            if controls > max(_SOME_CONTROLS, _MAX_CONTROLS * len(letters)):
                what = "binary data"
        if what:
            raise RejectedError("read", "not_csv", f"it is no CSV file but {what}")

    def check_packing(self) -> None:
        """Unpacks all of a compressed file, to see that its rows are those that were packed.

        Raises:
            RejectedError: They may not be; a file that only ends too early is no such case.
        """
        if not self._packing:
            return
        for _ in self._plain(0):
            pass
        if self.fault is not None and self.fault.wrong:
            raise RejectedError(
                "read",
                "compressed",
                f"its {self._packing} data is damaged, so that no row of it can be trusted: "
                "replace the file",
            )

    def _look(self) -> bytes:
        """Returns the beginning of the file, decompressed."""
        if not self._beginning:
            self._beginning = _take(self._plain(0), _LOOK)
        return self._beginning

    def _read(self, start: int, end: int) -> Iterator[bytes]:
        end = self.size if end < 0 else end
        for at in range(start, end, BLOCK_BYTES):
            block = self._reader.read_at(at, min(BLOCK_BYTES, end - at))
            if len(block) < min(BLOCK_BYTES, end - at):
                raise ChangedError("the file became shorter while it was read")
            self._taken += len(block)
            yield block

    def _plain(self, start: int) -> Iterator[bytes]:
        """Yields the file's bytes, decompressed."""
        self.fault = None
        if not self._packing:
            yield from self._read(start, -1)
            return
        try:
            yield from _from(start, unpack(self._read(0, -1), self._packing))
        except PackedEndError as error:
            self.fault = Fault(error.error, error.message, error.wrong)

    def _decoded(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for block in self._recoded(_gathered(pieces)):
            self._given += len(block)
            yield block

    def _recoded(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        if self.codec == self.encoding:
            yield from blocks
            return
        decoder = codecs.getincrementaldecoder(self.encoding)(_MARKS)
        for block in blocks:
            yield decoder.decode(block).encode(UTF_8, "surrogatepass")
        yield decoder.decode(b"", final=True).encode(UTF_8, "surrogatepass")


@contextlib.contextmanager
def open_text(uri: str, dialect: Dialect, head: bytes | None = None) -> Iterator[CsvText]:
    """Opens a CSV file; see ``CsvText``.

    Raises:
        FileNotFoundError: It is not there.
        ChangedError: It is no file.
        StorageError: The medium failed.
    """
    with open_storage(uri).open_at(uri) as reader:
        yield CsvText(reader, dialect, head)


def wrong_byte(row: bytes, codec: str, encoding: str) -> int:
    """Returns the first byte of a row that is not decodable, as the file has it; -1: all are.

    Args:
        row: As the text has it.
        codec: Encoding of the text.
        encoding: Encoding of the file.
    """
    try:
        row.decode(codec)
    except UnicodeDecodeError as error:
        bad = row[error.start : error.start + 3]
        mark = bad.decode(UTF_8, "surrogatepass") if codec != encoding else ""
        return ord(mark) - _FIRST_MARK if mark else bad[0]
    return -1


def _mark(error: UnicodeError) -> tuple[str, int]:
    """Keeps bytes that do not decode as characters that no text has, one for each."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(chr(_FIRST_MARK + byte) for byte in wrong), error.end


codecs.register_error(_MARKS, _mark)


def _take(pieces: Iterator[bytes], size: int) -> bytes:
    """Returns the first bytes of a stream."""
    taken: list[bytes] = []
    for piece in pieces:
        taken.append(piece)
        size -= len(piece)
        if size <= 0:
            break
    joined = b"".join(taken)
    return joined[: len(joined) + min(size, 0)]


def _from(start: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yields a stream without its first bytes."""
    for piece in pieces:
        if len(piece) > start:
            yield piece[max(start, 0) :]
        start -= len(piece)


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yields a stream in blocks of about ``BLOCK_BYTES``."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= BLOCK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _encoding(head: bytes, declared: str) -> tuple[bytes, str]:
    """Returns the byte order mark and the encoding of a file that begins so."""
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return mark, encoding
    return b"", declared


def _byte_order(head: bytes) -> str:
    """Returns the byte order of UTF-16 or UTF-32 without a mark: most text has some ASCII."""
    first, last = head[0::4].count(0), head[3::4].count(0)
    return "-be" if first > last else "-le"


def _what_else(head: bytes) -> str:
    """Returns what a file that begins so is instead of text; empty where it may be text."""
    if compression_format(head):
        return "compressed twice"
    if starts_record(head):
        return "TFRecords"
    return describe_format(head)


def _wide(head: bytes, encoding: str) -> str:
    """Returns what text in UTF-16 is that is read as something else; empty where it is none."""
    if encoding.startswith(("utf-16", "utf-32")) or len(head) < _HEAD:
        return ""
    even, odd = head[0::2].count(0), head[1::2].count(0)
    some, none = max(even, odd), min(even, odd)
    if some > _WIDE * len(head) / 2 and none < (1 - _WIDE) * some:
        return "text in UTF-16, it seems: set --encoding=utf-16"
    return ""
