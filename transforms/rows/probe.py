"""Inspect files: check that they can be read as rows, and read their column names."""

from __future__ import annotations

from collections.abc import Iterator

from shardmill.schemas.errors import ChangedError, DeniedError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.rows.csv.row_ranges import read_head
from shardmill.transforms.rows.file_columns import check_columns, missing_columns
from shardmill.transforms.rows.runs.run_writer import CsvFile, RunSpec

_HEAD_BYTES = 64 << 10
_COMPRESSION_RATIO = 6  # typical for text


def inspect_file(ref: InputRef, spec: RunSpec) -> Iterator[CsvFile]:
    """Yield a file with its columns, or rejected if it cannot be read as rows.

    Args:
        ref: The file.
        spec: Dialect of files, and schema of rows.
    """
    if not ref.error and not ref.size:
        ref = ref.rejected("empty", "the file has no bytes")
    if spec.table.place.splits.mode == "directory" and not spec.table.split_by:
        ref = spec.table.place.with_split(ref)
    if ref.error:
        yield CsvFile(ref)
        return
    try:
        head = read_head(ref.uri, spec.dialect_of(ref), _HEAD_BYTES)
        table = spec.table
        needed = [*missing_columns(table.columns, head.columns), *table.named]
        known = {*table.named, *(column.name for column in table.columns)}
        check_columns(head.columns, known, needed, table.base, spec.dialect.header)
    except RejectedError as rejection:
        yield CsvFile(ref.rejected(rejection.error, rejection.message))
    except FileNotFoundError:
        yield CsvFile(ref.rejected("not_found", "the file is gone"))
    except DeniedError as error:
        yield CsvFile(ref.rejected("unreadable", str(error)))
    except ChangedError as error:
        yield CsvFile(ref.rejected("changed", str(error)))
    else:
        yield CsvFile(ref, head.columns, ref.size * (1 if head.seekable else _COMPRESSION_RATIO))
