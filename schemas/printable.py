"""Text that is safe to print on a terminal, and shows all its characters on a page."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text with its unprintable characters escaped.

    File names and data may hold anything: no character may move the cursor, change colours or
    break a line.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
