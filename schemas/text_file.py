"""Decode small text files of any producer: lists, labels, annotations and options.

A byte order mark decides the encoding; else a declaration in the text, as in XML; else UTF-8; else
UTF-16, recognized by the zero bytes of ASCII characters. A code page cannot be recognized, and a
guess would change names: such a file is an error that says how to convert it.
"""

from __future__ import annotations

import codecs
import io
import re
from typing import Any

from shardmill.schemas.errors import InputError

UTF_8 = "utf-8"
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16's mark, which begins it
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Python lists these as text encodings, but no file is written in them.
_NOT_FOR_FILES = frozenset(
    {"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "mbcs", "oem"}
)
# Programs declare the left one and write the right one, which has more characters.
_SUPERSETS = {
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift-jis": "cp932",
    "big5": "cp950",
    "euc-kr": "cp949",
}
_XML_ENCODING = re.compile(
    rb"""<\?xml\s[^>]{0,200}?encoding\s*=\s*["']([A-Za-z][\w.:-]{0,40})["']"""
)
_LINE_BREAK = re.compile("\r\n|\r|\n")
_MARK_OF_LINE = re.compile("^\ufeff+", re.MULTILINE)
_HEAD_BYTES = 64 << 10


class TextError(ValueError):
    """Bytes that cannot be read as text; the text continues "it is" or the name of the file."""


def find_mark(data: bytes) -> tuple[bytes, str]:
    """Return the byte order mark at the start of data and its encoding, or two empty values."""
    marks = ((mark, encoding) for mark, encoding in _MARKS if data.startswith(mark))
    return next(marks, (b"", ""))


def find_utf_16(data: bytes) -> str:
    """Return the UTF-16 encoding that zero bytes in every other place show, or an empty text.

    More than half of the characters must have one, and none may have it in the other byte: a text
    of UTF-8 with a few zero bytes, or that ends with one, is not UTF-16.
    """
    first, second = data[0::2].count(0), data[1::2].count(0)
    characters, odd = divmod(len(data), 2)
    if odd or (first and second) or 2 * max(first, second) <= characters:
        return ""
    if first:
        return "utf-16-be"
    return "utf-16-le"


def find_codec(name: str) -> str:
    """Return Python's name of an encoding of text files, or an empty text if it has none."""
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError):  # ValueError: the name contains NUL
        return ""
    codec_name = codec.name.replace("_", "-")
    is_text = getattr(codec, "_is_text_encoding", True) and codec_name not in _NOT_FOR_FILES
    if is_text:
        return codec_name
    return ""


def decode_text(data: bytes) -> str:
    """Return the text of a small file, without byte order marks at the start of lines.

    Raises:
        TextError: Its encoding is not known, or it has NUL characters.
    """
    mark, encoding = find_mark(data)
    encoding = encoding or find_utf_16(data) or UTF_8
    return _decode(data[len(mark) :], [encoding])


def decode_head(data: bytes) -> str:
    """Return the text that a file begins with, with replaced bytes where it is not text."""
    mark, encoding = find_mark(data)
    return data[len(mark) :].decode(encoding or find_utf_16(data) or UTF_8, "replace")


def decode_lines(data: bytes) -> list[str]:
    """Return the lines of a small file; see ``decode_text``."""
    return _LINE_BREAK.split(decode_text(data))


def decode_xml(data: bytes) -> str:
    """Return the text of an XML document, which may declare its encoding (XML 1.0, section 4.3.3).

    Raises:
        TextError: See ``decode_text``; or the declared encoding is unknown.
    """
    declaration = _XML_ENCODING.match(data)
    if not declaration or find_mark(data)[0]:
        return decode_text(data)
    declared = declaration[1].decode("ascii")
    codec = find_codec(declared)
    if not codec:
        raise TextError(f"declared as {declared!r}, which is not an encoding; save it as UTF-8")
    # A document whose declaration can be read as ASCII is not in UTF-16.
    if "<?xml".encode(codec) != b"<?xml":
        return decode_text(data)
    return _decode(data, [codec, _SUPERSETS.get(codec.replace("_", "-"), codec), UTF_8])


def _decode(data: bytes, encodings: list[str]) -> str:
    problem = ""
    for encoding in encodings:
        try:
            text = data.decode(encoding)
            break
        except UnicodeDecodeError as error:
            problem = problem or _describe(error)
    else:
        raise TextError(problem)
    if "\0" in text:
        line = _count_lines(text[: text.index("\0")])
        raise TextError(f"not text (line {line} has a NUL character); save it as UTF-8")
    if "\ufeff" in text:
        return _MARK_OF_LINE.sub("", text)
    return text


def _describe(error: UnicodeDecodeError) -> str:
    line = _count_lines(error.object[: error.start].decode(error.encoding, "replace"))
    byte, encoding = error.object[error.start], error.encoding.upper()
    return f"not {encoding} (line {line} has the byte 0x{byte:02x}); save it as UTF-8"


def _count_lines(text: str) -> int:
    return len(_LINE_BREAK.split(text))


class Utf8Stream:
    """Reads a text file of UTF-8 or UTF-16 as UTF-8, without a byte order mark.

    Args:
        file: The file, from its start.
    """

    def __init__(self, file: io.BufferedReader[Any]) -> None:
        head = file.peek(_HEAD_BYTES)[:_HEAD_BYTES]
        mark, encoding = find_mark(head)
        file.read(len(mark))
        self._file = file
        self._encoding = encoding or find_utf_16(head) or UTF_8
        self._decoder = codecs.getincrementaldecoder(self._encoding)()

    def read(self, size: int = -1) -> bytes:
        """Return about as many of the next bytes, or none at the end of the file.

        Raises:
            TextError: They are not text of the encoding.
        """
        while True:
            data = self._file.read(size)
            try:
                text = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                byte, encoding = error.object[error.start], self._encoding.upper()
                raise TextError(
                    f"not {encoding} (a byte is 0x{byte:02x}); save it as UTF-8"
                ) from error
            if text or not data:  # the first bytes of a character give none
                return text.encode()


def unreadable_text(source: object, problem: object) -> InputError:
    """Return the error for a text file that cannot be decoded."""
    return InputError(f"{source} cannot be read as text: it is {problem}.")
