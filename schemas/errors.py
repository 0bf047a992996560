"""Errors for the user. The message is a sentence with the value, the rule and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MAX_NAMES = 8  # in a message
_MAX_NAME = 80  # characters
MAX_SHOWN = 80  # characters of a value in a message


class ShardmillError(Exception):
    """A failure that the user can act on: ``InputError(f"{path} is empty: give a folder.")``.

    It has one argument, the sentence: pickle and Beam make an exception again from its ``args``.

    Args:
        text: The sentence.

    Attributes:
        exit_code: Exit code of a command that ends with this error.
    """

    exit_code = 1

    def __init__(self, text: str, /) -> None:
        super().__init__(text)

    def __str__(self) -> str:
        """Return the sentence: a KeyError would return it in quotes."""
        return str(self.args[0])


class UsageError(ShardmillError):
    """An invalid flag or config value, detected before any work starts."""

    exit_code = 2


class InputError(ShardmillError):
    """The inputs as a whole are unusable: missing, empty or contradictory."""


class OutputError(ShardmillError):
    """The output cannot be written, or has files that must not be overwritten."""


class LostWorkerError(OutputError):
    """A worker process of Beam has ended."""


class LimitError(OutputError):
    """A finished build was not published: its dataset is beyond a limit.

    Args:
        text: The sentence.
        findings: ``name``, ``value``, ``line``, ``remedy`` and ``fails`` of each.
    """

    def __init__(self, text: str, findings: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(text)
        self.findings = tuple(findings)


class StorageError(ShardmillError):
    """A storage call failed after its retries; retrying the whole step may succeed."""


class DeniedError(StorageError, PermissionError):
    """The permissions of a file or folder do not allow a storage call."""


class ResourceError(ShardmillError):
    """A worker lacks memory or a package.

    On another machine, or with other options, it may succeed.
    """


class StaleBuildError(ShardmillError):
    """Another builder published and deleted the build folder during this build."""


class FormatError(ShardmillError):
    """A file does not follow its format (manifest, schema, sidecar, shard)."""


class ChangedError(ShardmillError):
    """A file changed after it was listed."""


def format_names(names: Sequence[str]) -> str:
    """Return names quoted and separated by commas for a message, cut if there are many."""
    listed = ", ".join(repr(name[:_MAX_NAME]) for name in names[:_MAX_NAMES])
    more = len(names) - _MAX_NAMES
    if more > 0:
        return f"{listed} and {more:,} more"
    return listed


def format_value(text: str | bytes) -> str:
    """Return a value quoted for a message, cut to ``MAX_SHOWN`` characters."""
    if isinstance(text, bytes):
        # At most four bytes per character: a cell of many megabytes is not decoded completely.
        text = text[: 4 * (MAX_SHOWN + 1)].decode("utf-8", "backslashreplace")
    if len(text) <= MAX_SHOWN:
        return repr(text)
    return repr(text[:MAX_SHOWN]) + "…"
