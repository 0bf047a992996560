"""Looking before leaping: whether the output can be written, before any work starts."""

from __future__ import annotations

import errno
import os
import tempfile

from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage import open_storage, scheme_of
from shardmill.schemas.storage.local import storage_error
from shardmill.transforms.publish.publish import settle


def check_writable(output: str) -> None:
    """Completes an unfinished publication and checks that a dataset may be built at output.

    Leaves nothing behind, not even for a moment a folder or name that another builder could see.

    Raises:
        ShardmillError: The output is foreign or cannot be written.
    """
    settle(open_storage(output), output)
    check_takes_files(output, f"--output={output}")


def check_takes_files(folder: str, flag: str) -> None:
    """Checks that files can be written in a local folder, or in one that is yet to be made.

    Args:
        folder: The folder; URIs are left alone.
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
    except FileNotFoundError as error:  # what /proc says
        raise OutputError(
            f"Cannot write to {flag}: {folder} takes no files; choose an output on a "
            "writable file system."
        ) from error
    except OSError as error:
        raise OutputError(str(storage_error("write to", flag, error))) from error
