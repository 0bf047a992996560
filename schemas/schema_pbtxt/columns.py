"""Columns of a table, and the schema.pbtxt that says what they are.

The text is a ``tensorflow_metadata.proto.v0.Schema``, which TensorFlow Transform and TensorFlow
Data Validation read too. How a column stands in it:

===================== ======================================================================
a column is           its feature says
===================== ======================================================================
int64, float32, bytes ``type: INT``, ``FLOAT``, ``BYTES``
required              ``presence { min_fraction: 1 min_count: 1 }`` ``shape { dim { size: 1 } }``
                      (FixedLenFeature)
optional              ``presence { min_fraction: 0 }`` ``value_count { min: 1 max: 1 }``: a missing
                      cell leaves the feature away (VarLenFeature)
with a default        as required, and ``annotation { tag: "default=TEXT" }``
multi-valued          ``value_count { min: 0 }`` ``annotation { tag: "separator=|" }``
zero padded           ``annotation { tag: "zero_padded" }``: "007" may be read as 7
boolean               ``type: INT`` ``bool_domain { true_value: "yes" false_value: "no" }``
bounded, inclusive    ``int_domain { min: 0 max: 9 }``, ``float_domain { min: 0 max: 1 }``
one of some texts     ``string_domain { value: "a" value: "b" }``, or ``domain: "NAME"`` of one at
                      the schema's top level
===================== ======================================================================

What others wrote is read liberally. Presence without ``min_fraction: 1`` is optional; a shape
without dimensions is one value; ``bool_domain`` on BYTES is a string_domain of its two texts, and
without texts on INT it is 0 to 1; a string_domain with ``min_domain_mass`` below 1 is not enforced.
Features that TensorFlow Transform leaves out for their stage (deprecated, planned …) are left out.
Environments, comparators, weights and comments are not read.
"""

from __future__ import annotations

import math
import re
import string
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from shardmill.schemas.errors import UsageError

Kind = Literal["int64", "float32", "bytes"]

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
SPACES = " \t\n\v\f\r"  # what may stand around a number
DEFAULT_TAG, SEPARATOR_TAG, ZERO_PADDED_TAG = "default", "separator", "zero_padded"
_TYPES: dict[Kind, str] = {"int64": "INT", "float32": "FLOAT", "bytes": "BYTES"}
# The stages that TensorFlow Transform leaves out.
_SKIPPED = ("DEPRECATED", "DISABLED", "PLANNED", "ALPHA", "DEBUG_ONLY", "VALIDATION_DERIVED")
_DOMAINS: dict[str, Kind] = {
    "int_domain": "int64",
    "float_domain": "float32",
    "string_domain": "bytes",
}
_INTEGER = re.compile(r"[+-]?0*([0-9]+)", re.ASCII)
_PADDED = re.compile(r"[+-]?0[0-9]+", re.ASCII)
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_SHOWN = 200


@dataclass(frozen=True)
class Column:
    """What the cells of one column are, and what becomes of them.

    Attributes:
        name: Name of the column and of the feature.
        kind: ``int64``, ``float32`` or ``bytes``.
        required: A missing cell makes the row a reject; else the feature is absent from the
            record. Always true with a default, since then every record has the feature.
        default: Text of the cell that stands in for a missing one.
        separator: When not empty, a cell holds several values; an empty or missing one holds none.
        booleans: For int64: the texts that are 1 and 0, upper and lower case (ASCII) alike.
        low: Least value, inclusive; for float32 rounded to one.
        high: Greatest value, inclusive; for float32 rounded to one.
        values: For bytes: the only texts allowed.
        zero_padded: For int64: leading zeros are allowed.

    Raises:
        UsageError: The facts contradict each other.
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

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError("A column of the schema has no name: give each feature a name.")
        if self.kind not in get_args(Kind):
            raise self._error(f"is of kind {self.kind!r}: use {', '.join(get_args(Kind))}")
        object.__setattr__(self, "low", self._bound("low", self.low))
        object.__setattr__(self, "high", self._bound("high", self.high))
        if self.low is not None and self.high is not None and self.low > self.high:
            raise self._error(f"has a least value {self.low} over its greatest {self.high}")
        if self.values is not None and (self.kind != "bytes" or not self.values):
            raise self._error("has a list of texts: that takes type BYTES and at least one text")
        if self.zero_padded and (self.kind != "int64" or self.booleans):
            raise self._error(f'is tagged "{ZERO_PADDED_TAG}": that is for integers, type INT')
        self._check_booleans()
        if self.default is not None:
            object.__setattr__(self, "required", True)
            self._check_default(self.default)

    def _error(self, problem: str) -> UsageError:
        return UsageError(f"The column {self.name!r} {problem}.")

    def _bound(self, word: str, bound: float | None) -> float | int | None:
        """Returns a bound as the column's kind can hold it."""
        if bound is None:
            return None
        if self.kind == "bytes" or self.booleans:
            raise self._error(f"has a bound ({word}={bound}): bounds are for INT and FLOAT")
        if self.kind == "int64":
            if isinstance(bound, int) and INT64_MIN <= bound <= INT64_MAX:
                return bound
            raise self._error(f"has the bound {word}={bound}, which is no int64")
        rounded = _float32(bound)
        if not math.isfinite(rounded):
            raise self._error(f"has the bound {word}={bound}, which is no finite float32")
        return rounded

    def _check_booleans(self) -> None:
        if self.booleans is None:
            return
        if self.kind != "int64":
            raise self._error("has texts for true and false: that takes type INT")
        yes, no = (fold_boolean(text) for text in self.booleans)
        if not yes or not no or yes == no:
            raise self._error(
                f"has {self.booleans[0]!r} for true and {self.booleans[1]!r} for false: "
                "give two texts that differ in more than case and spaces"
            )

    def _check_default(self, default: str) -> None:
        if self.separator and not default:
            return
        for piece in default.split(self.separator) if self.separator else [default]:
            problem = self._misfit(piece)
            if problem:
                raise self._error(
                    f"has the default {default[:_SHOWN]!r}, but that is {problem}: "
                    f'change annotation {{ tag: "{DEFAULT_TAG}=…" }} in the schema'
                )

    def _misfit(self, text: str) -> str:
        """Returns why a text cannot be a value, or nothing; the rules are those of cells."""
        if self.kind == "bytes":
            fits = self.values is None or text in self.values
            return "" if fits else "not in the column's list of texts"
        if self.booleans:
            fits = fold_boolean(text) in map(fold_boolean, self.booleans)
            return "" if fits else "neither its text for true nor its text for false"
        number = self._number(text.strip(SPACES))
        if number is None:
            return f"no {self.kind}"
        if self.low is not None and number < self.low:
            return f"less than {self.low}"
        if self.high is not None and number > self.high:
            return f"more than {self.high}"
        return ""

    def _number(self, text: str) -> float | int | None:
        if self.kind == "int64":
            match = _INTEGER.fullmatch(text)
            if not match or (_PADDED.fullmatch(text) and not self.zero_padded):
                return None
            # Python refuses to read thousands of digits; 19 are enough for an int64.
            number = int(text) if len(match.group(1)) <= 19 else INT64_MAX + 1
            return number if INT64_MIN <= number <= INT64_MAX else None
        rounded = _float32(float(text)) if _DECIMAL.fullmatch(text) else math.nan
        return rounded if math.isfinite(rounded) else None


def fold_boolean(text: str) -> str:
    """Returns what of a text counts when booleans are compared."""
    return text.strip(SPACES).translate(_LOWER)


def _float32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def parse_schema(text: str, source: str) -> tuple[Column, ...]:
    """Returns the columns that a schema.pbtxt names, in its order.

    Args:
        text: The schema in protobuf's text format.
        source: What messages call it: the name of the file.

    Raises:
        UsageError: The text is no schema, or says something that rows cannot follow.
    """
    schema = _parse_text(text, source)
    for field in ("sparse_feature", "tensor_representation_group"):
        if getattr(schema, field):
            raise UsageError(
                f"{source} has a {field}, which rows cannot be written as: remove it and "
                "describe each column as a feature."
            )
    shared = {domain.name: (form, domain) for form in _DOMAINS for domain in getattr(schema, form)}
    columns: dict[str, Column] = {}
    seen: set[str] = set()
    for feature in schema.feature:
        if feature.name in seen:
            raise UsageError(f"{source} has the feature {feature.name!r} twice: remove one.")
        seen.add(feature.name)
        if not feature.deprecated and _word(feature, "lifecycle_stage") not in _SKIPPED:
            columns[feature.name] = _Reader(source, feature, shared).column()
    if not columns:
        raise UsageError(
            f"{source} names no features: each column needs one, as in "
            "'feature { name: \"age\" type: INT }'."
        )
    return tuple(columns.values())


def format_schema(columns: Sequence[Column]) -> str:
    """Returns the schema.pbtxt of columns, in their order; ``parse_schema`` reads it back."""
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    schema = schema_pb2.Schema()
    for column in columns:
        feature = schema.feature.add(
            name=column.name, type=schema_pb2.FeatureType.Value(_TYPES[column.kind])
        )
        _write_presence(feature, column)
        _write_domain(feature, column)
        if column.zero_padded:
            feature.annotation.tag.append(ZERO_PADDED_TAG)
        if column.separator:
            feature.annotation.tag.append(f"{SEPARATOR_TAG}={column.separator}")
        if column.default is not None:
            feature.annotation.tag.append(f"{DEFAULT_TAG}={column.default}")
    return str(text_format.MessageToString(schema, as_utf8=True))


def _write_presence(feature: Any, column: Column) -> None:
    feature.presence.min_fraction = 1.0 if column.required else 0.0
    if column.required:
        feature.presence.min_count = 1
    if column.separator:
        feature.value_count.min = 0
    elif column.required:
        feature.shape.dim.add(size=1)
    else:
        feature.value_count.min = feature.value_count.max = 1


def _write_domain(feature: Any, column: Column) -> None:
    if column.booleans:
        feature.bool_domain.true_value, feature.bool_domain.false_value = column.booleans
    if column.values is not None:
        feature.string_domain.value.extend(column.values)
    domain = feature.int_domain if column.kind == "int64" else feature.float_domain
    if column.low is not None:
        domain.min = column.low
    if column.high is not None:
        domain.max = column.high


def _parse_text(text: str, source: str) -> Any:
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    try:
        return text_format.Parse(text, schema_pb2.Schema())
    except text_format.ParseError as error:
        # The message may repeat the whole line before it says what is wrong.
        problem = " ".join(str(error).split(" : ", 1)[-1].rsplit("': ", 1)[-1].split())[:_SHOWN]
        place = f"line {error.GetLine()}, column {error.GetColumn()}"
        problem = problem.rstrip(".")
    except RecursionError:
        place, problem = "some line", "features are nested too deeply"
    raise UsageError(
        f"{source} is no schema ({place}: {problem}): it must be a tensorflow_metadata Schema in "
        "protobuf text format, such as the schema.pbtxt that a build without --schema writes."
    )


def _word(feature: Any, field: str) -> str:
    values = type(feature).DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
    return str(values[getattr(feature, field)].name)


class _Reader:
    """Reads one feature of a schema."""

    def __init__(self, source: str, feature: Any, shared: dict[str, tuple[str, Any]]) -> None:
        self._source = source
        self._feature = feature
        self._shared = shared

    def column(self) -> Column:
        """Returns the feature as a column."""
        kind = self._kind()
        tags = dict(tag.partition("=")[::2] for tag in self._feature.annotation.tag)
        separator = tags.get(SEPARATOR_TAG, "")
        if SEPARATOR_TAG in tags and not separator:
            raise self._error('has an empty separator: write annotation { tag: "separator=|" }')
        self._check_count(separator)
        try:
            return Column(
                name=self._feature.name,
                kind=kind,
                required=self._feature.presence.min_fraction == 1,
                default=tags.get(DEFAULT_TAG),
                separator=separator,
                zero_padded=ZERO_PADDED_TAG in tags,
                **self._domain(kind),
            )
        except UsageError as error:
            raise UsageError(f"{self._source}: {error}") from error

    def _error(self, problem: str) -> UsageError:
        return UsageError(f"{self._source}: the feature {self._feature.name!r} {problem}.")

    def _kind(self) -> Kind:
        name = _word(self._feature, "type")
        for kind, known in _TYPES.items():
            if name == known:
                return kind
        raise self._error(
            f"has the type {name}: give it 'type: INT', 'type: FLOAT' or 'type: BYTES'"
        )

    def _check_count(self, separator: str) -> None:
        form = self._feature.WhichOneof("shape_type")
        if form == "value_counts":
            raise self._error("has value_counts, lists in lists: use value_count { min: 0 }")
        if form == "shape":
            sizes = [dim.size for dim in self._feature.shape.dim]
            if sizes not in ([], [1]):
                raise self._error(
                    f"has the shape {sizes}, but a cell is one value: write "
                    "shape { dim { size: 1 } }, or value_count { min: 0 } with "
                    'annotation { tag: "separator=|" } for several'
                )
            if separator:
                raise self._error(
                    "has both a shape and a separator: write value_count { min: 0 } for several "
                    "values in a cell, or remove the separator"
                )
        elif form == "value_count" and not separator:
            count = self._feature.value_count
            if count.max != 1 or count.min > 1:
                raise self._error(
                    "may have several values: write value_count { min: 1 max: 1 }, or name what "
                    'is between them with annotation { tag: "separator=|" }'
                )

    def _domain(self, kind: Kind) -> dict[str, Any]:
        """Returns the arguments of Column that a feature's domain decides."""
        form = str(self._feature.WhichOneof("domain_info"))
        domain: Any = getattr(self._feature, form, None)
        if form == "domain":
            form, domain = self._shared.get(self._feature.domain, ("", None))
            if domain is None:
                raise self._error(
                    f"refers to the domain {self._feature.domain!r}, which the schema does not "
                    "have: add it, or remove the reference"
                )
        if form == "struct_domain":
            raise self._error("has a struct_domain: describe each column as a feature of its own")
        if form == "bool_domain":
            return self._booleans(kind, domain)
        if form not in _DOMAINS:  # what a text means (url_domain …) is no rule for cells
            return {}
        if _DOMAINS[form] != kind:
            raise self._error(
                f"is {_TYPES[kind]} with {form}: make it {_TYPES[_DOMAINS[form]]}, or remove {form}"
            )
        if form == "string_domain":
            enforced = self._feature.distribution_constraints.min_domain_mass >= 1
            return {"values": tuple(domain.value) if enforced else None}
        bounds = {"low": "min", "high": "max"}
        return {
            key: getattr(domain, field)
            for key, field in bounds.items()
            if domain.HasField(field) and math.isfinite(getattr(domain, field))
        }

    def _booleans(self, kind: Kind, domain: Any) -> dict[str, Any]:
        texts = (domain.true_value, domain.false_value)
        if kind == "bytes":
            return {"values": texts} if all(texts) else {}
        if kind == "int64":
            return {"booleans": texts} if any(texts) else {"low": 0, "high": 1}
        raise self._error("is FLOAT with bool_domain: make it INT, or remove bool_domain")
