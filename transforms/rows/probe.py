"""Inspect files: check that they can be read as rows, and read their column names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardmill.schemas.errors import ChangedError, DeniedError, format_names
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.rows.csv.row_ranges import read_head
from shardmill.transforms.rows.runs.run_writer import CsvFile, RunSpec
from shardmill.transforms.rows.table import TableSpec

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
        check_columns(spec.table, head.columns)
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


def check_columns(table: TableSpec, columns: Sequence[str]) -> None:
    """Check that a file has the required columns.

    Raises:
        RejectedError: It lacks one.
    """
    needed = [*missing_columns(table.columns, columns)]
    needed += [name for name in (table.key, table.group_by, table.split_by) if name]
    missing = [name for name in dict.fromkeys(needed) if name not in columns]
    if not missing:
        return
    raise RejectedError(
        "read",
        "columns",
        f"it has no column {format_names(missing)}, only {format_names(columns)}: give it the "
        "columns of the schema, or make them optional there",
    )


def missing_columns(schema: Sequence[Column], columns: Sequence[str]) -> list[str]:
    """Return the required columns of a schema that a file lacks."""
    required = [column.name for column in schema if column.required and not column.default]
    return [name for name in required if name not in columns]
