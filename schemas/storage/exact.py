"""Deleting what was seen, and not what took its place meanwhile.

Where there are no locks a process may stand still between a look and a deletion for as long as
another publishes. Stores whose files have versions can be told which one is meant; elsewhere
files are deleted by their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from shardmill.schemas.storage.base import Storage


@runtime_checkable
class ExactStorage(Protocol):
    """A storage that can delete one version of a file."""

    def read_version(self, path: str) -> tuple[bytes, str]:
        """Returns a file's bytes and their version."""
        ...

    def delete_version(self, path: str, version: str) -> None:
        """Deletes a file if it still has a version."""
        ...

    def delete_tree_if(self, path: str, still: Callable[[], bool]) -> None:
        """Deletes what lay below a folder before a question was answered with yes."""
        ...


def read_version(storage: Storage, path: str) -> tuple[bytes, str]:
    """Returns a file's bytes and their version; no version where deletions cannot heed it.

    Raises:
        FileNotFoundError: It does not exist.
    """
    if isinstance(storage, ExactStorage):
        return storage.read_version(path)
    return storage.read(path), ""


def delete_version(storage: Storage, path: str, version: str) -> None:
    """Deletes a file if it still has a version, where the medium can tell."""
    if version and isinstance(storage, ExactStorage):
        storage.delete_version(path, version)
    else:
        storage.delete(path)


def delete_tree_if(storage: Storage, path: str, still: Callable[[], bool]) -> None:
    """Deletes a folder if the answer to a question is yes, asked when all in it was listed."""
    if isinstance(storage, ExactStorage):
        storage.delete_tree_if(path, still)
    elif still():
        storage.delete_tree(path)
