"""Numbers as people read them."""

from __future__ import annotations


def human_bytes(size: float) -> str:
    """Returns a size as a person reads it, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
