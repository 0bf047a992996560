"""How CSV files are written: what separates cells and rows, and in which encoding."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from shardmill.schemas.errors import UsageError

HeaderMode = Literal["first", "none"]

UTF_8 = "utf-8"
_TABS = frozenset({"tab", "\\t"})
_BREAKS = frozenset("\r\n")
_SAME_AS_UTF_8 = frozenset({"utf-8-sig", "cp65001"})
# Python counts them as encodings of text; as encodings of files they are traps.
_NO_FILES = frozenset(
    {"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "mbcs", "oem"}
)
_TSV = re.compile(r"\.(tsv|tab)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)
SHOWN = 80


@dataclass(frozen=True)
class Dialect:
    r"""How CSV files are written.

    Attributes:
        delimiter: What stands between two cells: one or more characters; ``tab`` and ``\t`` mean
            the tabulator.
        quote: What stands around a cell that holds delimiters or line breaks, doubled inside; one
            ASCII character, or empty where quotes mean nothing.
        encoding: Python's name of the text encoding. A byte order mark in a file wins over it.
        header: Whether the first row is names or data.
        columns: Names that stand in for those of the header, or name the columns where there is
            none. Without either they are ``column_1``, ``column_2`` and so on.
        skip_lines: Lines before the header (or first row) that are no part of the table.
        strip: Whether white space at both ends of a cell is dropped.

    Raises:
        UsageError: One of them breaks its rule.
    """

    delimiter: str = ","
    quote: str = '"'
    encoding: str = UTF_8
    header: HeaderMode = "first"
    columns: tuple[str, ...] = ()
    skip_lines: int = 0
    strip: bool = False

    def __post_init__(self) -> None:
        if self.delimiter in _TABS:
            object.__setattr__(self, "delimiter", "\t")
        object.__setattr__(self, "encoding", _codec_name(self.encoding))
        _check_quote(self.quote)
        _check_delimiter(self.delimiter, self.quote, self.encoding)
        _check_columns(self.columns)
        if self.header not in ("first", "none"):
            raise UsageError(
                f"--header={self.header} is unknown: use first where the first row names the "
                "columns, or none."
            )
        if self.skip_lines < 0:
            raise UsageError(f"--skip_lines={self.skip_lines} must be 0 or more.")

    def for_name(self, name: str) -> Dialect:
        """Returns how a file of this name is written: in .tsv files tabs stand for commas."""
        if self.delimiter == "," and _TSV.search(name):
            return replace(self, delimiter="\t")
        return self


def shown(text: str) -> str:
    """Returns a value as messages quote it, cut where it is long."""
    return repr(text) if len(text) <= SHOWN else repr(text[:SHOWN]) + "…"


@lru_cache(maxsize=64)
def is_transparent(encoding: str) -> bool:
    """Tells whether a file's bytes can be read as CSV before they are decoded.

    They can in UTF-8, and in all encodings of one byte a character that ASCII is a part of.
    """
    if encoding == UTF_8:
        return True
    try:
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        letters = [decoder.decode(bytes((byte,))) for byte in range(256)]
    except (UnicodeError, AssertionError):  # the latter from encodings that know no "replace"
        return False
    ascii_part = "".join(letters[:128]) == bytes(range(128)).decode("ascii")
    return ascii_part and all(len(letter) == 1 and not letter.isascii() for letter in letters[128:])


def _codec_name(encoding: str) -> str:
    try:
        codec = codecs.lookup(encoding)
    except (LookupError, ValueError):  # the latter for NULs in the name
        codec = None
    is_text = codec is not None and getattr(codec, "_is_text_encoding", True)
    name = codec.name.replace("_", "-") if codec is not None else ""
    if not is_text or name in _NO_FILES:
        raise UsageError(
            f"--encoding={encoding} is no text encoding that Python knows: use utf-8, utf-16, "
            "latin-1, cp1252 or another one."
        )
    return UTF_8 if name in _SAME_AS_UTF_8 else name


def _check_quote(quote: str) -> None:
    if not quote:
        return
    if len(quote) > 1 or not quote.isascii() or quote in "\r\n\0":
        raise UsageError(
            f"--quote={quote!r} must be one ASCII character and no line break, or empty where "
            "quotes mean nothing."
        )


def _check_delimiter(delimiter: str, quote: str, encoding: str) -> None:
    if not delimiter or _BREAKS & set(delimiter):
        raise UsageError(
            f"--delimiter={delimiter!r} must be one or more characters and no line break, as in "
            "--delimiter=';' or --delimiter=tab."
        )
    if quote and quote in delimiter:
        raise UsageError(
            f"--delimiter={delimiter!r} holds the quote {quote!r}: choose another --quote, or "
            "--quote= where quotes mean nothing."
        )
    try:
        delimiter.encode(encoding)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"--delimiter={delimiter!r} has no place in --encoding={encoding}: choose another."
        ) from error


def _check_columns(columns: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for name in columns:
        if not name:
            raise UsageError("--columns has an empty name: give each column a name.")
        if name in seen:
            raise UsageError(f"--columns names {shown(name)} twice: give each column its own name.")
        seen.add(name)
