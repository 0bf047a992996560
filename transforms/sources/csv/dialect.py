"""The options of CSV: delimiter, quote, header, encoding, and how cells become numbers."""

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

WHITESPACE = "whitespace"
_TAB_NAMES = frozenset({"tab", "\\t"})
_CODE = re.compile(r"\\x([0-9a-fA-F]{2})|\\([0-3][0-7]{2})")  # of a control character
_LINE_BREAKS = frozenset("\r\n")
_UTF_8_ALIASES = frozenset({"utf-8-sig", "cp65001"})
_TSV = re.compile(r"\.(tsv|tab)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)


@dataclass(kw_only=True)
class CellOptions(of.Options):
    """How the texts of cells become numbers.

    Attributes:
        decimal: ``CHAR``: before the fraction of a number: . (default) or ,
        thousands: ``CHAR``: between groups of three digits of a number
        infinity: ``HOW``: inf in a numeric column is a number (default) or missing

    Raises:
        UsageError: ``thousands`` is part of other numbers.
    """

    decimal: of.Choice[Literal[".", ","]] = of.choice((".", ","), ".")
    thousands: of.Text = of.text()
    infinity: of.Choice[Literal["number", "missing"]] = of.choice(("number", "missing"), "number")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.thousands) > 1 or self.thousands in {*"0123456789+-eE", self.decimal}:
            raise UsageError(
                f"--thousands={self.thousands!r}: must be one character that is not part of a "
                f"number with --decimal={self.decimal!r}, such as a comma, a point, a space or an "
                "apostrophe."
            )


@dataclass(kw_only=True)
class CsvFormat(of.Options):
    r"""The format of CSV, apart from its encoding.

    Without a header and ``columns``, columns are named ``column_1``, ``column_2`` and so on.

    Attributes:
        delimiter: ``TEXT``: between cells (default: a comma; in .tsv files a tab); whitespace for
            any number of spaces and tabs; \x01 for a control character
        quote: ``CHAR``: around cells (default: "); empty for none
        escape: ``CHAR``: makes the next character part of a cell, such as a backslash
        comment: ``CHAR``: starts lines that are not rows, such as #
        pad_rows: add empty cells to rows that have too few
        header: ``WHERE``: first (default: the first row) or none
        columns: ``LIST``: names of the columns, for files without a header
        skip_lines: ``N``: number of lines before the header
        strip: strip white space around cells

    Raises:
        UsageError: A value breaks its rule.
    """

    delimiter: of.Text = of.text(",", (",", ";", "tab", WHITESPACE))
    quote: of.Text = of.text('"')
    escape: of.Text = of.text()
    comment: of.Text = of.text()
    pad_rows: of.Switch = of.switch()
    header: of.Choice[Literal[""] | HeaderMode] = of.choice(get_args(HeaderMode), "")
    columns: of.Names = of.names()
    skip_lines: of.Int = of.whole(0)
    strip: of.Switch = of.switch()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("quote", "comment", "escape"):
            value = getattr(self, name)
            if value and (len(value) > 1 or not value.isascii() or value in "\r\n\0"):
                raise UsageError(
                    f"--{name}={value!r}: must be one ASCII character other than a line break, or "
                    "empty if none has this meaning."
                )
        _check_special(self.separator, self.quote, self.comment, self.escape)
        _check_delimiter(self.separator, self.quote)
        _check_columns(self.columns)

    @property
    def delimiter_text(self) -> str:
        r"""The delimiter, or ``WHITESPACE``; not the name of a tab, or a code such as ``\x01``."""
        if self.delimiter in _TAB_NAMES:
            return "\t"
        text = self.delimiter.replace(r"\t", "\t")
        return _CODE.sub(lambda code: chr(int(code[1] or code[2], 16 if code[1] else 8)), text)

    @property
    def separator(self) -> str:
        """The delimiter; a space for white space."""
        if self.delimiter == WHITESPACE:
            return " "
        return self.delimiter_text

    @property
    def header_mode(self) -> HeaderMode:
        """``first`` if the first row holds the column names, ``none`` if it is data."""
        if self.header:
            return self.header
        if self.columns:
            return "none"
        return "first"


@dataclass(kw_only=True, unsafe_hash=True)  # its values do not change
class Dialect(CsvFormat):
    """The format of CSV files.

    Attributes:
        encoding: ``NAME``: utf-8 (default), utf-16, latin-1, ...

    A byte order mark in a file overrides the encoding.
    """

    encoding: of.Text = of.text("utf-8", ("utf-8", "utf-16", "latin-1"))

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            self.separator.encode(self.codec)
        except UnicodeEncodeError as error:
            raise UsageError(
                f"--delimiter={self.separator!r} does not exist in --encoding={self.codec}: choose "
                "another."
            ) from error

    @property
    def codec(self) -> str:
        """Python's name of the encoding.

        Raises:
            UsageError: Python does not have it.
        """
        return _codec_name(self.encoding)

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


@lru_cache(maxsize=64)
def _codec_name(encoding: str) -> str:
    name = find_codec(encoding)
    if not name:
        raise UsageError(
            f"--encoding={encoding}: must be a text encoding that Python knows, such as utf-8, "
            "utf-16, latin-1 or cp1252."
        )
    if name in _UTF_8_ALIASES:
        return UTF_8
    return name


def _check_special(delimiter: str, quote: str, comment: str, escape: str) -> None:
    used = {*delimiter, quote}
    for flag, value in (("comment", comment), ("escape", escape)):
        if value and value in used:
            raise UsageError(
                f"--{flag}={value!r} is part of the delimiter or has another meaning: choose "
                "another character."
            )
        used.add(value)


def _check_delimiter(delimiter: str, quote: str) -> None:
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


def _check_columns(columns: tuple[str, ...]) -> None:
    if not all(columns):
        raise UsageError("--columns has an empty name: give each column a name.")
    twice = next((name for name, count in Counter(columns).items() if count > 1), None)
    if twice is not None:
        raise UsageError(
            f"--columns names {format_value(twice)} twice: give each column another name."
        )
