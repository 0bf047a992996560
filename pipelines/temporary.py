"""Temporary folders of runs, which the next run deletes if their process was killed.

A process holds a lock on its folder until it ends, and the kernel releases the lock however it
ends. So a folder with the name and the user of a run on which no process holds a lock is abandoned,
also if the process ran in another container. An id of a process would prove nothing: it may belong
to a new process, or to one of another container.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator

_PREFIX = "shardmill-run-"
_IS_FOLDER = re.compile(re.escape(_PREFIX) + "[a-z0-9_]{8}")  # as tempfile.mkdtemp names it
_redirecting = threading.RLock()


@contextlib.contextmanager
def temporary_folder(*, until_exit: bool) -> Iterator[str]:
    """Return a temporary folder that is deleted after the block.

    Args:
        until_exit: Whether to delete it when this process exits, instead.
    """
    folder, descriptor = _make_folder()

    def delete() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)

    if until_exit:
        atexit.register(delete)
    try:
        yield folder
    finally:
        if not until_exit:
            delete()


@contextlib.contextmanager
def temporary_files_in(folder: str) -> Iterator[None]:
    """Let all libraries of this process create temporary files in a folder, in the block."""
    with _redirecting:
        before = tempfile.gettempdir()
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


def delete_abandoned_folders() -> None:
    """Delete the temporary folders of this user's runs that were killed."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if not _IS_FOLDER.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):  # another user's, a link, or in use
                _delete_if_abandoned(entry.path)


def _make_folder() -> tuple[str, int]:
    """Return a new folder and a descriptor of it, which holds a lock."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        try:
            descriptor = _open(folder)
        except FileNotFoundError:  # another run saw it without a lock
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # the file system has no locks: take a name that is never abandoned
            os.close(descriptor)
            os.rmdir(folder)
            folder = tempfile.mkdtemp(prefix="shardmill-")
            return folder, _open(folder)
        if os.path.isdir(folder):  # not deleted before it had the lock
            return folder, descriptor
        os.close(descriptor)


def _delete_if_abandoned(folder: str) -> None:
    """Delete a temporary folder of this user on which no process holds a lock.

    Raises:
        OSError: It cannot be opened, is a link, or has a lock.
    """
    descriptor = _open(folder)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _open(folder: str) -> int:
    """Return a descriptor of a folder, which is not a link."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
