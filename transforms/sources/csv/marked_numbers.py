"""Recognize columns of numbers with a currency, a unit or separators: $1,000, 5%, 3 kg, 1 234.

No option reads most of them, and a table has them as text. Whether a cell is such a number is a
guess, so that it decides a warning only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_MOST = 0.9  # share of the cells that are numbers
MOST_TEXTS = 1000  # distinct texts that are looked at
FEW_TEXTS = 20  # the first ones, which exclude most columns of other texts
_CURRENCY = (
    r"(?:[A-Z]{0,3}[$€£¥₹₽₩₺₴₫฿₦₱₪₡¢]|USD|EUR|GBP|JPY|CHF|CNY|INR|RUB|BRL|AUD|CAD|SEK|NOK|DKK|PLN"
    r"|CZK|HUF|kr\.?|zł|Kč|Rs\.?|Fr\.)"
)
_GROUPED = r"[1-9]\d{0,2}(?P<mark>[ ,.'\u2019\u00a0\u2009\u202f])\d{3}(?:(?P=mark)\d{3})*"
_INDIAN = r"[1-9]\d?(?:,\d\d)+,\d{3}"
_NUMBER = rf"(?=[.,]?\d)(?:(?P<grouped>{_GROUPED}|{_INDIAN})|\d+)?(?:[.,]\d+)?"
_BEFORE = rf"(?P<before>{_CURRENCY}|[<>≤≥≈~±])"
_AFTER = rf"(?P<after>{_CURRENCY}|%|‰|\+|°[CF]?|(?P<unit>[^\W\d_][^\s\d]{{0,9}}))"
_DASHES = "\u2212\u2013"  # the sign of typesetters and of some spreadsheets
_SIGN = rf"(?P<sign>[-+{_DASHES}])"
_MARKED = re.compile(rf"(?P<open>\()?{_SIGN}?{_BEFORE}?\s?[-+]?{_NUMBER}\s?{_AFTER}?(?P<end>[-)])?")
_ZERO = re.compile(rf"{_CURRENCY}?\s*[-\u2013\u2014]\s*{_CURRENCY}?")  # of accounts in spreadsheets
_UNITS = re.compile(
    r"[kKMBt]|bn|mn|[kmµ]?g|lbs?|oz|[kcm]?m|mi|ft|in|m?l|m?s|sec|min|h|hrs?|(day|week|month|year|yr)s?"
    r"|px|[kKMGT]B|kWh?|[kMG]?Hz"
)


def may_be_marked(texts: Sequence[str]) -> bool:
    """Return whether half of some texts of a column are numbers, with marks or without."""
    matches = sum(_MARKED.fullmatch(text.strip()) is not None for text in texts)
    return bool(texts) and 2 * matches >= len(texts)


def find_marked(texts: Sequence[str], counts: Sequence[int]) -> int:
    """Return the place of the first number with marks in a column of them, or -1.

    Args:
        texts: Distinct texts of a column, without missing ones.
        counts: Number of cells of each.
    """
    matches = [_MARKED.fullmatch(text.strip()) for text in texts]
    units = Counter[str]()
    for match, count in zip(matches, counts, strict=True):
        if match is not None:
            units[match["unit"] or ""] += count
    needed = _MOST * sum(counts)
    # Codes such as 12A and 12B have several letters after the number, amounts in grams one unit.
    shared = {unit for unit, count in units.items() if _UNITS.fullmatch(unit) or count >= needed}
    numbers = sum(count for unit, count in units.items() if not unit or unit in shared)
    pairs = zip(texts, counts, strict=True)
    numbers += sum(count for text, count in pairs if _ZERO.fullmatch(text.strip()))
    if numbers < needed:
        return -1
    marked = [number for number, match in enumerate(matches) if match and _has_mark(match, shared)]
    grouped_only = all(_is_grouped_only(matches[number]) for number in marked)
    # All groups of telephone numbers and postal codes have as many digits.
    if grouped_only and not any(re.match(r"\D?\d\d?\D", texts[number]) for number in marked):
        return -1
    if marked:
        return marked[0]
    return -1


def _has_mark(match: re.Match[str], units: set[str]) -> bool:
    """Return whether a number has something that is not part of a plain number."""
    if match["unit"]:
        return match["unit"] in units
    marks = match["open"], match["before"], match["grouped"], match["after"], match["end"]
    return any(marks) or (match["sign"] or "+") in _DASHES


def _is_grouped_only(match: re.Match[str] | None) -> bool:
    """Return whether separators of thousands are all that a number has."""
    if match is None or not match["grouped"]:
        return False
    return not (match["open"] or match["before"] or match["after"] or match["end"])
