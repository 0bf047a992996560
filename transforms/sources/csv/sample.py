"""Sample the first rows of files to infer column types, and check their columns."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.errors import ChangedError, DeniedError, format_names
from shardmill.schemas.refs import InputRef, RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.schemas.storage.base import map_ordered
from shardmill.transforms.sources.csv import infer
from shardmill.transforms.sources.csv.cells import NO_CELLS
from shardmill.transforms.sources.csv.dialect import Dialect, HeaderMode
from shardmill.transforms.sources.csv.head import read_head
from shardmill.transforms.sources.csv.row_ranges import Head
from shardmill.transforms.sources.csv.text_parser import CellRules
from shardmill.transforms.sources.csv.totals import find_totals

MAX_TOTAL_BYTES = 256 << 20  # of text sampled from all files together
MIN_FILE_BYTES = 64 << 10  # of text sampled from each file
_HEAD_BYTES = 64 << 10  # of text read to inspect a file that was not sampled
_THREADS = 4
_MAX_STARTS = 10_000
# The name of an index as pandas writes it, and as it reads that.
_NAMELESS = re.compile(r"(Unnamed: \d+(\.\d+)?)?")
_Start = TypeVar("_Start")
# The starts of files that this process sampled, without rows.
_starts: dict[tuple[str, int, str, int, Dialect], Head] = {}


@dataclass(frozen=True)
class Sample:
    """The sample of one file, or the merged sample of all files.

    Attributes:
        refs: The files; those that cannot be read or do not fit are rejected.
        base: Columns of most of the files that have the columns that are needed.
        profiles: Profile of each column of the files that fit, by its name.
        partial: For each column that some of these files lack: the key of the first one.
        rows: Number of sampled rows.
        text_bytes: Bytes of text of these rows.
        complete: Whether all rows were sampled.
        repeated: Columns of the first file with a number behind a name that others have too.
        cells: Names in the header of the first file that are also cells of their columns.
        problem: Why the first bad row of the first file with one cannot be read, or empty.
        indices: Columns without a name that may be an index, in the first file with such columns.
        totals: File and line of a last row of totals, or empty.
    """

    refs: tuple[InputRef, ...]
    base: tuple[str, ...] = ()
    profiles: Mapping[str, Any] = field(default_factory=dict)
    partial: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    text_bytes: int = 0
    complete: bool = False
    problem: str = ""
    repeated: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    totals: str = ""

    keep_texts: ClassVar = "make such columns BYTES in a --schema to keep their texts"
    infer_column: ClassVar = staticmethod(infer.infer_column)
    merge_profiles: ClassVar = staticmethod(infer.merge_profiles)

    def describe(self, column: Column, *, missing: bool) -> str:
        """Describe the type and the sampled values of a column, for people.

        Args:
            column: A column, which the sample may lack.
            missing: Whether to count missing cells.
        """
        profile = self.profiles.get(column.name)
        if profile is None or not profile.example:
            return column.kind
        extent = f"{profile.distinct:,} distinct"
        reason, gap = "such as", "nulls"
        if column.kind == "bytes":
            gap = "empty"
            if profile.is_text:
                reason = "not a number"
        elif profile.low <= profile.high:
            extent = f"{profile.low:,.9g} to {profile.high:,.9g}"
        if not self.complete:
            extent += " in the sample"
        number = profile.counts[gap] if missing else 0
        gaps = f"; {number:,} missing" if number else ""
        return f"{column.kind}, {extent}, {reason}: {profile.example}{gaps}"

    def list_findings(self, columns: Sequence[Column]) -> Iterable[str]:
        """Return sentences about the columns of an inferred schema that need a look."""
        return infer.list_findings(columns, self.profiles)

    @property
    def row_bytes(self) -> float:
        """Average bytes of text per row."""
        return max(1.0, self.text_bytes / max(1, self.rows))

    @property
    def ref(self) -> InputRef:
        """The first file."""
        return self.refs[0]

    def with_file(self, other: Sample) -> Sample:
        """Return the sample of these files and of another one.

        Raises:
            RejectedError: A column has different types.
        """
        profiles = dict(self.profiles)
        for name, profile in other.profiles.items():
            earlier = profiles.get(name)
            if earlier is None:
                profiles[name] = profile
            else:
                profiles[name] = self.merge_profiles(earlier, profile)
        return replace(
            self,
            refs=(*self.refs, *other.refs),
            profiles=profiles,
            rows=self.rows + other.rows,
            text_bytes=self.text_bytes + other.text_bytes,
            complete=self.complete and other.complete,
            problem=self.problem or other.problem,
            repeated=self.repeated or other.repeated,
            cells=self.cells or other.cells,
            indices=self.indices or other.indices,
            totals=self.totals or other.totals,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return tuple(self.profiles)

    def infer(
        self, label: str, leave_out: Iterable[str], given: Mapping[str, Column], *, strict: bool
    ) -> tuple[Column, ...]:
        """Return the inferred columns.

        Args:
            label: Name of a column that is required; may be empty.
            leave_out: Names of columns that are not features.
            given: Columns whose types are not inferred, by name.
            strict: Whether columns without a missing cell in the sample are required.
        """
        names = [name for name in self.profiles if name not in leave_out]
        full = self.profiles.keys() - self.partial.keys() if strict else set()
        columns = (self.infer_column(name, self.profiles[name], given.get(name)) for name in names)
        return tuple(
            replace(
                column, required=column.name == label or (column.required and column.name in full)
            )
            for column in columns
        )

    def exact(self, columns: Sequence[Column]) -> tuple[str, ...]:
        """Return the names of float32 columns in which rows after the sample are not rounded."""
        if self.complete:
            return ()
        floats = {column.name for column in columns if column.kind == "float32"}
        return tuple(sorted(floats.difference(self.rounded(columns))))

    def rounded(self, columns: Sequence[Column]) -> list[str]:
        """Return the names of columns whose integers float32 rounds, or whose values it merges."""
        names = (column.name for column in columns if column.kind == "float32")
        return [name for name in names if self.profiles[name].rounding]


def sample_files(
    refs: Sequence[InputRef],
    sample_one: Callable[[InputRef], Sample],
    needed: Iterable[str],
    header: HeaderMode,
) -> Sample:
    """Sample the first rows of each file.

    Args:
        refs: The files, sorted by key.
        sample_one: Returns the sample of a file.
        needed: Columns that each file must have, as far as any file has them.
        header: Whether files have a header.
    """
    usable = [ref for ref in refs if not ref.error]
    samples = _merge_alike(map_ordered(sample_one, usable, _THREADS))
    valid = [sample for sample in samples if not sample.ref.error and sample.profiles]
    kind = type(samples[0]) if samples else Sample
    joined, rejected = kind((), complete=True), dict[str, InputRef]()
    if valid:
        joined, rejected = _join(valid, set(needed), header)
    others = (rejected.get(ref.key, ref) for sample in samples for ref in sample.refs)
    return replace(
        joined,
        refs=(*(ref for ref in refs if ref.error), *sorted(others)),
        problem=next((sample.problem for sample in valid if sample.problem), ""),
    )


def _merge_alike(samples: Iterable[Sample]) -> list[Sample]:
    """Return samples, one for all files whose columns have the same names and types."""
    merged: dict[Any, Sample] = {}
    for sample in samples:
        kinds = tuple(
            (name, getattr(profile, "kind", "")) for name, profile in sample.profiles.items()
        )
        same = (sample.base, kinds) if kinds else sample.ref  # files without rows stay alone
        if same in merged:
            merged[same] = merged[same].with_file(sample)
        else:
            merged[same] = sample
    return [*merged.values()]


def sample_size(refs: Sequence[InputRef], sample_bytes: int) -> int:
    """Return the number of bytes to read of each file; fewer if there are many files."""
    usable = sum(not ref.error for ref in refs)
    return max(MIN_FILE_BYTES, min(sample_bytes, MAX_TOTAL_BYTES // max(1, usable)))


def _join(
    valid: Sequence[Sample], needed: set[str], header: HeaderMode
) -> tuple[Sample, dict[str, InputRef]]:
    """Return the sample of the files that fit; and the others, which are rejected, by key."""
    needed &= set().union(*(sample.profiles for sample in valid))
    complete = [sample for sample in valid if needed <= sample.profiles.keys()] or valid
    counts = Counter[frozenset[str]]()
    for sample in complete:
        counts[frozenset(sample.profiles)] += len(sample.refs)
    # The most frequent columns; of equally frequent ones the most, then those of the first file.
    first = max(
        complete,
        key=lambda candidate: (counts[frozenset(candidate.profiles)], len(candidate.profiles)),
    )
    joined, fitting = first, [first]
    rejected: dict[str, InputRef] = {}
    for sample in (other for other in valid if other is not first):
        try:
            check_columns(sample.base, joined.profiles, sorted(needed), first.base, header)
            joined = joined.with_file(sample)
        except RejectedError as rejection:
            text = rejection.error, rejection.message
            rejected |= {ref.key: ref.rejected(*text) for ref in sample.refs}
        else:
            fitting.append(sample)
    partial: dict[str, str] = {}
    for sample in fitting:
        for name in joined.profiles.keys() - sample.profiles.keys():
            partial.setdefault(name, sample.ref.key)
    return replace(joined, partial=partial), rejected


@lru_cache(maxsize=1)  # of the first file, from which the kind of all is known
def sample_file(ref: InputRef, dialect: Dialect, rules: CellRules, sample_bytes: int) -> Sample:
    """Sample the first rows of one file."""
    ref, head = read_start(ref, dialect, sample_bytes)
    if head is None:
        return Sample((ref,))
    cells = head.cells
    profiles = {
        name: profile._replace(problem=infer.find_problem(name, profile, cells, ref.key, rules))
        for name, profile in infer.profile_columns(cells.columns, rules).items()
    }
    rows = len(cells.offsets)
    span = int(cells.offsets[-1] - cells.offsets[0]) * rows // max(1, rows - 1) if rows else 0
    first = next(iter(cells.rejects), None)
    problem = f"{ref.key}, line {first.line}: {first.message}" if first else ""
    complete = head.seekable and ref.size <= sample_bytes
    totals = find_totals(cells, profiles, rules) if complete else 0
    totals_place = f"{ref.key}, line {totals}" if totals else ""
    named = [pair for pair in zip(profiles, head.header, strict=False) if pair[1]]
    repeated = tuple(name for name, given in named if name != given)
    texts = {name: cells.columns[name].dictionary for name in profiles}
    data = tuple(given for name, given in named if _index(texts[name], given.encode()) >= 0)
    nameless = zip(profiles, head.header, strict=False)
    indices = (name for name, given in nameless if _NAMELESS.fullmatch(given))
    return Sample(
        (ref,),
        tuple(profiles),
        profiles,
        {},
        rows,
        span,
        complete,
        problem,
        repeated,
        data,
        tuple(name for name in indices if infer.may_be_index(profiles[name])),
        totals_place,
    )


def _index(values: pa.Array, value: bytes) -> int:
    return int(pc.index(values, pa.scalar(value, values.type)).as_py())


def read_start(ref: InputRef, dialect: Dialect, sample_bytes: int) -> tuple[InputRef, Head | None]:
    """Return a file with its first rows; or rejected, and None, if it cannot be read as rows.

    Args:
        ref: The file.
        dialect: Dialect of the files.
        sample_bytes: Approximate number of bytes of rows to read. Without any, the result has no
            rows where this process has sampled the file: it is not opened again.
    """
    # A file that changed has another version, or at least another ctime.
    place = ref.uri, ref.size, ref.version, ref.ctime, dialect
    if not sample_bytes and place in _starts:
        return ref, _starts[place]
    ref, head = open_start(
        ref, lambda: read_head(ref.uri, dialect.for_name(ref.key), sample_bytes or _HEAD_BYTES)
    )
    if head and sample_bytes and len(_starts) < _MAX_STARTS:
        names = _share(head.columns), _share(head.header)
        _starts[place] = head._replace(cells=NO_CELLS, columns=names[0], header=names[1])
    return ref, head


@lru_cache(maxsize=16)
def _share(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return equal names of several files as one object."""
    return names


def open_start(ref: InputRef, read: Callable[[], _Start]) -> tuple[InputRef, _Start | None]:
    """Return a file and its head; the file rejected, and None, if it cannot be read."""
    if not ref.error and not ref.size:
        ref = ref.rejected("empty", "the file has no bytes")
    if ref.error:
        return ref, None
    try:
        return ref, read()
    except RejectedError as rejection:
        return ref.rejected(rejection.error, rejection.message), None
    except FileNotFoundError:
        return ref.rejected("not_found", "the file is gone"), None
    except DeniedError as error:
        return ref.rejected("unreadable", str(error)), None
    except ChangedError as error:
        return ref.rejected("changed", str(error)), None


def missing_columns(schema: Sequence[Column], columns: Sequence[str]) -> list[str]:
    """Return the required columns of a schema that a file lacks."""
    present = {*columns}
    required = [column.name for column in schema if column.required and not column.default]
    return [name for name in required if name not in present]


def check_columns(
    columns: Sequence[str],
    table_columns: Collection[str],
    needed: Iterable[str],
    base: Sequence[str],
    header: HeaderMode,
) -> None:
    """Check that the columns of a file are those of the table.

    Args:
        columns: Columns of the file.
        table_columns: Columns of the table.
        needed: Columns that each file must have.
        base: Inferred schema: the columns of most files. Each file must have half of them, or as
            many if files have no header.
        header: Whether files have a header.

    Raises:
        RejectedError: A column is missing, or has nearly the name of a column of the table.
    """
    if base and header == "none" and len(columns) != len(base):
        message = f"it has {len(columns)} columns, and most files have {len(base)}"
        raise RejectedError("read", "columns", message)
    present = {*columns}
    missing = [name for name in dict.fromkeys(needed) if name not in present]
    others = {_fold(name): name for name in table_columns if name not in present}
    extra = [name for name in columns if name not in table_columns]
    near = [(name, others[_fold(name)]) for name in extra if _fold(name) in others]
    lacks_half = 2 * len(present & {*base}) < len(base)
    if not (missing or near or lacks_half):
        return
    if near:
        message = (
            f"its column {near[0][0]!r} differs from {near[0][1]!r} only in case, spaces or "
            "Unicode form: rename it"
        )
    else:
        if lacks_half:
            missing = [name for name in base if name not in present]
        instead = f"only {format_names(columns)}"
        if not columns:
            instead = "nor any other"
        elif extra:
            instead = f"but {format_names(extra)}"
        fit = "most files" if base else "the schema, or make them optional there"
        message = f"it has no column {format_names(missing)}, {instead}: give it those of {fit}"
    raise RejectedError("read", "columns", message)


def check_spellings(columns: Sequence[str], table_columns: Collection[str]) -> None:
    """Check that no two columns of a file have names that look alike.

    Args:
        columns: Columns of the file.
        table_columns: Columns of the table.

    Raises:
        RejectedError: Two names differ only in spaces or Unicode form.
    """
    for names in _find_alike(tuple(columns)):
        used = [name for name in names if name in table_columns]
        if len(used) > 1:
            first, second = map(ascii, used[:2])
            raise RejectedError(
                "read",
                "columns",
                f"its columns {first} and {second} differ only in spaces or Unicode form: rename "
                "one, or leave one out with --drop",
            )


@lru_cache(maxsize=16)
def _find_alike(columns: tuple[str, ...]) -> list[list[str]]:
    """Return the names that differ only in spaces or Unicode form; there may be 100,000 columns."""
    spellings: dict[str, list[str]] = {}
    for name in columns:
        plain = " ".join(unicodedata.normalize("NFC", name).split())
        spellings.setdefault(plain, []).append(name)
    return [names for names in spellings.values() if len(names) > 1]


def _fold(name: str) -> str:
    """Return a name without the differences that people overlook."""
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())
