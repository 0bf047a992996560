"""Sampling: what the beginnings of files tell of their columns, before any work starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

from shardmill.schemas.errors import DeniedError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.rows.csv.dialect import Dialect
from shardmill.transforms.rows.csv.ranges import read_head
from shardmill.transforms.rows.types.infer import ColumnProfile, infer_column, merge, profile_cells
from shardmill.transforms.rows.types.typed import Nulls

ALL_BYTES = 256 << 20  # of text that is sampled from all files together
LEAST_BYTES = 64 << 10  # of each
_LOOKS = 4


class Sampled(NamedTuple):
    """What the beginning of one file tells.

    Attributes:
        ref: The file; refused when it cannot be read as rows.
        columns: Names of its columns.
        profiles: Facts about each.
        rows: Rows in the sample.
        text_bytes: Bytes of text they take.
        problem: Why the first bad row cannot be read, or empty.
    """

    ref: InputRef
    columns: tuple[str, ...] = ()
    profiles: tuple[ColumnProfile, ...] = ()
    rows: int = 0
    text_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Sample:
    """What the beginnings of all files tell.

    Attributes:
        columns: Names of the columns that most files have, in the order of the first such file.
        profiles: Facts about each.
        rows: Rows in the sample.
        row_bytes: Bytes of text that one row takes, about.
        refs: The files, those refused that cannot be read.
        layouts: Columns of all files, each once, the most frequent first.
        problem: Why the first bad row of the first file that has one cannot be read, or empty.
    """

    columns: tuple[str, ...]
    profiles: tuple[ColumnProfile, ...]
    rows: int
    row_bytes: float
    refs: tuple[InputRef, ...]
    layouts: tuple[tuple[str, ...], ...] = ()
    problem: str = ""

    def infer(self, label: str, leave_out: Iterable[str]) -> tuple[Column, ...]:
        """Returns what the columns are.

        Args:
            label: A column that no row may lack.
            leave_out: Columns that are no features.
        """
        pairs = zip(self.columns, self.profiles, strict=True)
        found = [infer_column(name, profile) for name, profile in pairs if name not in leave_out]
        return tuple(
            replace(column, required=True) if column.name == label else column for column in found
        )


def sample_files(
    refs: Sequence[InputRef], dialect: Dialect, nulls: Nulls, sample_bytes: int
) -> Sample:
    """Looks at the beginning of each file.

    Args:
        refs: The files, sorted by key.
        dialect: How they are written.
        nulls: Which cells are missing.
        sample_bytes: Bytes of each to look at, at most; fewer where files are many.
    """
    usable = [ref for ref in refs if not ref.error]
    each = max(LEAST_BYTES, min(sample_bytes, ALL_BYTES // max(1, len(usable))))
    with ThreadPoolExecutor(_LOOKS) as threads:
        looked = list(threads.map(lambda ref: sample_file(ref, dialect, nulls, each), usable))
    sound = [sampled for sampled in looked if not sampled.ref.error and sampled.columns]
    others = [ref for ref in refs if ref.error]
    found = (*others, *(sampled.ref for sampled in looked))
    if not sound:
        return Sample((), (), 0, 1.0, found)
    counts = Counter(frozenset(sampled.columns) for sampled in sound)
    # The most frequent set of columns; of equally frequent ones that of the first file.
    usual = max(counts, key=lambda names: counts[names])
    alike = [sampled for sampled in sound if frozenset(sampled.columns) == usual]
    columns = alike[0].columns
    found_in = [dict(zip(sampled.columns, sampled.profiles, strict=True)) for sampled in alike]
    profiles = tuple(_merged(each[name] for each in found_in) for name in columns)
    rows = sum(sampled.rows for sampled in alike)
    text_bytes = sum(sampled.text_bytes for sampled in alike)
    layouts = {frozenset(sampled.columns): sampled.columns for sampled in reversed(sound)}
    return Sample(
        columns,
        profiles,
        rows,
        max(1.0, text_bytes / max(1, rows)),
        found,
        tuple(layouts[names] for names, _ in counts.most_common()),
        next((sampled.problem for sampled in sound if sampled.problem), ""),
    )


def sample_file(ref: InputRef, dialect: Dialect, nulls: Nulls, sample_bytes: int) -> Sampled:
    """Looks at the beginning of one file."""
    if not ref.size:
        return Sampled(ref.rejected("empty", "the file has no bytes"))
    try:
        head = read_head(ref.uri, dialect.for_name(ref.key), sample_bytes)
    except RejectedError as refusal:
        return Sampled(ref.rejected(refusal.error, refusal.message))
    except FileNotFoundError:
        return Sampled(ref.rejected("not_found", "the file is gone"))
    except DeniedError as error:
        return Sampled(ref.rejected("unreadable", str(error)))
    cells = head.cells
    profiles = tuple(profile_cells(cells.columns[name], nulls) for name in head.columns)
    rows = len(cells.offsets)
    span = int(cells.offsets[-1] - cells.offsets[0]) * rows // max(1, rows - 1) if rows else 0
    problem = f"{ref.key}, {cells.rejects[0].message}" if cells.rejects else ""
    return Sampled(ref, head.columns, profiles, rows, span, problem)


def _merged(profiles: Iterable[ColumnProfile]) -> ColumnProfile:
    total = ColumnProfile()
    for profile in profiles:
        total = merge(total, profile)
    return total


__all__ = ["Sample", "sample_file", "sample_files"]
