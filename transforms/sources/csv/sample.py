"""Sample the first rows of files to infer column types before the job starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.runtime.map_ordered import map_ordered
from shardmill.transforms.sources.csv import infer
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.file_columns import check_columns
from shardmill.transforms.sources.csv.probe import sample_start
from shardmill.transforms.sources.csv.typed_cells import Nulls

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
        complete: Whether these are all rows.
        problem: Why the first bad row cannot be read, or empty.
    """

    ref: InputRef
    profiles: Mapping[str, infer.ColumnProfile] = {}
    rows: int = 0
    text_bytes: int = 0
    complete: bool = False
    problem: str = ""


@dataclass(frozen=True)
class Sample:
    """The merged sample of all files.

    Attributes:
        base: Columns of most of the files that have the columns that are needed.
        profiles: Profile of each column of the files that fit, by its name.
        partial: For each column that some of these files lack: the key of the first one.
        rows: Number of sampled rows.
        row_bytes: Average bytes of text per row.
        refs: The files; those that cannot be read or do not fit are rejected.
        complete: Whether all rows were sampled.
        problem: Why the first bad row of the first file with one cannot be read, or empty.
    """

    base: tuple[str, ...]
    profiles: Mapping[str, infer.ColumnProfile]
    partial: Mapping[str, str]
    rows: int
    row_bytes: float
    refs: tuple[InputRef, ...]
    complete: bool
    problem: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return tuple(self.profiles)

    def infer(self, label: str, leave_out: Iterable[str], *, strict: bool) -> tuple[Column, ...]:
        """Return the inferred columns.

        Args:
            label: Name of a column that is required; may be empty.
            leave_out: Names of columns that are not features.
            strict: Whether columns without a missing cell in the sample are required.
        """
        names = [name for name in self.profiles if name not in leave_out]
        full = self.profiles.keys() - self.partial.keys() if strict else set()
        columns = (infer.infer_column(name, self.profiles[name]) for name in names)
        return tuple(
            replace(each, required=each.name == label or (each.required and each.name in full))
            for each in columns
        )

    def exact(self, columns: Sequence[Column]) -> tuple[str, ...]:
        """Return the names of float32 columns in which rows after the sample are not rounded."""
        if self.complete:
            return ()
        floats = {column.name for column in columns if column.kind == "float32"}
        return tuple(sorted(floats.difference(self.rounded(columns))))

    def rounded(self, columns: Sequence[Column]) -> list[str]:
        """Return the names of columns of which float32 rounds integers or merges values."""
        names = (column.name for column in columns if column.kind == "float32")
        return [name for name in names if self.profiles[name].rounding]


def sample_files(
    refs: Sequence[InputRef], dialect: Dialect, nulls: Nulls, sample_bytes: int,
    needed: Iterable[str],
) -> Sample:  # fmt: skip
    """Sample the first rows of each file.

    Args:
        refs: The files, sorted by key.
        dialect: Dialect of the files.
        nulls: Texts of missing cells.
        sample_bytes: Maximal number of bytes to read per file; fewer if there are many files.
        needed: Columns that each file must have, as far as any file has them.
    """
    usable = [ref for ref in refs if not ref.error]
    each = max(MIN_FILE_BYTES, min(sample_bytes, MAX_TOTAL_BYTES // max(1, len(usable))))
    samples = list(
        map_ordered(lambda ref: sample_file(ref, dialect, nulls, each), usable, _THREADS)
    )
    valid = [sample for sample in samples if not sample.ref.error and sample.profiles]
    base, joined, rejected = _join(valid, set(needed), dialect)
    profiles: dict[str, infer.ColumnProfile] = {}
    partial: dict[str, str] = {}
    for sample in joined:
        for name, profile in sample.profiles.items():
            known = profiles.get(name)
            profiles[name] = infer.merge_profiles(known, profile) if known else profile
    for sample in joined:
        for name in profiles.keys() - sample.profiles.keys():
            partial.setdefault(name, sample.ref.key)
    rows = sum(sample.rows for sample in joined)
    text_bytes = sum(sample.text_bytes for sample in joined)
    others = (rejected.get(sample.ref.key, sample.ref) for sample in samples)
    return Sample(
        base,
        profiles,
        partial,
        rows,
        max(1.0, text_bytes / max(1, rows)),
        (*(ref for ref in refs if ref.error), *others),
        all(sample.complete for sample in joined),
        next((sample.problem for sample in valid if sample.problem), ""),
    )


def _join(
    valid: Sequence[FileSample], needed: set[str], dialect: Dialect
) -> tuple[tuple[str, ...], list[FileSample], dict[str, InputRef]]:
    """Return the columns of most files, the files that fit, and the others by key, rejected."""
    if not valid:
        return (), [], {}
    needed &= set().union(*(sample.profiles for sample in valid))
    complete = [sample for sample in valid if needed <= sample.profiles.keys()] or valid
    counts = Counter(frozenset(sample.profiles) for sample in complete)
    # The most frequent columns; of equally frequent ones the most, then those of the first file.
    first = max(complete, key=lambda each: (counts[frozenset(each.profiles)], len(each.profiles)))
    base = tuple(first.profiles)
    known, joined, rejected = set(base), [first], {}
    for sample in (each for each in valid if each is not first):
        try:
            check_columns(tuple(sample.profiles), known, sorted(needed), base, dialect.header)
        except RejectedError as rejection:
            ref = sample.ref.rejected(rejection.error, rejection.message)
            rejected[ref.key] = ref
        else:
            joined.append(sample)
            known.update(sample.profiles)
    return base, joined, rejected


def sample_file(ref: InputRef, dialect: Dialect, nulls: Nulls, sample_bytes: int) -> FileSample:
    """Sample the first rows of one file."""
    ref, head = sample_start(ref, dialect, sample_bytes)
    if head is None:
        return FileSample(ref)
    cells = head.cells
    profiles = infer.profile_columns(cells.columns, nulls)
    rows = len(cells.offsets)
    span = int(cells.offsets[-1] - cells.offsets[0]) * rows // max(1, rows - 1) if rows else 0
    first = next(iter(cells.rejects), None)
    problem = f"{ref.key}, line {first.line}: {first.message}" if first else ""
    complete = head.seekable and ref.size <= sample_bytes
    return FileSample(ref, profiles, rows, span, complete, problem)
