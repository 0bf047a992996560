"""Inspect files: check that they can be read as rows, and read their column names."""

from __future__ import annotations

from collections.abc import Iterator

from shardmill.schemas.errors import ChangedError, DeniedError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.sources.csv.csv_file import CsvFile
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.file_columns import check_columns, missing_columns
from shardmill.transforms.sources.csv.row_ranges import Head, read_head
from shardmill.transforms.tables.rows_spec import RowsSpec

_HEAD_BYTES = 64 << 10
_COMPRESSION_RATIO = 6  # typical for text


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


def inspect_file(ref: InputRef, spec: RowsSpec) -> Iterator[CsvFile]:
    """Yield a file with its columns, or rejected if it cannot be read as rows.

    Args:
        ref: The file.
        spec: Dialect of files, and schema of rows.
    """
    table = spec.table
    if ref.size and table.place.splits.mode == "directory" and not table.split_by:
        ref = table.place.with_split(ref)
    ref, head = read_start(ref, spec.dialect, _HEAD_BYTES)
    if head is None:
        yield CsvFile(ref)
        return
    needed = [*missing_columns(table.columns, head.columns), *table.named]
    known = {*table.named, *(column.name for column in table.columns)}
    try:
        check_columns(head.columns, known, needed, table.base, spec.dialect.header)
    except RejectedError as rejection:
        yield CsvFile(ref.rejected(rejection.error, rejection.message))
    else:
        yield CsvFile(ref, head.columns, ref.size * (1 if head.seekable else _COMPRESSION_RATIO))
