"""Errors that are somebody's to mend: one sentence with the value, the rule and the remedy."""

from __future__ import annotations


class ShardmillError(Exception):
    """A failure the user can act on; the message is one plain sentence.

    Attributes:
        exit_code: What the command exits with when this ends it.
    """

    exit_code = 1


class UsageError(ShardmillError):
    """A flag or config value that breaks a rule, found before any work starts."""

    exit_code = 2


class InputError(ShardmillError):
    """The inputs as a whole cannot become a dataset (missing, empty, contradictory)."""


class OutputError(ShardmillError):
    """The output cannot be written, or holds something that must not be harmed."""


class StorageError(ShardmillError):
    """A storage call failed after its retries; trying the whole step again may mend it."""


class DeniedError(StorageError, PermissionError):
    """The permissions of a file or folder do not allow a storage call."""


class StaleBuildError(ShardmillError):
    """Another builder published and took the build folder away while this one was working."""


class FormatError(ShardmillError):
    """Bytes that break a format they claim to follow (manifest, sidecar, shard)."""


class ChangedError(ShardmillError):
    """A file is not what it was when it was listed."""
