"""Checks of an output before a command reads or writes it."""

from __future__ import annotations

import errno
import os
import tempfile

from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage import open_storage, scheme_of


def prepare_output(output: str) -> None:
    """Check that a dataset may be built at an output, and repair the link to the current version.

    Creates nothing else that another builder could see, not even for a moment. A published dataset
    that is up to date is not written, so it may be on a read-only file system.

    Raises:
        ShardmillError: The output is not a dataset's, or cannot be written.
    """
    from shardmill.transforms.publish.generation import open_output  # slow to import
    from shardmill.transforms.publish.publish import update_link

    published = open_output(open_storage(output), output).manifest
    if published is None:
        check_accepts_files(output, f"--output={output}")
    else:
        update_link(output, published.generation)


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
        raise OutputError("output-not-writable", flag=flag, folder=folder) from error
    except OSError as error:
        from shardmill.schemas.storage.local import storage_error

        raise OutputError(storage_error("write to", flag, error).coded) from error
