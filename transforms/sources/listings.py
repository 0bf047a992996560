"""Listings: CSV, JSON Lines and Parquet files that name inputs and hold values of features."""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.errors import InputError, UsageError, format_names
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.refs import InputRef, RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.schemas.text_file import unreadable_text
from shardmill.transforms.match.inputs import MatchSpec, find_sizes, is_remote_folder, key_of_entry
from shardmill.transforms.match.labels import sort_labels
from shardmill.transforms.match.walk import make_key
from shardmill.transforms.sink.placement import PlaceSpec
from shardmill.transforms.sources.csv.arrow_values import PANDAS_INDEX
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.row_ranges import make_unique, parse_head
from shardmill.transforms.sources.csv.sample import Sample, read_start, sample_file
from shardmill.transforms.sources.csv.source import CsvSource
from shardmill.transforms.sources.csv.text_parser import CellRules
from shardmill.transforms.sources.jsonl.jsonl_source import JsonLinesSource, sample_jsonl
from shardmill.transforms.sources.parquet.parquet_source import ParquetSource, sample_parquet
from shardmill.transforms.tables.column_options import unknown_column
from shardmill.transforms.tables.table_source import (
    RowReject,
    TableSpec,
    TypedBatch,
    decode,
    is_list,
)

_SAMPLE_BYTES = 32 << 20  # which take 500 MB of memory
_KINDS: dict[str, tuple[Callable[..., Sample], Any]] = {
    "csv": (sample_file, CsvSource),
    "parquet": (sample_parquet, ParquetSource),
    "jsonl": (functools.partial(sample_jsonl, most=_SAMPLE_BYTES), JsonLinesSource),
}
_DELIMITERS = (",", ";", "\t", "|")
_PATHS = ("uri", "path", "file_name")  # the last one is that of Hugging Face's metadata files
# As other programs name this column, in lower case.
_OTHER_PATHS = {
    *_PATHS,
    *("file", "filename", "file name", "filepath", "file_path", "image", "image_name"),
    *("image_path", "img", "img_path"),
}
_IMAGE_NAME = re.compile(r"\.(jpe?g|png|gif|bmp|tiff?|webp|heic)$", re.IGNORECASE)
_ROLES = ("label", "split", "group")
_HEAD_BYTES = 64 << 10
_NOT_UTF_8 = "not UTF-8; save it as UTF-8"
_RANGE_BYTES = 1 << 20  # of rows that are in memory at a time
_STEP = 4096  # rows that become Python objects at a time


class ListingOptions(NamedTuple):
    """Options of listings.

    Attributes:
        labelled: Whether the column ``label`` is needed.
        split: Whether the column ``split`` is needed.
        separator: Text between the labels of an input; empty for a single label.
        types: Columns of the types that are given.
        rules: How cells are read.
        features: The value of ``--features``, which may name columns as in ``image/NAME``.
        dialect: The dialect of CSV; if its delimiter is a comma, others are tried.
    """

    labelled: bool = False
    split: bool = False
    separator: str = ""
    types: Mapping[str, Column] = {}
    rules: CellRules = CellRules()
    features: str = ""
    dialect: Dialect = Dialect()

    def choose(self, names: Sequence[str]) -> list[str]:
        """Return which columns of listings become features.

        Raises:
            UsageError: A type is that of an unknown column.
        """
        for name in self.types:
            if name not in names:
                raise unknown_column("types", name, "the listing has", names)
        sources = {item.rpartition("=")[2].strip() for item in self.features.split(",")}
        return [name for name in names if not self.features or f"image/{name}" in sources]


def _find_tables(parts: Sequence[MatchSpec], options: ListingOptions) -> list[str]:
    """Return the listings that are tables: a ``.txt`` is one if it has more than paths."""
    listings = (part for part in parts if part.kind == "listing")
    has_more = options.labelled or options.split
    return [
        part.input
        for part in listings
        if not part.input.lower().endswith(".txt") or (has_more and not part.archives)
    ]


def open_listings(
    match: MatchSpec, options: ListingOptions
) -> tuple[MatchSpec, tuple[Column, ...], tuple[str, ...]]:
    """Open the listings of an input, and infer their columns.

    Args:
        match: The input.
        options: Options of the listings.

    Returns:
        The input, with a ``Listing`` for each; the columns that become features, which are required
        if all rows have them; and warnings about columns that are not used, and rounded values.

    Raises:
        ShardmillError: A listing cannot be read, lacks a column, or an option names an unknown one.
    """
    parts = match.parts or (match,)
    listings = {path: _read_columns(path, options) for path in _find_tables(parts, options)}
    if options.separator and not (options.labelled and len(listings) == len(parts)):
        raise UsageError(
            f"--label_separator={options.separator} needs labels of listings: set "
            "--label_from=listing, and give listings as --input."
        )
    names = [*dict.fromkeys(name for listing in listings.values() for name in listing.others)]
    chosen = options.choose(names)
    columns: dict[str, Column] = {}
    warnings: dict[str, None] = {}
    for listing in listings.values():
        warnings |= dict.fromkeys(listing.warn())
        for column in listing.infer(chosen):
            if columns.setdefault(column.name, column) != column:
                raise InputError(
                    f"The column {column.name!r} of {listing.ref.uri} has another type than in the "
                    f"other listings: give it one, as in --types={column.name}:float."
                )
            rounding = listing.sample.profiles[column.name].rounding
            if rounding and column.kind == "float32":
                text = f"float32 rounds values of the column {column.name!r}: {rounding}"
                fix = f"--types={column.name}:text keeps their texts"
                if listing.kind == "jsonl":  # Arrow reads integers and decimals as doubles
                    fix = listing.sample.keep_texts
                warnings[f"{text}; {fix}"] = None
        untyped = [
            column
            for name, column in columns.items()
            if name in listing.sample.profiles and name not in options.types
        ]
        warnings |= dict.fromkeys(listing.sample.list_findings(untyped))
    features = tuple(columns.values())
    opened = {path: replace(listing, features=features) for path, listing in listings.items()}
    required = {*columns} if len(opened) == len(parts) else set()
    if required:
        for table in opened.values():
            required &= table.find_complete()

    def with_table(part: MatchSpec) -> MatchSpec:
        return replace(part, table=opened.get(part.input))

    match = replace(with_table(match), parts=tuple(map(with_table, match.parts)))
    checked_features = (replace(column, required=column.name in required) for column in features)
    return match, tuple(checked_features), tuple(warnings)


def _find_fix(columns: Sequence[str], *, is_csv: bool) -> str:
    """Return the fix for a listing without a column of paths."""
    alias = next((name for name in columns if name.strip().lower() in _OTHER_PATHS), None)
    if alias is not None:
        return f"rename its column {alias!r} to path"
    if is_csv and columns and columns[0].startswith("#"):
        return "leave out the lines above the header by --comment='#', or by --skip_lines"
    if is_csv and any(_IMAGE_NAME.search(name) for name in columns):
        names = ",".join(["path", "label", *"abc"][: len(columns)])
        return f"a file without a header needs --header=none and names, as in --columns={names}"
    return (
        "a listing is a CSV with a header, JSON Lines or Parquet, with a column uri, path or "
        "file_name, perhaps label, split, group, and others that become features; for a table "
        "use `shardmill rows`"
    )


@dataclass(frozen=True)
class Listing:
    """A listing; a picklable value.

    Attributes:
        ref: The file.
        kind: What it is: a key of ``_KINDS``.
        dialect: Its dialect.
        names: Names of its columns.
        sample: What its first rows say of them.
        options: Options of the listing.
        nameless: Those that the header does not name, which are not used.
        features: Columns of all listings that become features.
    """

    ref: InputRef
    kind: str
    dialect: Dialect
    names: tuple[str, ...]
    sample: Sample
    options: ListingOptions
    nameless: tuple[str, ...] = ()
    features: tuple[Column, ...] = ()

    @functools.cached_property
    def path(self) -> str:
        """The column that names inputs."""
        return next(name for name in _PATHS if name in self.names)

    @functools.cached_property
    def _source(self) -> Any:
        """The rows: of the columns that have a meaning texts, and of features values."""
        options = self.options
        roles = _ROLES if options.labelled else _ROLES[1:]
        texts = (Column(name, "bytes", required=False) for name in (self.path, *roles))
        late = _ROLES if self.kind == "jsonl" else ()  # keys that the first rows may lack
        available = (*self.names, *late)
        columns = (column for column in (*texts, *self.features) if column.name in available)
        rules = options.rules
        if self.kind != "csv" and rules == CellRules():  # as for tables, an empty text is a value
            rules = replace(rules, texts=frozenset())
        table = TableSpec(tuple(columns), PlaceSpec(Splits.parse(None)))
        base = () if options.features else self.names  # late keys of JSON Lines are errors
        return _KINDS[self.kind][1](
            table,
            self.dialect,
            rules,
            profiles=self.sample.profiles,
            range_bytes=_RANGE_BYTES,
            base=base,
        )

    @property
    def others(self) -> list[str]:
        """The columns that may become features."""
        return [name for name in self.names if name not in (*_PATHS, *_ROLES, *self.nameless)]

    def check(self) -> Listing:
        """Return the listing, after checking that it has the columns that are needed.

        Raises:
            InputError: It lacks one, or has a list where one text is needed.
        """
        source, columns = self.ref.uri, [*self.names]
        if {*_PATHS}.isdisjoint(columns):
            fix = _find_fix(columns, is_csv=self.kind == "csv")
            raise InputError(
                f"{source} has no column uri, path or file_name, only {columns}: {fix}."
            )
        for name, needed in (("label", self.options.labelled), ("split", self.options.split)):
            if needed and name not in columns:
                raise InputError(
                    f"{source} has no column {name}, only {columns}: a listing is a CSV with a "
                    "header, JSON Lines or Parquet, with a column uri, path or file_name, perhaps "
                    "label, split, group, and others that become features; for a table use "
                    "`shardmill rows`."
                )
        single = self.options.labelled and not self.options.separator
        roles = _ROLES if single else _ROLES[1:]
        for name in (*_PATHS, *roles):
            profile = self.sample.profiles.get(name)
            if self.kind != "csv" and profile and is_list(profile.kind):
                raise InputError(
                    f"{source}: the column {name} holds lists, but it must hold one text; lists of "
                    "labels need --label_separator."
                )
        return self

    def warn(self) -> Iterator[str]:
        """Yield a warning for each column that is not used, unless an option says so."""
        for name, flag, used in (
            ("label", "label_from", self.options.labelled),
            ("split", "splits", self.options.split),
        ):
            if name in self.names and not used:
                yield f"the column {name!r} of the listing is not used: --{flag}=listing uses it"
        for name in {*_PATHS}.intersection(self.names) - {self.path}:
            yield f"the column {name!r} of the listing is not used: {self.path!r} names the inputs"
        for name in self.nameless:  # such as the index that pandas writes
            yield f"{name} of the listing has no name and is not used: name it in the header"

    def infer(self, chosen: Sequence[str]) -> Iterator[Column]:
        """Yield some columns, with the types that their values have or are given."""
        for name in chosen:
            profile = self.sample.profiles.get(name)
            if profile is not None:
                column = self.sample.infer_column(name, profile, self.options.types.get(name))
                yield replace(column, required=False)

    def entries(self, root: str) -> Iterator[InputRef]:
        """Yield a reference for each row, without size.

        Args:
            root: Folder that entries are relative to and must not leave.

        Raises:
            InputError: The listing is malformed, or an entry has another scheme or leads outside
                the root.
        """
        is_folder = functools.cache(is_remote_folder)
        for batch in self._batches():
            lines = batch.rows.lines
            for start in range(0, len(lines), _STEP):
                order = np.arange(start, min(start + _STEP, len(lines)))
                cells = {column.name: column.take(order).to_pylist() for column in batch.columns}
                for number, line in enumerate(lines[order].tolist()):
                    row = {name: values[number] for name, values in cells.items()}
                    yield self._of_row(row, f"{self.ref.uri}, line {line}", root, is_folder)

    def find_complete(self) -> set[str]:
        """Return the features that all rows have.

        Raises:
            InputError: The listing is malformed.
        """
        lacking = set()
        for batch in self._batches():
            for column in batch.columns:
                if decode(column.values).null_count:
                    lacking.add(column.name)
        return {feature.name for feature in self.features if feature.name in self.names} - lacking

    def _batches(self) -> Iterator[TypedBatch]:
        try:
            item = self._source.inspect(self.ref)
            if item.ref.error and item.ref.error != "empty":
                raise _unreadable(self.ref.uri, item.ref.error, item.ref.message)
            units = () if item.ref.error else self._source.units(item)
            for unit in units:
                for batch in self._source.read(unit):
                    _raise_first(self.ref, batch.rows.rejects())
                    yield batch
        except RejectedError as error:
            raise _unreadable(self.ref.uri, error.error, error.message) from error

    def _of_row(
        self, row: Mapping[str, Any], where: str, root: str, is_folder: Callable[[str], bool]
    ) -> InputRef:
        def text(name: str) -> str:
            return (row.get(name) or b"").decode("utf-8", "replace").strip()

        entry = text(self.path)
        if not entry:
            raise InputError(f"{where}: the {self.path} is empty.")
        key, uri = key_of_entry(entry, root, where, is_folder)
        values = ((feature.name, row.get(feature.name)) for feature in self.features)
        attached = encode_example(
            {
                f"listing/{name}": value
                for name, value in values
                if value is not None and value != []
            }
        )
        ref = InputRef(key, uri, split=text("split"), group=text("group"), attached=attached)
        separator = self.options.separator
        if not separator:
            return ref._replace(label=make_key(text("label")) or None)
        cell = row.get("label") or b""
        if isinstance(cell, bytes):
            parts = cell.decode("utf-8", "replace").split(separator)
        else:  # the elements of a list are labels
            parts = [element.decode("utf-8", "replace") for element in cell]
            for part in parts:
                if separator in part:  # catalogs have joined labels
                    raise InputError(
                        f"{where}: the label {part!r} of a list holds the separator {separator!r}: "
                        "set --label_separator to a text that no label holds."
                    )
        classes = sort_labels({make_key(part.strip()) for part in parts})
        label = separator.join(classes) or None
        if label is None:
            classes = ()
        return ref._replace(label=label, classes=classes)


def _read_columns(path: str, options: ListingOptions) -> Listing:
    """Return a listing.

    Raises:
        InputError: It cannot be read, or its columns are invalid.
    """
    ref = find_sizes(InputRef(path.rpartition("/")[2], path), "", follow_links=True)
    kind, dialect, names = "csv", options.dialect, tuple[str, ...]()
    problem = None
    delimiters = _DELIMITERS if dialect.delimiter == "," else (dialect.delimiter_text,)
    for delimiter in delimiters:
        other = replace(options.dialect, delimiter=delimiter)
        result, head = read_start(ref, other, _HEAD_BYTES)
        if result.error in _KINDS:
            kind = result.error
            break
        if head is None:
            problem = problem or result
            continue
        is_named = dialect.columns or dialect.header_mode == "none"
        header = head.columns if is_named else tuple(map(str.strip, head.header))
        has_path = not {*_PATHS}.isdisjoint(header)
        if has_path or not names:
            dialect, names = other, header
        if has_path:
            break
    if problem is not None and len(names) == 1 and {*_PATHS}.isdisjoint(names):
        raise _explain_head(problem, options.dialect)
    for name, count in Counter(filter(None, names)).items():
        if count > 1:
            listed = format_names(names)
            raise InputError(
                f"{path} has the column {name!r} twice, of {listed}: give each column a different "
                "name."
            )
    header, names = names, make_unique(names)
    dialect = replace(dialect, columns=names, header=dialect.header_mode)
    has_features = bool({*names}.difference(_PATHS, _ROLES))
    size = _SAMPLE_BYTES if has_features or kind != "csv" else _HEAD_BYTES
    sample = _KINDS[kind][0](ref, dialect, options.rules, size)
    if not names and sample.ref.error not in ("", "empty"):
        raise _unreadable(path, sample.ref.error, sample.ref.message)
    names = names or sample.columns
    given = zip(names, header or names, strict=True)
    nameless = tuple(
        name
        for name, header_name in given
        if not header_name or header_name.startswith(PANDAS_INDEX)
    )
    return Listing(ref, kind, dialect, names, sample, options, nameless).check()


def _explain_head(ref: InputRef, dialect: Dialect) -> InputError:
    """Return why a listing whose head was rejected cannot be read.

    Most rows may have more cells than the header; the head then looks like notes above another one.

    Raises:
        InputError: They have, and the header names a column of paths.
    """
    with contextlib.suppress(RejectedError):
        head = parse_head(ref.uri, dialect.for_name(ref.key), _HEAD_BYTES)
        ragged = [reject for reject in head.cells.rejects if reject.error == "ragged"]
        names = {name.strip() for name in head.header}
        if len(ragged) > len(head.cells.offsets) and not names.isdisjoint(_PATHS):
            _raise_first(ref, ragged)
    return _unreadable(ref.uri, ref.error, ref.message)


def _raise_first(ref: InputRef, rejects: Sequence[RowReject]) -> None:
    """Raise an error for the first of rejected rows: a listing is used with all rows or not.

    Raises:
        InputError: There is one.
    """
    for reject in rejects[:1]:
        if reject.error == "encoding":
            raise unreadable_text(source=ref.uri, problem=_NOT_UTF_8)
        column = f", column {reject.column}" if reject.column else ""
        line = f"{reject.line}{column}"
        raise InputError(
            f"{ref.uri}, line {line}: {reject.message}; a listing is a CSV with a header, JSON "
            "Lines or Parquet, with a column uri, path or file_name, perhaps label, split, group, "
            "and others that become features; for a table use `shardmill rows`."
        )


def _unreadable(source: str, error: str, message: str) -> InputError:
    """Return the error of a listing that is rejected for a reason of ``refs.REASONS``."""
    if error == "encoding":
        return unreadable_text(source=source, problem=_NOT_UTF_8)
    return InputError(f"{source} cannot be read as a listing: {message}.")
