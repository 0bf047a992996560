"""Listings: CSV, JSON Lines and Parquet files that name inputs and hold values of features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.errors import InputError, UsageError, format_names
from shardmill.schemas.refs import InputRef
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.match.inputs import MatchSpec
from shardmill.transforms.match.listing import find_sizes
from shardmill.transforms.sink.placement import PlaceSpec
from shardmill.transforms.sources.csv import infer
from shardmill.transforms.sources.csv.arrow_values import is_list, is_text
from shardmill.transforms.sources.csv.cell_rules import CellRules
from shardmill.transforms.sources.csv.cells import make_cells
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.row_ranges import TO_END, RowRange, read_range
from shardmill.transforms.sources.csv.sample import read_start
from shardmill.transforms.sources.csv.source import CsvSource
from shardmill.transforms.sources.csv.typed_sample import TypedSample, profiles_of
from shardmill.transforms.sources.jsonl.jsonl_source import JsonLinesSource, sample_jsonl
from shardmill.transforms.sources.jsonl.lines import merge_types, parse_lines
from shardmill.transforms.sources.listing_table import ListingTable, raise_first, unreadable
from shardmill.transforms.sources.parquet.parquet_source import ParquetSource, sample_parquet
from shardmill.transforms.tables.column_options import unknown_column
from shardmill.transforms.tables.table_source import TableSpec

_SOURCES: dict[str, Any] = {"csv": CsvSource, "parquet": ParquetSource, "jsonl": JsonLinesSource}
_DELIMITERS = (",", ";", "\t", "|")
_PATHS = ("uri", "path")
_ROLES = ("label", "split", "group")
_HEAD_BYTES = 64 << 10
_RANGE_BYTES = 1 << 20  # of rows that are in memory at a time


class ListingOptions(NamedTuple):
    """What is read of listings.

    Attributes:
        labelled: Whether the column ``label`` is needed.
        split: Whether the column ``split`` is needed.
        separator: Text between the labels of an input; empty if it has one.
        types: Columns of the types that are given.
        rules: How cells are read.
        features: The value of ``--features``, which may name columns as in ``image/NAME``.
    """

    labelled: bool = False
    split: bool = False
    separator: str = ""
    types: Mapping[str, Column] = {}
    rules: CellRules = CellRules()
    features: str = ""

    def choose(self, names: Sequence[str], *, listed: bool) -> list[str]:
        """Return the columns that become features.

        Args:
            names: Columns of listings that may become features.
            listed: Whether there are listings.

        Raises:
            UsageError: There is not what the options describe.
        """
        for flag, given in (("types", self.types), ("null_values", self.rules != CellRules())):
            if given and not listed:
                raise UsageError("types-without-listing", flag=flag)
        for name in self.types:
            if name not in names:
                raise unknown_column("types", name, "the listing has", names)
        sources = {item.rpartition("=")[2].strip() for item in self.features.split(",")}
        return [name for name in names if not self.features or f"image/{name}" in sources]


def open_listings(
    match: MatchSpec, options: ListingOptions
) -> tuple[MatchSpec, tuple[Column, ...], tuple[str, ...]]:
    """Read what decides the columns of the listings of an input.

    Args:
        match: The input.
        options: What is read.

    Returns:
        The input, with a ``ListingTable`` for each listing; the columns that become features, which
        are required if all rows have them; and warnings about columns that are not used, and values
        that are rounded.

    Raises:
        ShardmillError: A listing cannot be read, lacks a column, or an option names an unknown one.
    """
    parts = match.parts or (match,)
    paths = [each.input for each in parts if each.kind == "listing"]
    listings = {
        path: _read_columns(path).checked(options)
        for path in paths
        if not path.lower().endswith(".txt")
    }
    names = [*dict.fromkeys(name for each in listings.values() for name in each.others)]
    chosen = options.choose(names, listed=bool(listings))
    columns: dict[str, Column] = {}
    warnings: dict[str, None] = {}
    for each in listings.values():
        warnings |= dict.fromkeys(each.unused(options))
        for name, (column, rounding) in each.infer(chosen, options).items():
            if columns.setdefault(name, column) != column:
                raise InputError("listing-types-differ", name=name, source=each.ref.uri)
            if rounding and column.kind == "float32":
                text = f"float32 rounds values of the column {name!r}: {rounding}; "
                warnings[f"{text}--types={name}:text keeps their texts"] = None
    tables = {path: each.table(columns, options) for path, each in listings.items()}
    required = {*columns} if len(tables) == len(parts) else set()
    for table in tables.values() if required else ():
        required &= table.find_complete()

    def with_table(part: MatchSpec) -> MatchSpec:
        return replace(part, table=tables.get(part.input))

    match = replace(with_table(match), parts=tuple(map(with_table, match.parts)))
    found = (replace(each, required=name in required) for name, each in columns.items())
    return match, tuple(found), tuple(warnings)


@dataclass(frozen=True)
class _Listing:
    """A listing and its columns.

    Attributes:
        ref: The file.
        kind: What it is: a key of ``_SOURCES``.
        dialect: Its dialect.
        columns: Names of its columns in the file, by those without white space around them.
        profiles: Types of its columns by their names in the file; of CSV none.
        rows: All its rows; None if it has none or is Parquet.
    """

    ref: InputRef
    kind: str
    dialect: Dialect
    columns: Mapping[str, str]
    profiles: Mapping[str, Any]
    rows: RowRange | None

    @property
    def path(self) -> str:
        """The column that names inputs; empty if there is none."""
        return next((name for name in _PATHS if name in self.columns), "")

    @property
    def others(self) -> list[str]:
        """The columns without a meaning of their own."""
        return [name for name in self.columns if name not in (*_PATHS, *_ROLES)]

    def checked(self, options: ListingOptions) -> _Listing:
        """Return the listing, after checking that it has the columns that are needed.

        Raises:
            InputError: It lacks one, or has a list where one text is needed.
        """
        source, columns = self.ref.uri, [*self.columns]
        if not self.path:
            raise InputError("listing-without-uri", source=source, columns=columns)
        for name, needed in (("label", options.labelled), ("split", options.split)):
            if needed and name not in columns:
                raise InputError(
                    "listing-column-missing", source=source, name=name, columns=columns
                )
        for name in (self.path, *(_ROLES[1:] if options.separator else _ROLES)):
            profile = self.profiles.get(self.columns.get(name, ""))
            if profile and is_list(profile.kind):
                raise InputError("listing-column-lists", source=source, name=name)
        return self

    def unused(self, options: ListingOptions) -> Iterator[str]:
        """Yield a warning for each column with a meaning that is not used."""
        for name, flag, used in (
            ("label", "label_from", options.labelled), ("split", "splits", options.split),
        ):  # fmt: skip
            if name in self.columns and not used:
                yield f"the column {name!r} of the listing is not used: --{flag}=listing uses it"
        if {*_PATHS} <= self.columns.keys():
            yield "the column 'path' of the listing is not used: 'uri' says where inputs are"

    def infer(self, names: Iterable[str], options: ListingOptions) -> dict[str, tuple[Column, str]]:
        """Return the types of columns, by all rows, and what float32 would round."""
        own = [name for name in names if name in self.columns]
        profiles = self.profiles
        if self.kind == "csv":
            untyped = [self.columns[name] for name in own if name not in options.types]
            profiles = self._profile_cells(untyped, options.rules) if untyped else {}
        found = {}
        for name in own:
            profile, column = profiles.get(self.columns[name]), options.types.get(name)
            if self.kind != "csv":
                column = TypedSample.infer_column(name, profile, column)
            elif profile is not None:
                column = infer.infer_column(name, profile)
            column = replace(column or Column(name, "bytes"), required=False)
            found[name] = column, "" if profile is None else profile.rounding
        return found

    def _profile_cells(self, names: Sequence[str], rules: CellRules) -> dict[str, Any]:
        """Return the profiles of columns of CSV; none if it has no rows."""
        found: dict[str, Any] = {}

        def profile(*rows: Any) -> None:
            cells = make_cells(*rows)
            raise_first(self.ref, cells.rejects)
            each = infer.profile_columns({name: cells.columns[name] for name in names}, rules)
            for name, one in each.items():
                found[name] = infer.merge_profiles(found[name], one) if name in found else one

        self.scan(profile)
        return found

    def scan(self, make: Callable[..., Any]) -> None:
        """Call a function with all rows, some at a time; see ``read_range``."""
        if self.rows is not None:
            dialect, columns = self.dialect.for_name(self.ref.key), [*self.columns.values()]
            rows = read_range(self.ref.uri, dialect, columns, self.rows, _RANGE_BYTES, make)
            Counter(rows)  # reads them

    def table(self, columns: Mapping[str, Column], options: ListingOptions) -> ListingTable:
        """Return how its references are read."""
        used = (self.path, *(_ROLES if options.labelled else _ROLES[1:]))
        roles = {name: self.columns[name] for name in used if name in self.columns}
        features = {name: self.columns[name] for name in columns if name in self.columns}
        texts = {name: Column(raw, "bytes", required=False) for name, raw in roles.items()}
        if "label" in texts and (self.kind == "csv" or is_text(self.profiles[roles["label"]].kind)):
            texts["label"] = replace(texts["label"], separator=options.separator)
        typed = [replace(columns[name], name=raw) for name, raw in features.items()]
        rules = options.rules
        if self.kind != "csv" and rules == CellRules():  # as for tables, an empty text is a value
            rules = replace(rules, texts=frozenset())
        table = TableSpec((*texts.values(), *typed), PlaceSpec(Splits.parse(None)))
        source = _SOURCES[self.kind](
            table, self.dialect, rules, profiles=self.profiles, range_bytes=_RANGE_BYTES
        )
        roles["path"] = roles.pop(self.path)
        return ListingTable(self.ref, source, roles, features, options.separator)


def _read_columns(path: str) -> _Listing:
    """Return a listing.

    Raises:
        InputError: It cannot be read, or its columns are invalid.
    """
    ref = find_sizes(InputRef(path.rpartition("/")[2], path), "", follow_links=True)
    found = []
    for delimiter in _DELIMITERS:
        dialect = Dialect(delimiter)
        result, head = read_start(ref, dialect, _HEAD_BYTES)
        if result.error in _SOURCES:
            return _read_types(ref, result.error)
        if head is None and result.error not in ("empty", "header"):
            raise unreadable(path, result.error, result.message)
        rows = head.ranges[0]._replace(end=TO_END) if head and head.ranges else None
        columns = _name_columns(path, head.header if head else ())
        found.append(_Listing(ref, "csv", dialect, columns, {}, rows))
    return next((each for each in found if each.path), max(found, key=lambda one: len(one.columns)))


def _read_types(ref: InputRef, kind: str) -> _Listing:
    """Return a listing whose columns have types; of JSON Lines, those of all lines."""
    dialect, rows, schema = Dialect(quote=""), None, pa.schema([])
    if kind == "parquet":
        sample: Any = sample_parquet(ref, dialect, CellRules(), 0)
        profiles = sample.profiles
    else:
        sample = sample_jsonl(ref, dialect, CellRules(), _HEAD_BYTES)
        rows = sample.ranges[0]._replace(end=TO_END) if sample.ranges else None

        def find_types(batches: Any, _: Any, text: Any, __: Any) -> None:
            nonlocal schema
            found = parse_lines(batches, text, None, others=True)
            raise_first(ref, found.rejects)
            schema = merge_types([schema.empty_table(), *found.tables])

        _Listing(ref, kind, dialect, {}, {}, rows).scan(find_types)
        profiles = profiles_of(schema)
    if sample.ref.error:
        raise unreadable(ref.uri, sample.ref.error, sample.ref.message)
    return _Listing(ref, kind, dialect, _name_columns(ref.uri, [*profiles]), profiles, rows)


def _name_columns(source: str, given: Sequence[str]) -> dict[str, str]:
    """Return names of columns in the file by those without white space.

    Raises:
        InputError: One is empty, or two are equal.
    """
    names = [name.strip() for name in given]
    bad = [name for name, count in Counter(names).items() if not name or count > 1]
    if bad:
        raise InputError("listing-columns", source=source, name=bad[0], columns=format_names(names))
    return dict(zip(names, given, strict=True))
