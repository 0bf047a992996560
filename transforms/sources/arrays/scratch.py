"""Scratch files: temporary files without a name, which the kernel deletes with the process."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

import numpy as np
import numpy.typing as npt

from shardmill.schemas.errors import OutputError, ShardmillError


def open_scratch() -> IO[bytes]:
    """Return a new scratch file, unbuffered."""
    return tempfile.TemporaryFile(prefix="shardmill-", buffering=0)


def write_at(file: IO[bytes], offset: int, data: memoryview) -> None:
    """Write all bytes of data (format B) at an offset."""
    while data:
        written = os.pwrite(file.fileno(), data, offset)
        data, offset = data[written:], offset + written


def write_grouped(
    file: IO[bytes], starts: npt.NDArray[np.int64],
    blocks: Iterable[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]],
) -> None:  # fmt: skip
    """Write rows so that the rows of each part are contiguous and in their given order.

    Args:
        file: A scratch file.
        starts: First row of each part, then the number of rows; int64, shape [parts + 1].
        blocks: For consecutive rows, the part of each row (shape [n]) and its bytes (shape
            [n, row_bytes]).
    """
    next_rows = starts[:-1].copy()
    for parts, rows in blocks:
        ordered = rows[np.argsort(parts, kind="stable")]
        counts = np.bincount(parts, minlength=next_rows.size)
        ends = np.cumsum(counts)
        for part in np.flatnonzero(counts).tolist():
            of_part = ordered[ends[part] - counts[part] : ends[part]]
            write_at(file, int(next_rows[part]) * rows.shape[1], of_part.reshape(-1).data)
        next_rows += counts


@contextlib.contextmanager
def report_full_disk(content: str, num_bytes: int) -> Iterator[None]:
    """Turn errors of scratch files into an OutputError.

    Args:
        content: Content of the scratch file, in messages.
        num_bytes: Bytes that are written.

    Raises:
        OutputError: The folder for temporary files is missing, full or not writable.
    """
    try:
        yield
    except ShardmillError:
        raise
    except OSError as error:
        raise OutputError(
            f"{content} needs {num_bytes:,} bytes in a temporary file, which cannot be written "
            f"({error.strerror or error}): set TMPDIR to a folder on a larger disk and run again."
        ) from error
