"""Generations in an output, those that were deleted, and manifests that were lost."""

from __future__ import annotations

import contextlib
import json

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.errors import InputError, StorageError
from shardmill.schemas.storage import Storage, join, open_storage


def list_generations(storage: Storage, output: str) -> list[str]:
    """Return the names of all generations in an output, the latest first."""
    names = (
        entry.path.rsplit("/", 1)[-1] for entry in storage.list_dir(output) if entry.kind == "dir"
    )
    return sorted(filter(shard_names.is_generation, names), reverse=True)


def is_json(data: bytes) -> bool:
    """Return whether a file is JSON; a damaged manifest is not."""
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def check_not_lost(path: str, data: bytes = b"") -> None:
    """Check that a manifest that cannot be read was not lost, so that a rollback restores it.

    Args:
        path: Path of the manifest.
        data: Its content; empty if it does not exist.

    Raises:
        InputError: It is missing or damaged, and generations are next to it.
    """
    folder, _, name = path.rpartition("/")
    folder = folder or "."
    if name != shard_names.MANIFEST or is_json(data):
        return
    with contextlib.suppress(StorageError):  # such as a link to itself in another folder
        if list_generations(open_storage(folder), folder):
            raise InputError("manifest-lost", path=path, folder=folder)


def check_not_deleted(folder: str) -> None:
    """Check that a generation whose files are missing was not deleted by later publications.

    Args:
        folder: The folder of the generation; others are ignored.

    Raises:
        InputError: The manifest of its output neither names it nor keeps it.
    """
    output, _, name = folder.rpartition("/")
    if not shard_names.is_generation(name):
        return
    path = join(output or ".", shard_names.MANIFEST)
    with contextlib.suppress(FileNotFoundError, StorageError, ValueError, KeyError, TypeError):
        body = json.loads(open_storage(path).read(path))
        if name not in (body["generation"], *body.get("previous", ())):
            raise InputError("version-deleted", output=output or ".", name=name)
