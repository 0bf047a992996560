"""The address of the row of docs/errors.md that explains an error message."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = "https://github.com/shardmill/shardmill/blob/main/docs/errors.md"
_ROW = re.compile(r'^\| <a id="([\w-]+)"></a>`+(.+?)`+ \| ', re.MULTILINE)


def address_of(message: str) -> str:
    """Return the address of the row with the most words in common; of the page if none fits."""
    here = Path(__file__).resolve()  # an editable installation has links
    pages = here.with_name("errors.md"), here.parents[2] / "docs" / "errors.md"  # wheel, checkout
    text = next((page.read_text(encoding="utf-8") for page in pages if page.exists()), "")
    fitting = [(len(row), slug) for slug, row in _ROW.findall(text) if _fits(row, message)]
    return f"{PAGE}#{max(fitting)[1]}" if fitting else PAGE


def _fits(row: str, message: str) -> bool:
    """Return whether a message has the fixed words of a row, in which ``…`` replaces a value."""
    first, *others = row.rstrip(".").split("…")
    at = len(first) if message.startswith(first) else -1
    for words in others:
        found = message.find(words, at) if at >= 0 else -1
        at = found + len(words) if found >= 0 else -1
    return at >= 0
