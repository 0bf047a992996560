"""JsonLinesSource: the objects of JSON Lines files as typed columns.

Arrow parses lines together; those that it cannot parse are found one by one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from shardmill.schemas.errors import format_value
from shardmill.schemas.refs import InputRef, RejectedError
from shardmill.schemas.schema_pbtxt.columns import INT64_MAX, INT64_MIN, Column
from shardmill.transforms.sources.csv.arrow_values import (
    TypedSample,
    flatten_columns,
    flatten_structs,
    profile_rows,
    profiles_of,
)
from shardmill.transforms.sources.csv.cells import (
    Cells,
    ValidRows,
    decode_rows,
    join_rows,
    list_bad_rows,
    to_array,
)
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.row_bounds import Rows
from shardmill.transforms.sources.csv.row_ranges import TO_END, RowRange, read_first
from shardmill.transforms.sources.csv.sample import Sample, check_spellings, open_start
from shardmill.transforms.sources.csv.source import COMPRESSION_RATIO, CsvSource
from shardmill.transforms.sources.csv.text import CsvText, open_text
from shardmill.transforms.sources.csv.text_parser import EXACT_FLOAT64, CellRules
from shardmill.transforms.tables.table_source import RowReject, TableInput

_ARROW_WORDS = re.compile(r"^JSON parse error: | in row \d+$")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_OPEN, _CLOSE = b"{}"
_FEW = 64  # lines that are looked at one by one

_MAX_DEPTH = 100
_TOO_DEEP = f"it is nested more than {_MAX_DEPTH} levels deep"
_ROUNDED = (
    "{} is rounded by float32: write such values as texts, or make the column FLOAT in a --schema "
    "if it may be rounded"
)
_SHORTENED = (
    "{} would lose digits in a column with decimals: write such values as texts in the file"
)
_WHOLE_TABLE = (
    "it is one object with a whole table, as pandas writes it, instead of one object a row: write "
    "it with to_json(path, orient='records', lines=True)"
)
_SAMPLE_BYTES = 4 << 20
_HEAD_BYTES = 64 << 10
_TYPES = {"int64": pa.int64(), "float32": pa.float64(), "bytes": pa.string()}


class Lines(NamedTuple):
    """Lines as rows.

    Attributes:
        tables: The rows, in order; several if some lines between them cannot be parsed.
        offsets: int64[rows], offset of each row in the text.
        lines: int64[rows], number of each row's line.
        rejects: The lines that cannot be parsed, in order.
        texts: All lines.
        numbers: int64[rows], number of each row in ``texts``.
    """

    tables: list[pa.Table]
    offsets: np.ndarray
    lines: np.ndarray
    rejects: list[RowReject]
    texts: ValidRows
    numbers: np.ndarray


def parse_lines(
    batches: Sequence[Rows], text: CsvText, schema: pa.Schema | None, *, others: bool
) -> Lines:
    """Parse consecutive lines.

    Args:
        batches: The lines.
        text: The text that contains them.
        schema: Types of the keys; None to infer them.
        others: Whether objects may have other keys, which are ignored.
    """
    valid, rejects = decode_rows(join_rows(batches), text)
    rejects += list_bad_rows(batches)
    deep = _find_deep(valid)
    rejects += [
        RowReject(int(valid.offsets[row]), int(valid.lines[row]), "json", _TOO_DEEP) for row in deep
    ]
    if deep:
        valid = valid.replaced(dict.fromkeys(deep, b""))
    if schema is None:
        unexpected = "infer"
    elif others:
        unexpected = "ignore"
    else:
        unexpected = "error"
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    tables, kept = [], [np.zeros(0, np.int64)]
    for first, after, parsed in _parse(valid, 0, len(valid.starts), options):
        if isinstance(parsed, pa.Table):
            tables.append(parsed)
            kept.append(np.arange(first, after))
        else:
            offset, line = int(valid.offsets[first]), int(valid.lines[first])
            rejects.append(parsed._replace(offset=offset, line=line))
    rows = np.concatenate(kept)
    return Lines(tables, valid.offsets[rows], valid.lines[rows], sorted(rejects), valid, rows)


def _parse(
    valid: ValidRows, first: int, after: int, options: pj.ParseOptions
) -> Iterator[tuple[int, int, pa.Table | RowReject]]:
    """Yield spans of lines with their rows, and faulty lines with their rejects.

    Of lines that Arrow cannot parse together, those that it surely rejects are found if there are
    few; else halves are parsed again, so that Arrow alone decides about all others.
    """
    if first == after:
        return
    parsed = _read(valid, first, after, options)
    if isinstance(parsed, pa.Table):
        yield first, after, parsed
        return
    few = range(first, after) if after - first <= _FEW else range(0)
    checked = ((row, _find_fault(valid.row(row), options)) for row in few)
    faults = {row: fault for row, fault in checked if fault}
    start = first
    for row, fault in faults.items():
        yield from _parse(valid, start, row, options)
        yield row, row + 1, fault
        start = row + 1
    if start > first:
        yield from _parse(valid, start, after, options)
    elif after - first > 1:  # the types of few lines most likely differ
        bounds = range(first, after + 1) if few else (first, (first + after) // 2, after)
        for begin, end in itertools.pairwise(bounds):
            yield from _parse(valid, begin, end, options)
    elif line := valid.row(first).strip():
        yield first, after, _fault("json", f"{parsed}: {format_value(line)}")


def _read(valid: ValidRows, first: int, after: int, options: pj.ParseOptions) -> pa.Table | str:
    """Return the rows of lines, or why Arrow cannot parse them."""
    if not _is_whole(valid, first, after):
        return "it is not one JSON object"
    if options.explicit_schema is None and after - first == 1:
        with contextlib.suppress(ValueError, OverflowError, pa.ArrowException):
            return pa.Table.from_pylist([json.loads(valid.row(first))])  # 20 times as fast
    end = int(valid.starts[after]) if after < len(valid.starts) else len(valid.data)
    data = memoryview(valid.data)[int(valid.starts[first]) : end]
    reading = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        table = pj.read_json(pa.BufferReader(data), reading, options)
    except pa.ArrowInvalid as error:
        return _ARROW_WORDS.sub("", str(error))
    if len(table) != after - first:
        return "it is more than one JSON object"
    return table


def _find_deep(valid: ValidRows) -> list[int]:
    """Return the lines that are nested so deeply that a parser could run out of stack."""
    if not len(valid.starts):
        return []
    view = np.frombuffer(valid.data, np.uint8)
    opened = np.add.reduceat((view | 0x20) == ord("{"), valid.starts, dtype=np.int64)  # [ too
    suspects = np.flatnonzero(opened > _MAX_DEPTH).tolist()
    return [row for row in suspects if _depth(valid.row(row)) > _MAX_DEPTH]


def _depth(line: bytes) -> int:
    text = np.frombuffer(_STRING.sub(b"", line), np.uint8) | 0x20
    steps = (text == ord("{")).astype(np.int64) - (text == ord("}"))
    return int(steps.cumsum().max(initial=0))


def _is_whole(valid: ValidRows, first: int, after: int) -> bool:
    """Return whether each line begins and ends with a brace.

    Then no object reaches into the next line: between its braces there would be a comma. As many
    objects as lines are then one in each.
    """
    view = np.frombuffer(valid.data, np.uint8)
    starts = valid.starts[first : after + 1]
    ends = starts[1:] if len(starts) > after - first else np.append(starts[1:], len(view))
    begins = view[starts[: after - first]] == _OPEN
    unusual = np.flatnonzero(~begins | (view[np.maximum(ends - 2, 0)] != _CLOSE))
    lines = (valid.row(first + row).strip() for row in unusual.tolist())
    return all(line.startswith(b"{") and line.endswith(b"}") for line in lines)


def _fault(error: str, message: str, column: str = "") -> RowReject:
    """Return the reject of a line whose place is not known yet."""
    return RowReject(0, 0, error, message, column=column)


def _find_fault(line: bytes, options: pj.ParseOptions) -> RowReject | None:
    """Return why Arrow cannot parse a line, or None if that is not known."""
    line = line.strip()
    if not line:
        return None
    try:
        values = json.loads(line.decode())
    except json.JSONDecodeError as error:
        return _fault("json", f"{error}: {format_value(line)}")
    except ValueError:  # an integer of thousands of digits
        return None
    if not isinstance(values, dict):
        return _fault("json", f"it is not a JSON object: {format_value(line)}")
    if options.explicit_schema is None:
        return None
    for field in options.explicit_schema:
        value = values.get(field.name)
        if not _fits(value, field.type):
            message = (
                f"{format_value(json.dumps(value))} is not {field.type}, the type in the first rows"
            )
            return _fault("cast", message, field.name)
    new = [key for key in values if key not in options.explicit_schema.names]
    if new and options.unexpected_field_behavior == "error":
        return _fault(
            "json",
            f"it has the key {format_value(new[0])}, which the first rows do not have: read more "
            "of them with --sample_bytes, or name it in a --schema (of a listing, in the first "
            "row)",
        )
    return None


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Return whether a value may be of a type."""
    if value is None:
        return True
    if isinstance(value, bool):
        return bool(pa.types.is_boolean(kind))
    if isinstance(value, int):
        inside = INT64_MIN <= value <= INT64_MAX
        return bool(pa.types.is_floating(kind) or (pa.types.is_integer(kind) and inside))
    if isinstance(value, float):
        return bool(pa.types.is_floating(kind))
    if isinstance(value, list):
        return pa.types.is_list(kind) and all(_fits(element, kind.value_type) for element in value)
    if isinstance(value, dict):
        return pa.types.is_struct(kind) and all(_fits(value.get(f.name), f.type) for f in kind)
    return bool(pa.types.is_string(kind))


def find_rounded(
    lines: Lines, values: pa.Array, path: Sequence[str], to: type[np.floating[Any]] = np.float32
) -> dict[int, int]:
    """Return the integers that are rounded in a column of doubles, by the number of their row.

    JSON does not distinguish integers from decimals, and Arrow reads a column with both as doubles.

    Args:
        lines: The rows.
        values: Values of the column, or lists of them, one entry per row.
        path: The keys that lead to the column.
        to: Type that values get.
    """
    rows = np.arange(len(values))
    if pa.types.is_list(values.type):
        rows, values = pc.list_parent_indices(values).to_numpy(), pc.list_flatten(values)
    doubles = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore", invalid="ignore"):
        is_rounded = (doubles.astype(to) != doubles) | (np.abs(doubles) >= EXACT_FLOAT64)
    is_whole = np.trunc(doubles) == doubles
    rounded: dict[int, int] = {}
    for row in np.unique(rows[is_rounded & is_whole]).tolist():
        value = json.loads(lines.texts.row(int(lines.numbers[row])))
        for key in path:
            value = value[key]
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            if type(number) is int and _differs(number, to):
                rounded.setdefault(row, number)
    return rounded


def _differs(number: int, to: type[np.floating[Any]]) -> bool:
    with np.errstate(over="ignore"), contextlib.suppress(OverflowError):
        return int(to(number)) != number
    return False  # it is out of range, which is another reason


def merge_types(tables: Iterable[pa.Table]) -> pa.Schema:
    """Return the types of the keys of all rows: the first of each, apart from int64 and double.

    Texts that look like times are texts.
    """
    fields: dict[str, pa.Field] = {}
    for field in (column for table in tables for column in table.schema):
        plain = pa.field(field.name, _plain(field.type))
        earlier = fields.setdefault(field.name, plain)
        with contextlib.suppress(pa.ArrowTypeError):  # lines with the second type are rejected
            (fields[field.name],) = pa.unify_schemas(
                [pa.schema([earlier]), pa.schema([plain])], promote_options="permissive"
            )
    return pa.schema(fields.values())


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_timestamp(kind):
        return pa.string()
    return kind


def explicit_schema(kinds: Mapping[tuple[str, ...], pa.DataType]) -> pa.Schema:
    """Return the schema of columns by their paths; those without a value are texts."""
    return pa.schema(_nest({path: _filled(kind) for path, kind in kinds.items()}))


def _nest(kinds: Mapping[tuple[str, ...], pa.DataType]) -> list[pa.Field]:
    inner: dict[str, dict[tuple[str, ...], pa.DataType]] = {}
    for (name, *rest), kind in kinds.items():
        inner.setdefault(name, {})[tuple(rest)] = kind
    fields = []
    for name, nested in inner.items():
        kind = nested[()] if () in nested else pa.struct(_nest(nested))
        fields.append(pa.field(name, kind))
    return fields


def _filled(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_filled(kind.value_type))
    if pa.types.is_null(kind):
        return pa.string()
    return kind


@dataclass(frozen=True)
class JsonSample(TypedSample):
    """The sample of JSON Lines files.

    Attributes:
        seekable: Of a sample of one: whether the file can be split into ranges.
        ranges: Of a sample of one: those of ``csv.row_ranges.Head``.
    """

    seekable: bool = False
    ranges: tuple[RowRange, ...] = ()

    keep_texts: ClassVar = "write such values as texts in the file to keep all digits"

    @staticmethod
    def merge_profiles(first: Any, second: Any) -> Any:
        """Return the profile of a key of two files; int64 and double become double.

        Raises:
            RejectedError: They have different types.
        """
        kinds = [pa.schema([("", profile.kind)]) for profile in (first, second)]
        with contextlib.suppress(pa.ArrowTypeError):
            kind = pa.unify_schemas(kinds, promote_options="permissive").field(0).type
            first, second = first._replace(kind=kind), second._replace(kind=kind)
        return TypedSample.merge_profiles(first, second)

    def exact(self, columns: Sequence[Column]) -> tuple[str, ...]:
        """Return the columns in which rows after the sample are not rounded, as of CSV files."""
        return Sample.exact(self, columns)


def sample_jsonl(
    ref: InputRef, dialect: Dialect, rules: CellRules, sample_bytes: int, most: int = _SAMPLE_BYTES
) -> JsonSample:
    """Sample the first lines of a file."""
    del rules
    size = min(sample_bytes, most)
    ref, sample = open_start(ref, lambda: _read_start(ref, dialect, size))
    return sample or JsonSample((ref,))


def _read_start(ref: InputRef, dialect: Dialect, sample_bytes: int) -> JsonSample:
    with open_text(ref.uri, replace(dialect, quote="")) as text:
        text.check("jsonl")
        first, ranges = read_first(text, RowRange(text.begin, TO_END, 1), sample_bytes)
        tables = parse_lines(first, text, None, others=True).tables
        if sum(map(len, tables)) == 1 and _holds_table(tables[0].schema):
            raise RejectedError("read", "not_csv", _WHOLE_TABLE)
        profiles = profiles_of(merge_types(tables))
        schema = explicit_schema({profile.path: profile.kind for profile in profiles.values()})
        parsed = parse_lines(first, text, schema, others=True)
        table = pa.concat_tables([schema.empty_table(), *parsed.tables])
        profiles = profile_rows(profiles, table)
        for name, values in _doubles(table, profiles).items():
            profile = profiles[name]
            for number in itertools.islice(find_rounded(parsed, values, profile.path).values(), 1):
                rounding = f"{number} becomes {int(np.float32(number))}"
                profiles[name] = profile._replace(rounding=rounding)
        count, seekable = len(parsed.offsets), text.seekable
    span = int(parsed.offsets[-1] - parsed.offsets[0]) * count // max(1, count - 1) if count else 0
    return JsonSample(
        (ref,),
        tuple(profiles),
        profiles,
        {},
        count,
        span,
        seekable and ref.size <= sample_bytes,
        seekable=seekable,
        ranges=ranges,
    )


def _holds_table(schema: pa.Schema) -> bool:
    """Return whether an object is a whole table, as pandas writes it by columns or by rows."""
    if {*schema.names} in ({"columns", "index", "data"}, {"schema", "data"}):
        return True
    if not all(pa.types.is_struct(kind) for kind in schema.types):
        return False
    inner = [[field.name for field in kind] for kind in schema.types]
    is_numbered = all(name.isdecimal() for name in (*schema.names,))
    is_numbered = is_numbered or all(name.isdecimal() for name in inner[0])
    return is_numbered and len(inner[0]) > 0 and all(names == inner[0] for names in inner)


def _doubles(table: pa.Table, names: Collection[str]) -> dict[str, pa.Array]:
    """Return the columns of doubles, or of lists of them, among some columns by their names."""
    columns = flatten_structs(table)
    return {
        field.name: to_array(columns.column(number))
        for number, field in enumerate(columns.schema)
        if field.name in names and _value_type(field.type) == pa.float64()
    }


def _value_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return kind.value_type
    return kind


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
        try:
            check_spellings(sample.base, self.table.selected_names)
        except RejectedError as rejection:
            return TableInput(sample.ref.rejected(rejection.error, rejection.message))
        ratio = 1 if sample.seekable else COMPRESSION_RATIO
        # The types decide the rows too, not only the text.
        rounded = (name for name, profile in self.profiles.items() if profile.rounding)
        detail = (str(self._explicit), *rounded), tuple(map(tuple, sample.ranges))
        return TableInput(sample.ref, ref.size * ratio, detail)

    @cached_property
    def _explicit(self) -> pa.Schema:
        """Types of the keys: all of the first lines, or those of the columns only."""
        kinds = {name: (profile.path, profile.kind) for name, profile in self.profiles.items()}
        for column in self.table.columns:
            path, kind = kinds.get(column.name, ((column.name,), None))
            if kind is None or (pa.types.is_integer(kind) and column.kind == "float32"):
                kind = _TYPES[column.kind]
                kind = pa.list_(kind) if column.several else kind
            kinds[column.name] = path, kind
        if not self.base:
            selected = self.table.selected_names
            kinds = {name: typed_path for name, typed_path in kinds.items() if name in selected}
        return explicit_schema(dict(kinds.values()))

    @property
    def exact_texts(self) -> tuple[str, ...]:
        """None: lines are checked before they become cells."""
        return ()

    def make_cells(self, batches: Sequence[Rows], columns: Sequence[str], text: CsvText) -> Cells:
        """Parse lines into cells."""
        del columns
        parsed = parse_lines(batches, text, self._explicit, others=not self.base)
        table = pa.concat_tables([self._explicit.empty_table(), *parsed.tables])
        rejects, kept = parsed.rejects, np.ones(len(table), np.bool_)
        texts = {column.name for column in self.table.columns if column.kind == "bytes"}
        for name, values in _doubles(table, {*self.exact, *texts}).items():
            to = np.float64 if name in texts else np.float32
            template = _SHORTENED if name in texts else _ROUNDED
            rounded = find_rounded(parsed, values, self.profiles[name].path, to)
            for row, number in rounded.items():
                if kept[row]:
                    offset, line = int(parsed.offsets[row]), int(parsed.lines[row])
                    message = template.format(number)
                    rejects.append(RowReject(offset, line, "range", message, column=name))
                    kept[row] = False
        if not kept.all():
            table = table.filter(pa.array(kept))
        cells = flatten_columns(table, self.table.selected_names)
        offsets, lines = parsed.offsets[kept], parsed.lines[kept]
        return Cells(cells, offsets, lines, sorted(rejects), text.hash.hexdigest())
