"""Warnings that point at the line of the user's code; CONTRIBUTING.md has the rules of removals."""

from __future__ import annotations

import sys
import warnings

_PACKAGE = __name__.partition(".")[0]


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost call that is not of this package, however deep its functions are.

    Args:
        message: The warning.
        category: Its class.
    """
    level, frame = 1, sys._getframe()  # noqa: SLF001 - as pandas and others find the caller
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def warn_deprecated(old: str, *, instead: str, removed_in: str) -> None:
    """Warn the user of something that a later version removes.

    The category is shown by default, unlike DeprecationWarning.

    Args:
        old: What is deprecated, such as ``open_dataset(ids=...)``.
        instead: Its replacement.
        removed_in: The version that removes it, such as ``0.5.0``; a test fails from then on.
    """
    warn_user(
        f"{old} is deprecated, and Shardmill {removed_in} removes it: use {instead}.",
        FutureWarning,
    )


def _is_ours(module: str) -> bool:
    return module == _PACKAGE or module.startswith(f"{_PACKAGE}.")
