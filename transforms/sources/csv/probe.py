"""Inspect files: check that they can be read as rows, and read their column names."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from shardmill.schemas.errors import ChangedError, DeniedError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.row_ranges import Head, RowRange, read_head

_HEAD_BYTES = 64 << 10
_MAX_STARTS = 10_000


class FileStart(NamedTuple):
    """What the start of a file says about reading it.

    Attributes:
        columns: See ``Head``, also for the next two.
        seekable: See ``Head``.
        body: See ``Head``.
        has_rows: Whether there are any rows, rejected ones included.
    """

    columns: tuple[str, ...]
    seekable: bool
    body: RowRange
    has_rows: bool


# Files that this process sampled for the schema need not be opened again to inspect them. A file
# that changed has another version.
_starts: OrderedDict[tuple[str, int, str, Dialect], FileStart] = OrderedDict()


def read_file_start(ref: InputRef, dialect: Dialect) -> tuple[InputRef, FileStart | None]:
    """Return a file with its start; or rejected, and None, if it cannot be read as rows.

    Args:
        ref: The file.
        dialect: Dialect of the files.
    """
    known = _starts.get((ref.uri, ref.size, ref.version, dialect))
    if known is not None and not ref.error:
        return ref, known
    ref, head = read_start(ref, dialect, _HEAD_BYTES)
    return ref, None if head is None else _start_of(head)


def _start_of(head: Head) -> FileStart:
    return FileStart(head.columns, head.seekable, head.body, head.cells.rows > 0)


def sample_start(ref: InputRef, dialect: Dialect, size: int) -> tuple[InputRef, Head | None]:
    """Do what ``read_start`` does, and keep the start of the file for ``read_file_start``."""
    ref, head = read_start(ref, dialect, size)
    if head is not None:
        _starts[ref.uri, ref.size, ref.version, dialect] = _start_of(head)
        if len(_starts) > _MAX_STARTS:
            _starts.popitem(last=False)
    return ref, head


def read_start(ref: InputRef, dialect: Dialect, sample_bytes: int) -> tuple[InputRef, Head | None]:
    """Return a file with its first rows; or rejected, and None, if it cannot be read as rows.

    Args:
        ref: The file.
        dialect: Dialect of the files.
        sample_bytes: Approximate number of bytes of rows to read.
    """
    if not ref.error and not ref.size:
        ref = ref.rejected("empty", "the file has no bytes")
    if ref.error:
        return ref, None
    try:
        return ref, read_head(ref.uri, dialect.for_name(ref.key), sample_bytes)
    except RejectedError as rejection:
        return ref.rejected(rejection.error, rejection.message), None
    except FileNotFoundError:
        return ref.rejected("not_found", "the file is gone"), None
    except DeniedError as error:
        return ref.rejected("unreadable", str(error)), None
    except ChangedError as error:
        return ref.rejected("changed", str(error)), None
