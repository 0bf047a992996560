"""Limit of distinct labels; a label column with more is not counted per label."""

from __future__ import annotations

from collections.abc import Collection

MAX_LABELS = 1_000
TOO_MANY_LABELS = "\0"  # replaces the labels of records that have more than MAX_LABELS


def is_countable(counted: Collection[str]) -> bool:
    """Return whether labels are few enough to be listed and counted."""
    return len(counted) <= MAX_LABELS and TOO_MANY_LABELS not in counted
