"""CsvFile: a CSV file whose columns are known; its rows are read only if it did not change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardmill.schemas.errors import ChangedError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.storage import open_storage
from shardmill.transforms.sources.csv.cells import Cells
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.row_ranges import RowRange, read_range


class CsvFile(NamedTuple):
    """An inspected file.

    Attributes:
        ref: The file; rejected if it cannot be read as rows.
        columns: Names of its columns, in file order.
        text_bytes: Estimated size of its text in bytes.
    """

    ref: InputRef
    columns: tuple[str, ...] = ()
    text_bytes: int = 0


def check_unchanged(ref: InputRef) -> None:
    """Check that a file still is the one that was matched.

    Raises:
        RejectedError: The file changed or does not exist any more.
    """
    entry = open_storage(ref.uri).stat(ref.uri)
    if entry is None:
        raise RejectedError("read", "not_found", "the file is gone")
    if (entry.size, entry.version) != (ref.size, ref.version):
        raise RejectedError(
            "read", "changed", "the file changed between listing and reading: run again"
        )


def read_cells(
    file: CsvFile, dialect: Dialect, part: RowRange, range_bytes: int
) -> Iterator[Cells]:
    """Yield the cells of a range, or of each piece of a file that cannot be split.

    Raises:
        RejectedError: The file cannot be read as rows.
    """
    ref = file.ref
    check_unchanged(ref)
    try:
        for cells in read_range(ref.uri, dialect, file.columns, part, range_bytes):
            check_unchanged(ref)  # before use: callers take one piece of a range that has an end
            yield cells
    except (FileNotFoundError, ChangedError) as error:
        raise RejectedError("read", "changed", "the file changed while it was read") from error
