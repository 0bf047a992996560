"""Columns of a table, and their description in schema.pbtxt.

TensorFlow Transform and TensorFlow Data Validation read the same file. Each property of a column
is written as follows:

===================== ======================================================================
property              in the feature
===================== ======================================================================
int64, float32, bytes ``type: INT``, ``FLOAT``, ``BYTES``
required              ``presence { min_fraction: 1 min_count: 1 }`` ``shape { dim { size: 1 } }``
                      (FixedLenFeature)
optional              ``presence { min_fraction: 0 }`` ``value_count { min: 1 max: 1 }``: the record
                      of a row without the cell does not have the feature (VarLenFeature)
with a default        like required, and ``annotation { tag: "default=TEXT" }``
multi-valued          ``value_count { min: 0 }`` ``annotation { tag: "separator=|" }``
date and time         ``type: INT`` ``annotation { tag: "datetime=%d.%m.%Y" }``, or ``date=``:
                      seconds or days since 1970; without a format ISO 8601
zero padded           ``annotation { tag: "zero_padded" }``: "007" is accepted as 7
boolean               ``type: INT`` ``bool_domain { true_value: "yes" false_value: "no" }``
bounded, inclusive    ``int_domain { min: 0 max: 9 }``, ``float_domain { min: 0 max: 1 }``
from a list of texts  ``string_domain { value: "a" value: "b" }``, or ``domain: "NAME"`` of one at
                      the schema's top level
===================== ======================================================================

Schemas of other programs are accepted. Presence without ``min_fraction: 1`` is optional; a shape
without dimensions is one value; ``bool_domain`` on BYTES is a string_domain of its two texts, and
without texts on INT it is 0 to 1; a string_domain with ``min_domain_mass`` below 1 is not enforced.
Features that TensorFlow Transform omits because of their lifecycle stage (deprecated, planned …)
are omitted. Environments, comparators, weights and comments are not read.
"""

from __future__ import annotations

import ctypes
import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, get_args

from shardmill.schemas.errors import FormatError, UsageError
from shardmill.schemas.schema_pbtxt import schema_text
from shardmill.schemas.schema_pbtxt.schema_text import Kind

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
SPACES = " \t\n\v\f\r"  # allowed around a number
TimeKind = Literal["", "datetime", "date"]
DEFAULT_TAG, SEPARATOR_TAG, ZERO_PADDED_TAG = "default", "separator", "zero_padded"
_UNSUPPORTED = ("sparse_feature", "tensor_representation_group")
_DOMAIN_KINDS: dict[str, Kind] = {
    "int_domain": "int64",
    "float_domain": "float32",
    "string_domain": "bytes",
}
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


@dataclass(frozen=True)
class Column:
    """Type of a column's cells, and how they become the values of a feature.

    Attributes:
        name: Name of the column and of the feature.
        kind: ``int64``, ``float32`` or ``bytes``.
        required: Whether a row with a missing cell is rejected; if not, its record does not have
            the feature. Always true with a default, since then every record has the feature.
        default: Text that replaces a missing cell; ``typed_cells.check_default`` checks it.
        separator: Text between the values of a multi-valued cell, where an empty or missing cell
            holds no values; empty: each cell is one value.
        booleans: For int64: the texts for 1 and 0; the case of ASCII letters is ignored.
        low: Smallest value, inclusive; rounded to float32 for that kind.
        high: Largest value, inclusive; rounded to float32 for that kind.
        values: For bytes: the allowed texts.
        zero_padded: For int64: whether leading zeros are allowed.
        several: Whether a cell is a list of values, in files whose columns have types.
        time: For int64: ``datetime`` if cells are dates and times that become seconds since 1970
            in UTC, ``date`` if they become days.
        time_format: Format of these cells as of ``datetime.strptime``; empty: ISO 8601.

    Raises:
        UsageError: The attributes contradict each other.
    """

    name: str
    kind: Kind
    required: bool = True
    default: str | None = None
    separator: str = ""
    booleans: tuple[str, str] | None = None
    low: float | int | None = None
    high: float | int | None = None
    values: tuple[str, ...] | None = None
    zero_padded: bool = False
    several: bool = False
    time: TimeKind = ""
    time_format: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError(
                "A column has no name: give it one, in the files or in the schema, or name the "
                "other columns with --select."
            )
        if self.kind not in get_args(Kind):
            raise self._error(f"is of kind {self.kind!r}: use {', '.join(get_args(Kind))}")
        object.__setattr__(self, "low", self._bound("low", self.low))
        object.__setattr__(self, "high", self._bound("high", self.high))
        if self.low is not None and self.high is not None and self.low > self.high:
            raise self._error(f"has the lower bound {self.low} above its upper bound {self.high}")
        if self.values is not None and (self.kind != "bytes" or not self.values):
            raise self._error("has a list of texts: that needs type BYTES and at least one text")
        if self.zero_padded and (self.kind != "int64" or self.booleans):
            raise self._error(f'is tagged "{ZERO_PADDED_TAG}": that needs type INT')
        if self.time and (self.kind != "int64" or self.booleans or self.zero_padded):
            raise self._error(f"is tagged {self.time!r}: that needs type INT without other texts")
        if not _is_time_format(self.time_format):
            raise self._error(
                f"has the format {self.time_format!r} of times: use the codes of Python's strptime"
            )
        self._check_booleans()
        if self.default is not None:
            object.__setattr__(self, "required", True)

    def _error(self, problem: str) -> UsageError:
        return invalid_column(name=self.name, problem=problem)

    def _bound(self, word: str, bound: float | None) -> float | int | None:
        """Return a bound as a value of the column's kind."""
        if bound is None:
            return None
        if self.kind == "bytes" or self.booleans:
            raise self._error(f"has a bound ({word}={bound}): bounds are for INT and FLOAT")
        if self.kind == "int64":
            if isinstance(bound, int) and INT64_MIN <= bound <= INT64_MAX:
                return bound
            raise self._error(f"has the bound {word}={bound}, which is not an int64")
        rounded = ctypes.c_float(bound).value
        if not math.isfinite(rounded):
            raise self._error(f"has the bound {word}={bound}, which is not a finite float32")
        return rounded

    def _check_booleans(self) -> None:
        if self.booleans is None:
            return
        if self.kind != "int64":
            raise self._error("has texts for true and false: that needs type INT")
        yes, no = (fold_boolean(text) for text in self.booleans)
        if not yes or not no or yes == no:
            raise self._error(
                f"has {self.booleans[0]!r} for true and {self.booleans[1]!r} for false: "
                "give two texts that differ in more than case and spaces"
            )


def _is_time_format(form: str) -> bool:
    some = datetime(2000, 1, 2, tzinfo=timezone.utc)
    try:
        datetime.strptime(some.strftime(form), form)  # noqa: DTZ007 - the result is not used
    except ValueError:
        return False
    return True


def fold_boolean(text: str) -> str:
    """Return a text in the form in which booleans are compared: stripped, lower case."""
    return text.strip(SPACES).translate(_LOWER)


def parse_schema(text: str, source: str) -> tuple[Column, ...]:
    """Return the columns that a schema.pbtxt describes, in its order.

    Args:
        text: The schema in protobuf's text format.
        source: Name of the file in messages.

    Raises:
        UsageError: The text is not a schema, or describes a feature that a column cannot be.
    """
    try:
        schema = schema_text.parse_schema_text(text, source)
    except FormatError as error:
        raise UsageError(f"{error}.") from error
    unsupported = [field for field in _UNSUPPORTED if getattr(schema, field)]
    if unsupported:
        raise UsageError(
            f"{source} has a {unsupported[0]}, which rows cannot be written as: remove it and "
            "describe each column as a feature."
        )
    active = filter(schema_text.is_active, schema.feature)
    columns = tuple(_parse_column(feature, source) for feature in active)
    if not columns:
        raise UsageError(
            f'{source} names no features: each column needs one, as in \'feature {{ name: "age" '
            "type: INT }'."
        )
    return columns


def format_schema(columns: Sequence[Column]) -> str:
    """Return the schema.pbtxt of columns, in their order; ``parse_schema`` reads it back."""
    return schema_text.format_schema_text(map(_to_feature, columns))


def _to_feature(column: Column) -> dict[str, Any]:
    tags = [ZERO_PADDED_TAG] * column.zero_padded
    if column.time:
        tags.append(f"{column.time}={column.time_format}".removesuffix("="))
    if column.separator:
        tags.append(f"{SEPARATOR_TAG}={column.separator}")
    if column.default is not None:
        tags.append(f"{DEFAULT_TAG}={column.default}")
    several = column.several or bool(column.separator)
    fields = schema_text.feature_fields(
        column.name, column.kind, tags, required=column.required, several=several
    )
    return fields | _to_domain(column)


def _to_domain(column: Column) -> dict[str, dict[str, Any]]:
    if column.booleans:
        yes, no = column.booleans
        return {"bool_domain": {"true_value": yes, "false_value": no}}
    if column.values is not None:
        return {"string_domain": {"value": column.values}}
    bounds = {"min": column.low, "max": column.high}
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    form = "int_domain" if column.kind == "int64" else "float_domain"
    if given:
        return {form: given}
    return {}


def _parse_column(feature: Any, source: str) -> Column:
    kind = schema_text.kind_of(feature)
    try:
        if kind is None:
            raise ValueError(
                f"has the type {schema_text.type_of(feature)}: give it 'type: INT', 'type: FLOAT' "
                "or 'type: BYTES'"
            )
        tags = schema_text.tags_of(feature)
        separator = tags.get(SEPARATOR_TAG, "")
        if SEPARATOR_TAG in tags and not separator:
            raise ValueError('has an empty separator: write annotation { tag: "separator=|" }')
        several = _check_count(feature, separator)
        time: TimeKind = next((kind for kind in get_args(TimeKind)[1:] if kind in tags), "")
        restrictions = _restrictions(feature, kind)
    except ValueError as error:
        raise _schema_feature_invalid(source=source, name=feature.name, error=error) from error
    try:
        return Column(
            name=feature.name,
            kind=kind,
            required=schema_text.is_required(feature),
            default=tags.get(DEFAULT_TAG),
            separator=separator,
            zero_padded=ZERO_PADDED_TAG in tags,
            several=several,
            time=time,
            time_format=tags.get(time, ""),
            **restrictions,
        )
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def _check_count(feature: Any, separator: str) -> bool:
    """Return whether a cell is a list; raise ValueError if it cannot hold as many values."""
    if feature.HasField("value_counts"):
        raise ValueError("has value_counts, lists in lists: use value_count { min: 0 }")
    shape = schema_text.shape_of(feature)
    if shape is not None:
        if shape not in ((), (1,)):
            raise ValueError(
                f"has the shape {list(shape)}: write shape {{ dim {{ size: 1 }} }} for one value, "
                "or value_count { min: 0 } for several, which need annotation "
                '{ tag: "separator=|" } if they are cells of a CSV file'
            )
        if separator:
            raise ValueError(
                "has both a shape and a separator: write value_count { min: 0 } for several "
                "values in a cell, or remove the separator"
            )
    count = feature.value_count
    many = feature.HasField("value_count") and (count.max != 1 or count.min > 1)
    return many and not separator


def check_texts(columns: Sequence[Column], source: str) -> None:
    """Check that columns can be read from texts, in which a list needs a separator.

    Raises:
        UsageError: One is a list without a separator.
    """
    lists = [column.name for column in columns if column.several]
    if lists:
        problem = (
            "may have several values: write value_count { min: 1 max: 1 }, or name what "
            'is between them with annotation { tag: "separator=|" }'
        )
        raise _schema_feature_invalid(source=source, name=lists[0], error=problem)


def invalid_column(name: object, problem: object) -> UsageError:
    """Return the error for a column that cannot become a feature."""
    return UsageError(f"The column {name!r} {problem}.")


def _schema_feature_invalid(source: object, name: object, error: object) -> UsageError:
    return UsageError(f"{source}: the feature {name!r} {error}.")


def _restrictions(feature: Any, kind: Kind) -> dict[str, Any]:
    """Return the arguments of Column that a feature's domain decides."""
    form = feature.WhichOneof("domain_info")
    if form == "domain":
        raise ValueError(
            f"refers to the domain {feature.domain!r}, which the schema does not have: add it, or "
            "remove the reference"
        )
    if form == "struct_domain":
        raise ValueError("has a struct_domain: describe each column as a separate feature")
    if form == "bool_domain":
        texts = feature.bool_domain.true_value, feature.bool_domain.false_value
        return _boolean_restrictions(texts, kind)
    expected = _DOMAIN_KINDS.get(form)
    if expected is None:  # semantic domains (url_domain …) do not restrict cells
        return {}
    if expected != kind:
        raise ValueError(
            f"is {schema_text.TYPES[kind]} with {form}: make it {schema_text.TYPES[expected]}, or "
            f"remove {form}"
        )
    if form == "string_domain":
        return {"values": schema_text.texts_of(feature)}
    names = {"min": "low", "max": "high"}
    bounds = schema_text.bounds_of(feature).items()
    return {names[name]: bound for name, bound in bounds if math.isfinite(bound)}


def _boolean_restrictions(texts: tuple[str, str], kind: Kind) -> dict[str, Any]:
    if kind == "bytes":
        if all(texts):
            return {"values": texts}
        return {}
    if kind == "int64":
        if any(texts):
            return {"booleans": texts}
        return {"low": 0, "high": 1}
    raise ValueError("is FLOAT with bool_domain: make it INT, or remove bool_domain")
