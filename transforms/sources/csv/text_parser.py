"""Parse arrays of texts as int64, float32 or booleans; report why a text does not parse.

Arrow parses the texts, but it also accepts ``0x10`` and turns ``1e400`` into infinity. An array
that contains only characters of plain numbers is left to Arrow; any other is classified by regular
expressions first. ``CellRules`` say which texts are missing, and how numbers are written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.schema_pbtxt.columns import INT64_MAX, SPACES, TimeKind
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.transforms.sources.csv.dialect import CellOptions
from shardmill.transforms.tables.byte_arrays import ByteStrings

FaultCodes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

INTEGER_CHARACTERS = b"0123456789-"  # no plus sign: Arrow does not parse it
NUMBER_CHARACTERS = b"0123456789-+.eE"
_WHOLE = r"\A[+-]?[0-9]+\z"
_PADDED = r"\A[+-]?0[0-9]+\z"
_SHORT = r"\A[+-]?0*[0-9]{1,19}\z"  # its digits are a uint64
_DECIMAL = r"\A[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\z"
_POINT_ZERO = r"\A([+-]?[0-9]+)\.0*\z"  # 123.0, as pandas writes integers of a float column
_INFINITE = r"(?i)\A[+-]?inf(inity)?\z"
_NAN = r"(?i)\A[+-]?nan\z"
_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:\.\d+)?(?:Z|([+-]\d\d):?(\d\d))?)?", re.ASCII
)
_DAY = 86_400  # seconds
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
EXACT_FLOAT32, EXACT_FLOAT64 = 1 << 24, 1 << 53  # below them all integers are exact
_CELLS_AT_ONCE = 1 << 15
_FEW_COLUMNS = 8  # whose cells take longer to join than the calls that this saves
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


class CellFault(IntEnum):
    """Why the text of a cell does not fit its column."""

    NONE = 0
    CAST = 1  # not a number (or boolean)
    PADDED = 2  # an integer with leading zeros
    OVERFLOW = 3  # a number out of range of the type
    BOUNDS = 4  # a number outside the schema's domain
    DOMAIN = 5  # a text outside the schema's domain
    MISSING = 6  # a missing cell of a required column


class Parsed(NamedTuple):
    """Values of texts.

    Attributes:
        values: The value of each text; arbitrary where the text has a fault.
        faults: ``CellFault`` of each text.
    """

    values: npt.NDArray[Any]
    faults: FaultCodes


def columns_at_once(rows: int) -> int:
    """Return how many columns of so many rows are parsed together.

    A table may have many columns and few rows: then calls would take longer than parsing.
    """
    columns = _CELLS_AT_ONCE // max(1, rows)
    if columns >= _FEW_COLUMNS:
        return columns
    return 1


def as_strings(texts: pa.Array) -> pa.Array:
    """Return the same bytes as Arrow strings, not validated; use with ASCII functions only."""
    return texts.view(pa.string())


def trim(texts: pa.Array) -> pa.Array:
    """Return the texts without ASCII white space at both ends."""
    return pc.ascii_trim_whitespace(as_strings(texts)).view(pa.binary())


def to_mask(flags: pa.Array) -> Mask:
    """Return Arrow booleans without nulls as a NumPy array."""
    return np.asarray(flags.to_numpy(zero_copy_only=False), np.bool_)


def is_one_of(texts: pa.Array, values: Iterable[bytes]) -> Mask:
    """Return which texts of a binary array are among some values."""
    return to_mask(pc.is_in(texts, value_set=pa.array(sorted(values), pa.binary())))


def find_missing(values: pa.Array) -> np.ndarray:
    """Return which values are missing: nulls and NaN; bool[n]."""
    return np.asarray(pc.is_null(values, nan_is_null=True).to_numpy(zero_copy_only=False))


def no_faults(texts: pa.Array) -> FaultCodes:
    """Return ``CellFault.NONE`` for each text."""
    return np.zeros(len(texts), np.uint8)


def matches(texts: pa.Array, pattern: str) -> Mask:
    """Return which texts match a regular expression (RE2, on bytes)."""
    return to_mask(pc.match_substring_regex(texts, pattern))


def parse_int64(texts: pa.Array, *, allow_padding: bool) -> Parsed:
    """Parse texts as int64: ``[+-]?digits``, also with ``.0``, with white space around.

    Args:
        texts: Binary array without nulls.
        allow_padding: Whether leading zeros are allowed ("007" is 7).
    """
    plain = _trim_plain(texts, INTEGER_CHARACTERS)
    if plain is not None:
        values = _cast(plain, pa.int64())
        if values is not None and (allow_padding or not _any_padded(plain)):
            return Parsed(values, no_faults(texts))
    trimmed = pc.replace_substring_regex(trim(texts), _POINT_ZERO, r"\1")
    faults = np.full(len(texts), CellFault.CAST, np.uint8)
    whole = matches(trimmed, _WHOLE)
    if not allow_padding:
        padded = matches(trimmed, _PADDED)
        faults[padded] = CellFault.PADDED
        whole &= ~padded
    faults[whole] = CellFault.OVERFLOW
    short = whole & matches(trimmed, _SHORT)
    signed = as_strings(trimmed.filter(pa.array(short)))
    negative = to_mask(pc.starts_with(signed, "-"))
    sizes = pc.cast(pc.ascii_ltrim(signed, characters="+-"), pa.uint64()).to_numpy()
    fits = sizes <= np.uint64(INT64_MAX) + negative
    faults[short] = np.where(fits, CellFault.NONE, CellFault.OVERFLOW)
    values = np.zeros(len(texts), np.int64)
    values[short] = np.where(negative, -sizes, sizes).view(np.int64)
    return Parsed(values, faults)


def is_rounded(whole: Parsed) -> Mask:
    """Return which integers float32 cannot hold; false where the text is not an integer."""
    values = whole.values
    differs = (values.astype(np.float32) != values) | (np.abs(values) > EXACT_FLOAT64)
    rounded: Mask = differs & (whole.faults == CellFault.NONE)
    return rounded


def parse_float32(texts: pa.Array) -> Parsed:
    """Parse texts as float32, via float64; see ``parse_float64``."""
    values, faults = parse_float64(texts)
    return Parsed(_to_float32(values), faults)


def parse_float64(texts: pa.Array) -> Parsed:
    """Parse texts as float64 in the range of float32: decimals, also with exponent and spaces.

    Args:
        texts: Binary array without nulls. Infinity is a number, NaN is not.
    """
    plain = _trim_plain(texts, NUMBER_CHARACTERS)
    if plain is not None:
        doubles = _cast(plain, pa.float64())
        if doubles is not None and np.isfinite(_to_float32(doubles)).all():
            return Parsed(doubles, no_faults(texts))
    trimmed = trim(texts)
    decimal = matches(trimmed, _DECIMAL)
    faults = np.full(len(texts), CellFault.CAST, np.uint8)
    faults[matches(trimmed, _NAN)] = CellFault.OVERFLOW
    numbers = as_strings(trimmed.filter(pa.array(decimal)))
    values = np.zeros(len(texts), np.float64)
    values[decimal] = pc.cast(numbers, pa.float64()).to_numpy()
    finite = np.isfinite(_to_float32(values[decimal]))
    faults[decimal] = np.where(finite, CellFault.NONE, CellFault.OVERFLOW)
    infinite = matches(trimmed, _INFINITE)
    faults[infinite] = CellFault.NONE
    values[infinite] = np.where(matches(trimmed, r"\A-")[infinite], -math.inf, math.inf)
    return Parsed(values, faults)


def parse_booleans(texts: pa.Array, booleans: tuple[str, str]) -> Parsed:
    """Parse texts as 1 and 0, ignoring ASCII case and white space around.

    Args:
        texts: Binary array without nulls.
        booleans: The texts for 1 and 0, folded by ``fold_boolean``. The digits 1 and 0 are booleans
            only if they are named here.
    """
    folded = pc.ascii_lower(pc.ascii_trim_whitespace(as_strings(texts)))
    indices = pc.index_in(folded, value_set=pa.array(booleans, pa.string()))
    codes = pc.fill_null(indices, 2).to_numpy(zero_copy_only=False)
    faults = np.where(codes == 2, CellFault.CAST, CellFault.NONE).astype(np.uint8)
    return Parsed((codes == 0).astype(np.int64), faults)


def parse_times(texts: pa.Array, kind: TimeKind, form: str) -> Parsed:
    """Parse dates and times as seconds or days since 1970 in UTC.

    Args:
        texts: Binary array without nulls.
        kind: ``datetime`` for seconds, ``date`` for days.
        form: Format as of ``datetime.strptime``; if empty, ISO 8601 with the date in front.
    """
    # Arrow's strptime takes February 30 for March 2, and its cast raises for one bad text.
    seconds = [_parse_time(text, form) for text in trim(texts).to_pylist()]
    faults = np.array([second is None for second in seconds], np.uint8) * np.uint8(CellFault.CAST)
    values = np.array([second or 0 for second in seconds], np.int64)
    if kind == "date":
        values //= _DAY
    return Parsed(values, faults)


def _parse_time(text: bytes, form: str) -> int | None:
    """Return the seconds since 1970 of a date and time, or None if the text is not one."""
    try:
        if form:
            time = datetime.strptime(text.decode(), form)  # noqa: DTZ007 - UTC by default
        else:
            match = _ISO.fullmatch(text.decode())
            if match is None:
                return None
            date, clock, hours, minutes = match.groups()
            offset = f"{hours}:{minutes}" if hours else ""
            time = datetime.fromisoformat(f"{date}T{clock or '00:00'}{offset}")
    except ValueError:  # also of text that is not UTF-8
        return None
    zoned = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    return (zoned - _EPOCH) // timedelta(seconds=1)


def _trim_plain(texts: pa.Array, characters: bytes) -> pa.Array | None:
    """Return the trimmed texts if they contain only these characters and white space."""
    others = ByteStrings.of_arrow(texts).data.tobytes().translate(None, characters)
    if others.translate(None, SPACES.encode()):
        return None
    if others:
        return trim(texts)
    return texts


def _cast(texts: pa.Array, kind: pa.DataType) -> npt.NDArray[Any] | None:
    """Return the values as Arrow parses them, or None if one does not parse."""
    try:
        return np.asarray(pc.cast(as_strings(texts), kind).to_numpy())
    except pa.ArrowInvalid:
        return None


def _any_padded(texts: pa.Array) -> bool:
    """Return whether an integer has leading zeros; no text is empty or a lone sign."""
    data, offsets = ByteStrings.of_arrow(texts)
    starts = offsets[:-1]
    minus = data[starts] == ord("-")
    return bool(((data[starts + minus] == ord("0")) & (np.diff(offsets) - minus > 1)).any())


def _to_float32(doubles: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return doubles.astype(np.float32)


@dataclass(frozen=True)
class CellRules:
    """How the texts of cells are read.

    Attributes:
        numbers: Texts of missing cells in int64 and float32 columns, ignoring white space around.
        texts: Exact texts of missing cells in bytes columns.
        decimal: Character before the fraction of a number.
        thousands: Character between groups of three digits of a number, or empty.
    """

    numbers: frozenset[bytes] = frozenset(text.encode() for text in NUMERIC_NULLS)
    texts: frozenset[bytes] = frozenset({b""})
    decimal: str = "."
    thousands: str = ""

    @classmethod
    def of(cls, texts: Iterable[str] | None, options: CellOptions | None = None) -> CellRules:
        """Return the rules of options.

        Args:
            texts: Texts of missing cells in all columns; None for the default.
            options: How numbers are written.
        """
        options = options or CellOptions()
        numbers, others = cls.numbers, cls.texts
        if texts is not None:
            numbers = others = frozenset(text.encode() for text in texts)
        if options.infinity == "missing":
            numbers |= _INFINITIES
        return cls(numbers, others, options.decimal, options.thousands)

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

    def missing(self, kind: Kind, cells: pa.Array) -> Mask:
        """Return which distinct cells of a column are missing; nulls are."""
        nulls = find_missing(cells)
        if cells.type != pa.binary():
            return nulls
        texts = pc.fill_null(cells, b"-")
        other = self.missing_texts(texts) if kind == "bytes" else self.missing_numbers(texts)
        return nulls | other

    def missing_texts(self, texts: pa.Array) -> Mask:
        """Return which texts of a bytes column are missing."""
        return is_one_of(texts, self.texts)

    def missing_numbers(self, texts: pa.Array) -> Mask:
        """Return which texts of a numeric column are missing."""
        # A cell of white space only is not empty.
        trimmed = is_one_of(trim(texts), self.numbers - {b""})
        return is_one_of(texts, self.numbers) | trimmed
