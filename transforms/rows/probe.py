"""Looking at files: whether they can be read as rows, and which columns they have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardmill.schemas.errors import ChangedError, DeniedError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.rows.csv.row_ranges import read_head
from shardmill.transforms.rows.runs.make import CsvFile, RunSpec
from shardmill.transforms.rows.table import TableSpec

_HEAD_BYTES = 64 << 10
_UNPACKED = 6  # to one: what compression makes of text, about
_SHOWN = 8


def look(ref: InputRef, spec: RunSpec) -> Iterator[CsvFile]:
    """Yields a file with its columns, or refused when it cannot be read as rows.

    Args:
        ref: The file.
        spec: How files are written, and what rows are.
    """
    if not ref.error and not ref.size:
        ref = ref.rejected("empty", "the file has no bytes")
    ref = spec.table.place.with_split(ref) if spec.by_folder else ref
    if ref.error:
        yield CsvFile(ref)
        return
    try:
        head = read_head(ref.uri, spec.dialect_of(ref), _HEAD_BYTES)
        check_columns(spec.table, head.columns)
    except RejectedError as refusal:
        yield CsvFile(ref.rejected(refusal.error, refusal.message))
    except FileNotFoundError:
        yield CsvFile(ref.rejected("not_found", "the file is gone"))
    except DeniedError as error:
        yield CsvFile(ref.rejected("unreadable", str(error)))
    except ChangedError as error:
        yield CsvFile(ref.rejected("changed", str(error)))
    else:
        yield CsvFile(ref, head.columns, ref.size * (1 if head.seekable else _UNPACKED))


def check_columns(table: TableSpec, columns: Sequence[str]) -> None:
    """Refuses a file without the columns that rows need.

    Raises:
        RejectedError: It lacks one.
    """
    needed = [*lacking(table.columns, columns)]
    needed += [name for name in (table.key, table.group_by, table.split_by) if name]
    missing = [name for name in dict.fromkeys(needed) if name not in columns]
    if not missing:
        return
    raise RejectedError(
        "read",
        "columns",
        f"it has no column {listed(missing)}, only {listed(columns)}: give it the columns of the "
        "schema, or make them optional there",
    )


def lacking(schema: Sequence[Column], columns: Sequence[str]) -> list[str]:
    """Returns the columns that rows of a schema need and a file does not have."""
    needed = [column.name for column in schema if column.required and not column.default]
    return [name for name in needed if name not in columns]


def listed(names: Sequence[str]) -> str:
    """Returns names as a message lists them, cut where they are many."""
    shown = ", ".join(repr(name[:80]) for name in names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
