"""Warnings about what a later version removes; CONTRIBUTING.md has the rules."""

from __future__ import annotations

import warnings


def warn_deprecated(old: str, *, instead: str, removed_in: str) -> None:
    """Warn the caller of a public function that it uses something deprecated.

    The category is shown by default, unlike DeprecationWarning: callers are users.

    Args:
        old: What is deprecated, such as ``open_dataset(ids=...)``.
        instead: Its replacement.
        removed_in: The version that removes it, such as ``0.5.0``; a test fails from then on.
    """
    message = f"{old} is deprecated, and Shardmill {removed_in} removes it: use {instead}."
    warnings.warn(message, FutureWarning, stacklevel=3)
