"""CsvSource: the rows of CSV files as typed columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blake3 import blake3

from shardmill.schemas.errors import ChangedError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.sources.csv.cells import Cells, make_cells
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.file_source import FileSource, check_unchanged
from shardmill.transforms.sources.csv.row_bounds import Rows
from shardmill.transforms.sources.csv.row_ranges import (
    RowRange,
    hash_range,
    read_range,
    split_ranges,
)
from shardmill.transforms.sources.csv.sample import read_start
from shardmill.transforms.sources.csv.text import CsvText
from shardmill.transforms.tables.table_source import TableInput, TypedBatch, Unit

COMPRESSION_RATIO = 6  # typical for text


@dataclass(frozen=True)
class CsvSource(FileSource):
    """The ``TableSource`` of CSV files: a unit is a range of a file."""

    def make_cells(
        self, batches: Sequence[Rows], columns: Sequence[str], text: CsvText, dialect: Dialect
    ) -> Cells:
        """Parse rows into cells; see ``cells.make_cells``."""
        return make_cells(batches, columns, text, dialect)

    def inspect(self, ref: InputRef) -> TableInput:
        """Return a file with the names of its columns, or rejected."""
        ref, head = read_start(self.with_split(ref), self.dialect, 0)
        if head is None:
            return TableInput(ref)
        try:
            self.check_names(ref, [*filter(None, head.columns)])
        except RejectedError as rejection:
            return TableInput(ref.rejected(rejection.error, rejection.message))
        ratio = 1 if head.seekable else COMPRESSION_RATIO
        return TableInput(ref, ref.size * ratio, (head.columns, tuple(map(tuple, head.ranges))))

    def units(self, item: TableInput) -> Iterator[Unit]:
        """Yield the ranges of a file."""
        ref, (columns, known) = item.ref, item.detail
        check_unchanged(ref)
        dialect, ranges = self.dialect.for_name(ref.key), [*map(RowRange._make, known)]
        names = blake3("\0".join(columns).encode()).hexdigest()
        for part in split_ranges(ref.uri, dialect, ranges, self.range_bytes):
            single = part.end >= 0
            size = part.end - part.start if single else self.range_bytes
            identity = (*part, self.range_bytes, names)
            detail = (columns, tuple(part))
            yield Unit(tuple(ref), part.start, size, single, identity, detail)

    def read(self, unit: Unit) -> Iterator[TypedBatch]:
        """Yield the rows of a range, or of each piece of a file that cannot be split."""
        ref, (columns, part) = InputRef(*unit.ref), unit.detail
        dialect = self.dialect.for_name(ref.key)
        check_unchanged(ref)
        try:
            for cells in read_range(
                ref.uri, dialect, columns, RowRange(*part), self.range_bytes, self.make_cells
            ):
                check_unchanged(ref)  # before use: callers take one batch of a single unit
                yield self.type_cells(ref, cells)
        except (FileNotFoundError, ChangedError) as error:
            raise RejectedError("read", "changed", "the file changed while it was read") from error

    def content(self, unit: Unit) -> str:
        """Return the BLAKE3 of the text of a unit."""
        ref = InputRef(*unit.ref)
        return hash_range(ref.uri, self.dialect.for_name(ref.key), RowRange(*unit.detail[1]))
