"""Dialect: delimiter, quote, header and encoding of CSV files."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

from shardmill.schemas import option_types as of
from shardmill.schemas.errors import UsageError, format_value
from shardmill.schemas.text_file import UTF_8, find_codec

HeaderMode = Literal["first", "none"]
HEADER = of.choice(get_args(HeaderMode), "first")
SKIP_LINES = of.whole(0)

WHITESPACE = "whitespace"
_TAB_NAMES = frozenset({"tab", "\\t"})
_LINE_BREAKS = frozenset("\r\n")
_UTF_8_ALIASES = frozenset({"utf-8-sig", "cp65001"})
_TSV = re.compile(r"\.(tsv|tab)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)


@dataclass(frozen=True)
class Dialect:
    r"""The format of CSV files.

    Attributes:
        delimiter: One or more characters between two cells; ``tab`` and ``\t`` mean a tab, and
            ``whitespace`` any number of spaces and tabs, which are ignored around rows.
        quote: Character around cells that contain delimiters or line breaks, doubled inside; one
            ASCII character, or empty if quotes have no meaning.
        encoding: Python name of the text encoding. A byte order mark in a file overrides it.
        header: ``first`` if the first row holds the column names, ``none`` if it is data.
        columns: Column names that replace the header, or supply names where there is no header.
            Without either, columns are named ``column_1``, ``column_2`` and so on.
        skip_lines: Lines to skip before the header or first row.
        strip: Whether white space at both ends of a cell is dropped.
        comment: ASCII character that starts lines without a row, or empty.
        escape: ASCII character that makes the next one an ordinary character, or empty.
        pad_rows: Whether rows with too few cells get empty ones at their end.

    Raises:
        UsageError: A value breaks its rule.
    """

    delimiter: str = ","
    quote: str = '"'
    encoding: str = UTF_8
    header: of.Choice[HeaderMode] = HEADER
    columns: tuple[str, ...] = ()
    skip_lines: of.Int = SKIP_LINES
    strip: bool = False
    comment: str = ""
    escape: str = ""
    pad_rows: bool = False

    def __post_init__(self) -> None:
        if self.delimiter in _TAB_NAMES:
            object.__setattr__(self, "delimiter", "\t")
        object.__setattr__(self, "encoding", _codec_name(self.encoding))
        for name in ("quote", "comment", "escape"):
            value = getattr(self, name)
            if value and (len(value) > 1 or not value.isascii() or value in "\r\n\0"):
                raise UsageError(
                    f"--{name}={value!r}: must be one ASCII character other than a line break, or "
                    "empty if none has this meaning."
                )
        _check_special(self.separator, self.quote, self.comment, self.escape)
        _check_delimiter(self.separator, self.quote, self.encoding)
        _check_columns(self.columns)

    @property
    def separator(self) -> str:
        """The delimiter; a space for white space."""
        return " " if self.delimiter == WHITESPACE else self.delimiter

    def for_name(self, name: str) -> Dialect:
        """Return the dialect of a file of this name: .tsv files have tabs instead of commas."""
        if self.delimiter == "," and _TSV.search(name):
            return replace(self, delimiter="\t")
        return self


@lru_cache(maxsize=64)
def is_ascii_compatible(encoding: str) -> bool:
    """Return whether a file's bytes can be split into rows and cells before they are decoded.

    True for UTF-8 and for single-byte encodings that extend ASCII.
    """
    if encoding == UTF_8:
        return True
    try:
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        characters = [decoder.decode(bytes((byte,))) for byte in range(256)]
    except (UnicodeError, AssertionError):  # AssertionError: the codec lacks "replace"
        return False
    low, high = characters[:128], characters[128:]
    return "".join(low) == bytes(range(128)).decode("ascii") and all(
        len(character) == 1 and not character.isascii() for character in high
    )


def _codec_name(encoding: str) -> str:
    name = find_codec(encoding)
    if not name:
        raise UsageError(
            f"--encoding={encoding}: must be a text encoding that Python knows, such as utf-8, "
            "utf-16, latin-1 or cp1252."
        )
    return UTF_8 if name in _UTF_8_ALIASES else name


def _check_special(delimiter: str, quote: str, comment: str, escape: str) -> None:
    used = {*delimiter, quote}
    for flag, value in (("comment", comment), ("escape", escape)):
        if value and value in used:
            raise UsageError(
                f"--{flag}={value!r} is part of the delimiter or has another meaning: choose "
                "another character."
            )
        used.add(value)


def _check_delimiter(delimiter: str, quote: str, encoding: str) -> None:
    if not delimiter or _LINE_BREAKS & set(delimiter):
        raise UsageError(
            f"--delimiter={delimiter!r}: must be one or more characters without line breaks, such "
            "as --delimiter=';' or --delimiter=tab."
        )
    if quote and quote in delimiter:
        raise UsageError(
            f"--delimiter={delimiter!r} contains the quote {quote!r}: choose another --quote, or "
            "--quote= if quotes have no meaning."
        )
    try:
        delimiter.encode(encoding)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"--delimiter={delimiter!r} does not exist in --encoding={encoding}: choose another."
        ) from error


def _check_columns(columns: tuple[str, ...]) -> None:
    if not all(columns):
        raise UsageError("--columns has an empty name: give each column a name.")
    twice = next((name for name, count in Counter(columns).items() if count > 1), None)
    if twice is not None:
        raise UsageError(
            f"--columns names {format_value(twice)} twice: give each column another name."
        )
