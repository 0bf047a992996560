"""Temporary files that have no name and end with the process."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import IO

from shardmill.schemas.errors import OutputError, ShardmillError


def scratch_file() -> IO[bytes]:
    """Returns a new temporary file, without a buffer of its own."""
    return tempfile.TemporaryFile(prefix="shardmill-", buffering=0)


def write_at(file: IO[bytes], offset: int, data: memoryview) -> None:
    """Writes data, all of it, at an offset.

    Args:
        file: A temporary file.
        offset: In bytes.
        data: Bytes; their format is B.
    """
    while data:
        written = os.pwrite(file.fileno(), data, offset)
        data, offset = data[written:], offset + written


@contextlib.contextmanager
def room_for(what: str, num_bytes: int) -> Iterator[None]:
    """Turns failures of temporary files into a plain sentence.

    Args:
        what: What is put there.
        num_bytes: How much it takes.

    Raises:
        OutputError: The folder of temporary files is missing, full or not writable.
    """
    try:
        yield
    except ShardmillError:
        raise
    except OSError as error:
        raise OutputError(
            f"{what} takes {num_bytes:,} bytes in a temporary file, and none can be written "
            f"({error.strerror or error}): set TMPDIR to a folder on a larger disk and run again."
        ) from error
