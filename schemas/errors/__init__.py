"""Errors for the user. The message is a sentence with the value, the rule and the fix."""

from __future__ import annotations

from collections.abc import Sequence

from shardmill.schemas.errors.catalogue import PAGE, messages, split_coded
from shardmill.schemas.errors.catalogue import coded as coded

_MAX_NAMES = 8  # in a message
_MAX_NAME = 80  # characters


class ShardmillError(Exception):
    """A failure that the user can act on: ``InputError("listing-too-large", path=path)``.

    ``args`` is the sentence followed by its id in brackets, the form in which a failure reaches
    other processes: pickle and Beam make an exception again from its ``args``.

    Args:
        text: The id of a message in the catalogue; or a sentence, with or without its id.
        fields: Values of the fields of the message.

    Attributes:
        exit_code: Exit code of a command that ends with this error.
    """

    exit_code = 1

    def __init__(self, text: str, /, **fields: object) -> None:
        super().__init__(coded(text, **fields) if text in messages() else text)

    def __str__(self) -> str:
        """Return the sentence without the id."""
        return split_coded(self.coded)[0]

    @property
    def coded(self) -> str:
        """The sentence followed by its id in brackets."""
        return str(self.args[0])

    @property
    def id(self) -> str:
        """Id of the message in the catalogue, or empty."""
        return split_coded(self.coded)[1]

    @property
    def address(self) -> str:
        """Address of the explanation on the page of errors."""
        return f"{PAGE}#{self.id}" if self.id else PAGE


class UsageError(ShardmillError):
    """An invalid flag or config value, detected before any work starts."""

    exit_code = 2


class InputError(ShardmillError):
    """The inputs as a whole are unusable: missing, empty or contradictory."""


class OutputError(ShardmillError):
    """The output cannot be written, or has files that must not be overwritten."""


class StorageError(ShardmillError):
    """A storage call failed after its retries; retrying the whole step may succeed."""


class DeniedError(StorageError, PermissionError):
    """The permissions of a file or folder do not allow a storage call."""


class ResourceError(ShardmillError):
    """A worker lacks memory or a package; on another machine, or with other options, it may succeed."""


class StaleBuildError(ShardmillError):
    """Another builder published and deleted the build folder during this build."""


class FormatError(ShardmillError):
    """A file does not follow its format (manifest, schema, sidecar, shard)."""


class ChangedError(ShardmillError):
    """A file changed after it was listed."""


MAX_SHOWN = 80  # characters of a value in a message


def format_names(names: Sequence[str]) -> str:
    """Return names quoted and separated by commas for a message, cut if there are many."""
    shown = ", ".join(repr(name[:_MAX_NAME]) for name in names[:_MAX_NAMES])
    more = len(names) - _MAX_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown


def shown(text: str | bytes) -> str:
    """Return a value quoted for a message, cut to ``MAX_SHOWN`` characters."""
    if isinstance(text, bytes):
        # At most four bytes per character: a cell of many megabytes is not decoded completely.
        text = text[: 4 * (MAX_SHOWN + 1)].decode("utf-8", "backslashreplace")
    return repr(text) if len(text) <= MAX_SHOWN else repr(text[:MAX_SHOWN]) + "…"
