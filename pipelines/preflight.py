"""Checks of an output before a command reads or writes it."""

from __future__ import annotations

import errno
import os
import tempfile

from shardmill.loaders.steps import find_manifest, load_manifest
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.shard_names import JOURNAL
from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage import join, open_storage, scheme_of


def open_manifest(path: str) -> tuple[str, str, Manifest]:
    """Complete an unfinished publication of release 0.1.0, and load the manifest.

    Args:
        path: Folder of a dataset, or a manifest.

    Returns:
        The folder of the dataset, or an empty text for a manifest of another name; the path of
        the manifest; and the manifest.
    """
    folder, file = find_manifest(path)
    if folder and open_storage(folder).stat(join(folder, JOURNAL)) is not None:
        from shardmill.transforms.publish.recovery import complete_journal  # slow to import

        complete_journal(open_storage(folder), folder)
    return folder, file, load_manifest(file)


def check_writable(output: str) -> None:
    """Recover an output and check that a dataset may be built there.

    Creates nothing that another builder could see, not even for a moment.

    Raises:
        ShardmillError: The output is not a dataset's, or cannot be written.
    """
    from shardmill.transforms.publish.recovery import recover_output

    recover_output(open_storage(output), output)
    check_accepts_files(output, f"--output={output}")


def check_accepts_files(folder: str, flag: str) -> None:
    """Check that files can be written in a local folder, or in one that does not exist yet.

    Args:
        folder: The folder; URIs are not checked.
        flag: The flag that named it, for messages.

    Raises:
        ShardmillError: They cannot.
    """
    if scheme_of(folder):
        return
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    try:
        if not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
        with tempfile.TemporaryFile(dir=folder, prefix=".build-probe-"):
            pass
    except FileNotFoundError as error:  # raised by file systems such as /proc
        raise OutputError(
            f"Cannot write to {flag}: {folder} accepts no files; choose an output on a "
            "writable file system."
        ) from error
    except OSError as error:
        from shardmill.schemas.storage.local import storage_error

        raise OutputError(str(storage_error("write to", flag, error))) from error
