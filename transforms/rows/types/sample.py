"""Sample the first rows of files to infer column types before the job starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

from shardmill.schemas.errors import DeniedError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.rows.csv.dialect import Dialect
from shardmill.transforms.rows.csv.row_ranges import read_head
from shardmill.transforms.rows.types import infer
from shardmill.transforms.rows.types.typed_cells import Nulls
from shardmill.transforms.runtime.map_ordered import map_ordered

MAX_TOTAL_BYTES = 256 << 20  # of text sampled from all files together
MIN_FILE_BYTES = 64 << 10  # of text sampled from each file
_THREADS = 4


class FileSample(NamedTuple):
    """The sample of one file.

    Attributes:
        ref: The file; rejected if it cannot be read as rows.
        profiles: Profile of each column, by its name.
        rows: Number of sampled rows.
        text_bytes: Bytes of text of these rows.
        problem: Why the first bad row cannot be read, or empty.
    """

    ref: InputRef
    profiles: Mapping[str, infer.ColumnProfile] = {}
    rows: int = 0
    text_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Sample:
    """The merged sample of all files.

    Attributes:
        columns: Names of the columns that most files have, in the order of the first such file.
        profiles: Profile of each column.
        rows: Number of sampled rows.
        row_bytes: Average bytes of text per row.
        refs: The files; those that cannot be read are rejected.
        layouts: Distinct sets of columns, the most frequent first.
        problem: Why the first bad row of the first file with one cannot be read, or empty.
    """

    columns: tuple[str, ...]
    profiles: tuple[infer.ColumnProfile, ...]
    rows: int
    row_bytes: float
    refs: tuple[InputRef, ...]
    layouts: tuple[tuple[str, ...], ...] = ()
    problem: str = ""

    def infer(self, label: str, leave_out: Iterable[str]) -> tuple[Column, ...]:
        """Return the inferred columns.

        Args:
            label: Name of a column that is required; may be empty.
            leave_out: Names of columns that are not features.
        """
        pairs = zip(self.columns, self.profiles, strict=True)
        columns = [
            infer.infer_column(name, profile) for name, profile in pairs if name not in leave_out
        ]
        return tuple(
            replace(column, required=True) if column.name == label else column for column in columns
        )


def sample_files(
    refs: Sequence[InputRef], dialect: Dialect, nulls: Nulls, sample_bytes: int
) -> Sample:
    """Sample the first rows of each file.

    Args:
        refs: The files, sorted by key.
        dialect: Dialect of the files.
        nulls: Texts of missing cells.
        sample_bytes: Maximal number of bytes to read per file; fewer if there are many files.
    """
    usable = [ref for ref in refs if not ref.error]
    each = max(MIN_FILE_BYTES, min(sample_bytes, MAX_TOTAL_BYTES // max(1, len(usable))))
    samples = list(
        map_ordered(lambda ref: sample_file(ref, dialect, nulls, each), usable, _THREADS)
    )
    valid = [sample for sample in samples if not sample.ref.error and sample.profiles]
    sampled_refs = (*(ref for ref in refs if ref.error), *(sample.ref for sample in samples))
    if not valid:
        return Sample((), (), 0, 1.0, sampled_refs)
    counts = Counter(frozenset(sample.profiles) for sample in valid)
    # The most frequent set of columns; of equally frequent ones that of the first file.
    usual = max(counts, key=lambda names: counts[names])
    alike = [sample for sample in valid if frozenset(sample.profiles) == usual]
    columns = tuple(alike[0].profiles)
    by_column = ([sample.profiles[name] for sample in alike] for name in columns)
    profiles = tuple(reduce(infer.merge_profiles, profiles) for profiles in by_column)
    rows = sum(sample.rows for sample in alike)
    text_bytes = sum(sample.text_bytes for sample in alike)
    layouts = {frozenset(sample.profiles): tuple(sample.profiles) for sample in reversed(valid)}
    return Sample(
        columns,
        profiles,
        rows,
        max(1.0, text_bytes / max(1, rows)),
        sampled_refs,
        tuple(layouts[names] for names, _ in counts.most_common()),
        next((sample.problem for sample in valid if sample.problem), ""),
    )


def sample_file(ref: InputRef, dialect: Dialect, nulls: Nulls, sample_bytes: int) -> FileSample:
    """Sample the first rows of one file."""
    if not ref.size:
        return FileSample(ref.rejected("empty", "the file has no bytes"))
    try:
        head = read_head(ref.uri, dialect.for_name(ref.key), sample_bytes)
    except RejectedError as rejection:
        return FileSample(ref.rejected(rejection.error, rejection.message))
    except FileNotFoundError:
        return FileSample(ref.rejected("not_found", "the file is gone"))
    except DeniedError as error:
        return FileSample(ref.rejected("unreadable", str(error)))
    cells = head.cells
    profiles = {name: infer.profile_cells(column, nulls) for name, column in cells.columns.items()}
    rows = len(cells.offsets)
    span = int(cells.offsets[-1] - cells.offsets[0]) * rows // max(1, rows - 1) if rows else 0
    first = next(iter(cells.rejects), None)
    problem = f"{ref.key}, line {first.line}: {first.message}" if first else ""
    return FileSample(ref, profiles, rows, span, problem)
