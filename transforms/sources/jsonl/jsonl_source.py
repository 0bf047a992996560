"""JsonLinesSource: the objects of JSON Lines files as typed columns."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from shardmill.schemas.refs import InputRef
from shardmill.transforms.sources.csv.arrow_values import flatten_columns
from shardmill.transforms.sources.csv.cells import Cells
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.row_bounds import Rows
from shardmill.transforms.sources.csv.row_ranges import TO_END, RowRange, read_first
from shardmill.transforms.sources.csv.sample import open_start
from shardmill.transforms.sources.csv.source import COMPRESSION_RATIO, CsvSource
from shardmill.transforms.sources.csv.text import CsvText, open_text
from shardmill.transforms.sources.csv.text_parser import CellRules
from shardmill.transforms.sources.csv.typed_sample import TypedSample, profile_rows, profiles_of
from shardmill.transforms.sources.jsonl.lines import explicit_schema, merge_types, parse_lines
from shardmill.transforms.tables.table_source import TableInput

_SAMPLE_BYTES = 4 << 20
_HEAD_BYTES = 64 << 10
_TYPES = {"int64": pa.int64(), "float32": pa.float64(), "bytes": pa.string()}


@dataclass(frozen=True)
class JsonSample(TypedSample):
    """The sample of JSON Lines files.

    Attributes:
        seekable: Of a sample of one: whether the file can be split into ranges.
        ranges: Of a sample of one: those of ``csv.row_ranges.Head``.
    """

    seekable: bool = False
    ranges: tuple[RowRange, ...] = ()

    @staticmethod
    def merge_profiles(first: Any, second: Any) -> Any:
        """Return the profile of a key of two files; int64 and double become double.

        Raises:
            RejectedError: They have different types.
        """
        kinds = [pa.schema([("", each.kind)]) for each in (first, second)]
        with contextlib.suppress(pa.ArrowTypeError):
            kind = pa.unify_schemas(kinds, promote_options="permissive").field(0).type
            first, second = first._replace(kind=kind), second._replace(kind=kind)
        return TypedSample.merge_profiles(first, second)


def sample_jsonl(
    ref: InputRef, dialect: Dialect, rules: CellRules, sample_bytes: int, most: int = _SAMPLE_BYTES
) -> JsonSample:
    """Sample the first lines of a file."""
    del rules
    size = min(sample_bytes, most)
    ref, found = open_start(ref, lambda: _read_start(ref, dialect, size))
    return found or JsonSample((ref,))


def _read_start(ref: InputRef, dialect: Dialect, sample_bytes: int) -> JsonSample:
    with open_text(ref.uri, replace(dialect, quote="")) as text:
        text.check("jsonl")
        first, ranges = read_first(text, RowRange(text.begin, TO_END, 1), sample_bytes)
        kinds = merge_types(parse_lines(first, text, None, others=True).tables)
        profiles = profiles_of(kinds)
        schema = explicit_schema({each.path: each.kind for each in profiles.values()})
        found = parse_lines(first, text, schema, others=True)
        table = pa.concat_tables([schema.empty_table(), *found.tables])
        profiles = profile_rows(profiles, table)
        count, seekable = len(found.offsets), text.seekable
    span = int(found.offsets[-1] - found.offsets[0]) * count // max(1, count - 1) if count else 0
    return JsonSample(
        (ref,), tuple(profiles), profiles, {}, count, span, seekable and ref.size <= sample_bytes,
        seekable=seekable, ranges=ranges,
    )  # fmt: skip


@dataclass(frozen=True)
class JsonLinesSource(CsvSource):
    """The ``TableSource`` of JSON Lines files: a unit is a range of lines."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dialect", replace(self.dialect, quote=""))  # rows are lines

    def inspect(self, ref: InputRef) -> TableInput:
        """Return a file with the ranges of its first lines, or rejected."""
        sample = sample_jsonl(self.with_split(ref), self.dialect, self.rules, _HEAD_BYTES)
        if sample.ref.error:
            return TableInput(sample.ref)
        ratio = 1 if sample.seekable else COMPRESSION_RATIO
        # The types decide the rows too, not only the text.
        detail = (str(self._explicit),), tuple(map(tuple, sample.ranges))
        return TableInput(sample.ref, ref.size * ratio, detail)

    @cached_property
    def _explicit(self) -> pa.Schema:
        """Types of the keys: all of the first lines, or those of the columns only."""
        kinds = {name: (each.path, each.kind) for name, each in self.profiles.items()}
        for column in self.table.columns:
            path, kind = kinds.get(column.name, ((column.name,), None))
            if kind is None or (pa.types.is_integer(kind) and column.kind == "float32"):
                kind = _TYPES[column.kind]
                kind = pa.list_(kind) if column.several else kind
            kinds[column.name] = path, kind
        if not self.base:
            wanted = self.table.wanted
            kinds = {name: each for name, each in kinds.items() if name in wanted}
        return explicit_schema(dict(kinds.values()))

    def make_cells(
        self, batches: Sequence[Rows], columns: Sequence[str], text: CsvText, dialect: Dialect
    ) -> Cells:
        """Parse lines into cells."""
        del columns, dialect
        found = parse_lines(batches, text, self._explicit, others=not self.base)
        table = pa.concat_tables([self._explicit.empty_table(), *found.tables])
        cells = flatten_columns(table, self.table.wanted)
        return Cells(cells, found.offsets, found.lines, found.rejects, text.hash.hexdigest())
