"""Open and read listed files of a local disk, in a worker or in its decoder processes."""

from __future__ import annotations

import errno
import os
import stat

from shardmill.schemas.errors import ChangedError

# A folder of the path became a file or a symbolic link to itself.
_MISSING = frozenset({errno.ENOTDIR, errno.ELOOP})


def open_input(path: str) -> int:
    """Open a listed file to read, without blocking on a pipe or device that replaced it.

    Raises:
        OSError: It cannot be opened; ``FileNotFoundError`` also where a folder is missing.
        ChangedError: It is not a file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _MISSING:
            raise FileNotFoundError(error.errno, error.strerror, path) from error
        if error.errno == errno.ENXIO:
            raise ChangedError("it was a file when it was listed and is a socket now") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ChangedError("it was a file when it was listed and is not one now")
    return descriptor


def read_descriptor(descriptor: int, size: int) -> tuple[bytes, os.stat_result]:
    """Return the content of an open file, at most one byte more than its size, and its status.

    Args:
        descriptor: The file.
        size: Its expected size in bytes.
    """
    data = os.read(descriptor, size + 1)
    while len(data) < size and (more := os.read(descriptor, size + 1 - len(data))):
        data += more
    return data, os.fstat(descriptor)
