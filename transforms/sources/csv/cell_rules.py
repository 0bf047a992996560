"""CellRules: which texts of cells are missing, and how numbers are written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.errors import UsageError
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.transforms.sources.csv import arrow_values, text_parser

# Texts of missing numbers unless --null_values is given: the defaults of pyarrow.csv, and the
# values that R, pandas, Python and the UCI archive write.
NUMERIC_NULLS = frozenset(
    {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
    | {"<NA>", "?", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
)
_INFINITIES = frozenset(
    f"{sign}{case(word)}".encode()
    for sign in ("", "+", "-")
    for word in ("inf", "infinity")
    for case in (str.lower, str.upper, str.title)
)


@dataclass(frozen=True)
class CellRules:
    """How the texts of cells are read.

    Attributes:
        numbers: Texts of missing cells in int64 and float32 columns, ignoring white space around.
        texts: Exact texts of missing cells in bytes columns.
        decimal: Character before the fraction of a number.
        thousands: Character between groups of three digits of a number, or empty.

    Raises:
        UsageError: ``thousands`` is part of other numbers.
    """

    numbers: frozenset[bytes] = frozenset(text.encode() for text in NUMERIC_NULLS)
    texts: frozenset[bytes] = frozenset({b""})
    decimal: str = "."
    thousands: str = ""

    def __post_init__(self) -> None:
        if len(self.thousands) > 1 or self.thousands in {*"0123456789+-eE", self.decimal}:
            raise UsageError("thousands-invalid", text=self.thousands, decimal=self.decimal)

    @classmethod
    def of(cls, texts: Iterable[str] | None, *, infinity: bool = True, **marks: str) -> CellRules:
        """Return the rules of options.

        Args:
            texts: Texts of missing cells in all columns; None for the default.
            infinity: Whether infinity is a number; if not, it is missing.
            marks: ``decimal`` and ``thousands``.
        """
        numbers, others = cls.numbers, cls.texts
        if texts is not None:
            numbers = others = frozenset(text.encode() for text in texts)
        return cls(numbers if infinity else numbers | _INFINITIES, others, **marks)

    def plain(self, texts: pa.Array) -> pa.Array:
        """Return the texts with numbers as in program text; other texts do not become numbers."""
        if self.thousands:
            mark, point = re.escape(self.thousands), re.escape(self.decimal)
            grouped = rf"\A\s*[+-]?[0-9]{{1,3}}({mark}[0-9]{{3}})+({point}[0-9]*)?\s*\z"
            joined = pc.replace_substring(texts, self.thousands, "")
            texts = pc.if_else(pc.match_substring_regex(texts, grouped), joined, texts)
        if self.decimal == ".":
            return texts
        return pc.replace_substring(pc.replace_substring(texts, ".", "\0"), self.decimal, ".")

    def missing(self, kind: Kind, cells: pa.Array) -> text_parser.Mask:
        """Return which distinct cells of a column are missing; nulls are."""
        found = arrow_values.find_missing(cells)
        if cells.type != pa.binary():
            return found
        texts = pc.fill_null(cells, b"-")
        other = self.missing_texts(texts) if kind == "bytes" else self.missing_numbers(texts)
        return found | other

    def missing_texts(self, texts: pa.Array) -> text_parser.Mask:
        """Return which texts of a bytes column are missing."""
        return text_parser.is_one_of(texts, self.texts)

    def missing_numbers(self, texts: pa.Array) -> text_parser.Mask:
        """Return which texts of a numeric column are missing."""
        # A cell of white space only is not empty.
        trimmed = text_parser.is_one_of(text_parser.trim(texts), self.numbers - {b""})
        return text_parser.is_one_of(texts, self.numbers) | trimmed
