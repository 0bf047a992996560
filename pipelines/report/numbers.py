"""Numbers as people read and write them."""

from __future__ import annotations

import re

from shardmill.schemas.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d{1,9})([smhd])")


def human_bytes(size: float) -> str:
    """Returns a size as a person reads it, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def parse_duration(text: str, flag: str) -> int:
    """Returns the seconds that a text such as ``90s``, ``15m``, ``1h``, ``2d`` or ``0`` means.

    Args:
        text: What was written.
        flag: Where, for the message.

    Raises:
        UsageError: It is none.
    """
    match = _DURATION.fullmatch(text)
    if match is not None and text.isascii():
        return int(match[1]) * _UNITS[match[2]]
    if text == "0":
        return 0
    raise UsageError(f"{flag}={text} is no time: write it as in 90s, 15m, 1h, 2d, or 0.")
