"""Lines of a width, made of (text, style): tables, bars, and text that does no harm.

Text from data is escaped and cut here, so that no name or value can move the cursor, change
colours or break a line.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

BLOCKS = "█▏▎▍▌▋▊▉…"  # all that is used beyond ASCII
Line = list[tuple[str, str]]
Row = Sequence[str]


@dataclass(frozen=True)
class Style:
    """How to print.

    Attributes:
        width: Columns.
        blocks: Whether ``BLOCKS`` can be printed; else bars and dots are ASCII.
    """

    width: int = 100
    blocks: bool = True


def plain(line: Line) -> str:
    """Returns a line without its styles."""
    return "".join(text for text, _ in line).rstrip()


def clean(text: str) -> str:
    """Returns a text whose every character can be printed; others become escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cells(text: str) -> int:
    """Returns how many columns a printable text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )


def cut(text: str, width: int, style: Style) -> str:
    """Returns a text that takes at most width columns, its end left out where it must."""
    text = clean(text)
    if cells(text) <= width:
        return text
    dots = "…" if style.blocks else "..."
    if width < len(dots):
        return ""
    left = width - len(dots)
    kept = text[:left]
    while cells(kept) > left:
        kept = kept[:-1]
    return kept + dots


def bar(share: float, style: Style) -> str:
    """Returns a bar for a share between 0 and 1; what is not zero shows."""
    width = max(6, min(24, style.width // 2 - 26))
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    if not style.blocks:
        return "#" * -(-eighths // 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def table(
    rows: Sequence[Row], style: Style, *, align: str, tail: Sequence[Line] = ()
) -> Iterator[Line]:
    """Yields rows in columns, the first one cut to what the others leave.

    Args:
        rows: Texts; all rows as long as align.
        style: How to print.
        align: ``<`` or ``>`` for each column.
        tail: What follows each row, such as its bar.
    """
    if not rows:
        return
    most = max(12, style.width // 3)
    widths = [max(cells(clean(row[i])) for row in rows) for i in range(len(align))]
    widths[1:] = [min(width, most) for width in widths[1:]]
    room = style.width - 2 - sum(2 + width for width in widths[1:])
    room -= 2 + max((cells(plain(line)) for line in tail), default=-2)
    widths[0] = min(widths[0], max(12, room))
    for number, row in enumerate(rows):
        line: Line = [("  ", "")]
        for i, side in enumerate(align):
            text = cut(row[i], widths[i], style)
            pad = " " * (widths[i] - cells(text))
            line.append((text + pad if side == "<" else pad + text, "" if i else "cyan"))
            line.append(("  ", ""))
        yield _stripped(line + list(tail[number] if tail else []))


def fitted(line: Line, style: Style) -> Line:
    """Returns a line cut to the width; what it holds has mostly been cut to it before."""
    left = style.width
    kept: Line = []
    for text, colour in line:
        kept.append((cut(text, left, style), colour))
        left -= cells(kept[-1][0])
        if left <= 0 or kept[-1][0] != text:
            break
    return kept


def _stripped(line: Line) -> Line:
    while line and not line[-1][0].rstrip():
        line = line[:-1]
    return [*line[:-1], (line[-1][0].rstrip(), line[-1][1])] if line else []
