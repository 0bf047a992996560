"""Listings: CSV, JSON Lines and Parquet files that name inputs and hold values of features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from shardmill.transforms.sources.csv.cells import Cells, make_cells
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
        separator: Text between the labels of an image; empty if it has one.
        types: Columns of the types that are given.
        rules: How cells are read.
        texts_missing: Whether the rules also hold for texts that are not written as CSV.
    """

    labelled: bool = False
    split: bool = False
    separator: str = ""
    types: Mapping[str, Column] = {}
    rules: CellRules = CellRules()
    texts_missing: bool = False


class Listings(NamedTuple):
    """Listings that can be read.

    Attributes:
        match: The input, with a ``ListingTable`` for each listing.
        columns: The columns that become features.
        separator: Text that joins the labels of an image that may have several; else empty.
        warnings: Columns that are not used, and values that are rounded.
    """

    match: MatchSpec
    columns: tuple[Column, ...]
    separator: str
    warnings: tuple[str, ...]


def open_listings(
    match: MatchSpec, options: ListingOptions, choose: Callable[[list[str]], Collection[str]]
) -> Listings:
    """Return the listings of an input, after reading what decides their columns.

    Args:
        match: The input.
        options: What is read.
        choose: Returns the columns that become features, of those that have no other meaning.

    Raises:
        ShardmillError: A listing cannot be read, lacks a column, or an option names an unknown one.
    """
    parts = [each for each in match.parts or (match,) if each.kind == "listing"]
    found = {each.input: _read_columns(each.input, options) for each in parts if not each.archives}
    listings = {path: each for path, each in found.items() if each}
    names = [*dict.fromkeys(name for each in listings.values() for name in each.others)]
    _check_options(options, names, listed=bool(listings))
    if not listings:
        return Listings(match, (), "", ())
    chosen = [name for name in names if name in choose(names)]
    columns: dict[str, Column] = {}
    warnings: dict[str, None] = {}
    for each in listings.values():
        warnings |= dict.fromkeys(each.unused(options))
        for name, (column, rounding) in each.infer(chosen, options).items():
            columns[name] = _merge(columns.get(name, column), column)
            if rounding and column.kind == "float32":
                text = f"float32 rounds values of the column {name!r}: {rounding}; "
                warnings[f"{text}--types={name}:text keeps their texts"] = None
    separator = options.separator
    if options.labelled and any(each.has_label_lists for each in listings.values()):
        separator = separator or "|"

    def with_table(part: MatchSpec) -> MatchSpec:
        each = listings.get(part.input)
        return replace(part, table=each.table(columns, separator, options)) if each else part

    match = replace(with_table(match), parts=tuple(map(with_table, match.parts)))
    return Listings(match, tuple(columns.values()), separator, tuple(warnings))


def _check_options(options: ListingOptions, names: Sequence[str], *, listed: bool) -> None:
    for flag, given in (("types", options.types), ("null_values", options.texts_missing)):
        if given and not listed:
            raise UsageError("types-without-listing", flag=flag)
    for name in options.types:
        if name not in names:
            raise unknown_column("types", name, "the listing has", names)


def _merge(first: Column, second: Column) -> Column:
    """Return the type that holds the values of a column of two listings."""
    if replace(first, booleans=second.booleans) == second and first.booleans == second.booleans:
        return first
    kinds = {first.kind, second.kind}
    is_number = kinds == {"int64", "float32"} and not (first.booleans or second.booleans)
    several = first.several or second.several
    return Column(
        first.name, "float32" if is_number else "bytes", required=False, several=several
    )  # fmt: skip


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
        """The column that names inputs."""
        return next(name for name in _PATHS if name in self.columns)

    @property
    def others(self) -> list[str]:
        """The columns without a meaning of their own."""
        return [name for name in self.columns if name not in (*_PATHS, *_ROLES)]

    @property
    def has_label_lists(self) -> bool:
        """Whether the labels are lists."""
        profile = self.profiles.get(self.columns.get("label", ""))
        return bool(profile and is_list(profile.kind))

    def check(self, options: ListingOptions) -> _Listing:
        """Return the listing, after checking that it has the columns that are needed.

        Raises:
            InputError: It lacks one, or has a list where one text is needed.
        """
        source, columns = self.ref.uri, [*self.columns]
        if not {*columns} & {*_PATHS}:
            raise InputError("listing-without-uri", source=source, columns=columns)
        for name, needed in (("label", options.labelled), ("split", options.split)):
            if needed and name not in columns:
                raise InputError(
                    "listing-column-missing", source=source, name=name, columns=columns
                )
        for name in (self.path, "split", "group"):
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
        own = {self.columns[name]: name for name in names if name in self.columns}
        given = {raw: options.types[name] for raw, name in own.items() if name in options.types}
        profiles = self.profiles
        if self.kind == "csv":
            untyped = [name for name in own if name not in given]
            profiles = self._profile_cells(untyped, options.rules) if untyped else {}
        found = {}
        for raw, name in own.items():
            profile, column = profiles.get(raw), given.get(raw)
            if self.kind != "csv":
                column = TypedSample.infer_column(name, profile, column)
            elif profile is not None:
                column = infer.infer_column(name, profile)
            if column is None:  # a CSV without rows
                column = Column(name, "bytes")
            rounding = "" if profile is None else profile.rounding
            found[name] = replace(column, name=name, required=False), rounding
        return found

    def _profile_cells(self, names: Sequence[str], rules: CellRules) -> dict[str, Any]:
        """Return the profiles of columns of CSV."""
        found: dict[str, Any] = {}

        def profile(*rows: Any) -> Any:
            cells = make_cells(*rows)
            raise_first(self.ref, cells.rejects)
            each = infer.profile_columns({name: cells.columns[name] for name in names}, rules)
            found.update(
                (name, infer.merge_profiles(found[name], one) if name in found else one)
                for name, one in each.items()
            )
            return cells

        self.scan(profile)
        return found

    def scan(self, make: Callable[..., Cells]) -> None:
        """Call a function with all rows, some at a time; see ``read_range``."""
        if self.rows is not None:
            rows = read_range(
                self.ref.uri, self.dialect.for_name(self.ref.key), [*self.columns.values()],
                self.rows, _RANGE_BYTES, make,
            )  # fmt: skip
            for _ in rows:
                pass

    def table(
        self, columns: Mapping[str, Column], separator: str, options: ListingOptions
    ) -> ListingTable:
        """Return how its references are read."""
        texts = {name: self.columns[name] for name in _ROLES if name in self.columns}
        if not options.labelled:
            texts.pop("label", None)
        features = {name: self.columns[name] for name in columns if name in self.columns}
        wanted = [Column(raw, "bytes", required=False) for raw in texts.values()]
        if "label" in texts:
            profile = self.profiles.get(texts["label"])
            splits = profile is None or is_text(profile.kind)
            wanted[0] = replace(wanted[0], separator=separator if splits else "")
        wanted += [Column(self.columns[self.path], "bytes", required=False)]
        wanted += [replace(columns[name], name=raw) for name, raw in features.items()]
        rules = options.rules
        if self.kind != "csv" and not options.texts_missing:  # an empty text is a value
            rules = replace(rules, texts=frozenset())
        source = _SOURCES[self.kind](
            TableSpec(tuple(wanted), PlaceSpec(Splits.parse(None))), self.dialect, rules,
            profiles=self.profiles, range_bytes=_RANGE_BYTES,
        )  # fmt: skip
        roles = {**texts, "path": self.columns[self.path]}
        return ListingTable(self.ref, source, roles, features, separator)


def _read_columns(path: str, options: ListingOptions) -> _Listing | None:
    """Return a listing; None for a list of paths (.txt).

    Raises:
        InputError: It cannot be read, or its columns are invalid.
    """
    if path.lower().endswith(".txt"):
        return None
    ref = find_sizes(InputRef(path.rpartition("/")[2], path), "", follow_links=True)
    found, first = ref, None
    for delimiter in _DELIMITERS:
        found, head = read_start(ref, Dialect(delimiter), _HEAD_BYTES)
        if found.error in _SOURCES:
            return _typed_listing(ref, found.error).check(options)
        if head is not None:
            rows = head.ranges[0]._replace(end=TO_END) if head.ranges else None
            columns = _name_columns(path, head.header)
            listing = _Listing(ref, "csv", Dialect(delimiter), columns, {}, rows)
            first = first or listing
            if {*_PATHS} & {*columns}:
                return listing.check(options)
    if first is None and found.error != "empty":
        raise unreadable(path, found.error, found.message)
    return (first or _Listing(ref, "csv", Dialect(), {}, {}, None)).check(options)


def _typed_listing(ref: InputRef, kind: str) -> _Listing:
    """Return a listing whose columns have types; of JSON Lines, those of all lines."""
    dialect, rows = Dialect(quote=""), None
    if kind == "parquet":
        sample: TypedSample = sample_parquet(ref, dialect, CellRules(), 0)  # type: ignore[assignment]
        profiles, ref = sample.profiles, sample.ref
    else:
        lines = sample_jsonl(ref, dialect, CellRules(), _HEAD_BYTES)
        rows = lines.ranges[0]._replace(end=TO_END) if lines.ranges else None
        schema, ref = pa.schema([]), lines.ref

        def find_types(batches: Any, _: Any, text: Any, __: Any) -> Any:
            nonlocal schema
            found = parse_lines(batches, text, None, others=True)
            raise_first(ref, found.rejects)
            schema = merge_types([schema.empty_table(), *found.tables])

        _Listing(ref, kind, dialect, {}, {}, rows).scan(find_types)
        profiles = profiles_of(schema)
    if ref.error:
        raise unreadable(ref.uri, ref.error, ref.message)
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
