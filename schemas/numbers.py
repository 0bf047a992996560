"""Formats numbers and texts for people, and parses sizes and durations."""

from __future__ import annotations

import re

from shardmill.schemas.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?")
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DURATION = re.compile(r"(\d{1,9})([smhd])")


def human_bytes(size: float) -> str:
    """Return a size in the largest fitting unit, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            if unit == "B":
                return f"{size:,.0f} {unit}"
            return f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def short_number(value: object, digits: int = 6) -> str:
    """Return a number with so many significant digits, other values as text, None as ``-``.

    Digits before the decimal point are never rounded.
    """
    if isinstance(value, float):
        whole = 10**digits - 0.5 <= abs(value) < 1e15
        if whole:
            return f"{value:,.0f}"
        return f"{value:,.{digits}g}"
    if isinstance(value, int):
        return f"{value:,}"
    if value is None:
        return "-"
    return str(value)


def plural(count: int, noun: str) -> str:
    """Return a number with its noun, as in ``1 shard`` and ``2 shards``."""
    if count != 1:
        noun += "s"
    return f"{count:,} {noun}"


def human_duration(seconds: int) -> str:
    """Format a duration in its largest unit that gives at least 2."""
    for unit, noun in (("d", "day"), ("h", "hour"), ("m", "minute")):
        if seconds >= 2 * _UNITS[unit]:
            return plural(seconds // _UNITS[unit], noun)
    return plural(seconds, "second")


def parse_duration(text: str, flag: str) -> int:
    """Return the seconds of a text such as ``90s``, ``15m``, ``1h``, ``2d`` or ``0``.

    Args:
        text: The text.
        flag: Flag with that value, for the message.

    Raises:
        UsageError: The text is not a duration.
    """
    match = _DURATION.fullmatch(text)
    if match is not None and text.isascii():
        return int(match[1]) * _UNITS[match[2]]
    if text == "0":
        return 0
    raise UsageError(f"{flag}={text} is not a duration: write it as in 90s, 15m, 1h, 2d, or 0.")


def parse_bytes(text: str, flag: str) -> int:
    """Return the bytes of a size such as ``128MiB``, ``1G`` or ``5000`` (powers of 1024).

    Raises:
        UsageError: The text is not a size.
    """
    match = _SIZE.fullmatch(text.strip().upper())
    if match is None:
        raise UsageError(f"--{flag}={text} is not a size: write it as in 128MiB, 1GiB or 5000.")
    return int(float(match.group(1)) * _SIZES[match.group(2)])


def format_bytes(size: int) -> str:
    """Format a size so that ``parse_bytes`` returns it."""
    value, unit = max((value, unit) for unit, value in _SIZES.items() if size % value == 0)
    if unit:
        return f"{size // value}{unit}iB"
    return str(size)


def printable(text: str) -> str:
    """Return a text with its unprintable characters escaped.

    File names and data may hold anything: no character may move the cursor, change colours or
    break a line.
    """
    if text.isprintable():
        return text
    escapes = {ord(c): c.encode("unicode_escape").decode() for c in text if not c.isprintable()}
    return text.translate(escapes)
