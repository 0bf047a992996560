"""Check serialized tf.train.Examples against the schema of their dataset."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardmill.schemas.errors import UsageError
from shardmill.schemas.example.parse import ExampleError, Feature, Kind, parse_example
from shardmill.schemas.file_signatures import IMAGE_FORMATS, has_image_format
from shardmill.schemas.schema_pbtxt.feature_spec import DTYPE_TAG, ENCODING_TAG, SHAPE_TAG
from shardmill.schemas.schema_pbtxt.image_features import CLASS_ID, CLASS_TEXT, FORMAT

_KINDS: dict[str, Kind] = {"BYTES": "bytes", "INT": "int64", "FLOAT": "float"}
_UNLIMITED = 1 << 62
_MAX_SHOWN = 40  # characters of a value in a message


@dataclass(frozen=True)
class FeatureRule:
    """Constraints that a schema puts on one feature.

    Attributes:
        name: Name of the feature.
        kind: Kind of its values; ``empty`` if the schema does not name one.
        required: Whether every example has it (``presence.min_fraction`` is 1; ``min_count``
            constrains the dataset, not an example).
        min_values: Least number of values in an example that has the feature.
        max_values: Greatest number of values.
        lower: Lower bound of int64 and float values.
        upper: Upper bound of int64 and float values.
        domain: Allowed values of a string domain; empty if every value is allowed.
        reject_inf: Whether infinities are rejected.
        reject_nan: Whether NaNs are rejected.
        value_bytes: Bytes of each value that holds an array of a fixed shape; -1 for any number.
        array_type: dtype and shape of that array, for messages.
    """

    name: str
    kind: Kind
    required: bool
    min_values: int = 0
    max_values: int = _UNLIMITED
    lower: float = -math.inf
    upper: float = math.inf
    domain: frozenset[bytes] = frozenset()
    reject_inf: bool = False
    reject_nan: bool = False
    value_bytes: int = -1
    array_type: str = ""

    def find_violation(self, feature: Feature) -> str:
        """Return the constraint that a feature violates, or an empty text."""
        kind, values = feature
        if not values and self.required and kind in ("empty", self.kind):
            return f"the feature {self.name!r} has no value, and the schema requires one"
        if kind == "empty":
            return ""
        if self.kind not in ("empty", kind):
            return f"the feature {self.name!r} is {kind}, not {self.kind}"
        if not self.min_values <= len(values) <= self.max_values:
            return f"the feature {self.name!r} has {len(values):,} values, not {self._counts()}"
        if not self._constrains_values:
            return ""
        return next(filter(None, map(self._find_value_violation, values)), "")

    @cached_property
    def _constrains_values(self) -> bool:
        bounded = self.lower > -math.inf or self.upper < math.inf
        return bool(
            bounded or self.domain or self.reject_inf or self.reject_nan or self.value_bytes >= 0
        )

    def _counts(self) -> str:
        if self.min_values == self.max_values:
            return f"{self.min_values:,}"
        if self.max_values == _UNLIMITED:
            return f"{self.min_values:,} or more"
        return f"{self.min_values:,} to {self.max_values:,}"

    def _find_value_violation(self, value: bytes | float) -> str:
        start = f"the feature {self.name!r}"
        if isinstance(value, bytes):
            if 0 <= self.value_bytes != len(value):
                return (
                    f"{start} has {len(value):,} bytes, not the {self.value_bytes:,} of "
                    f"{self.array_type}"
                )
            if self.domain and value not in self.domain:
                return f"{start} is {_quote(value)}, which is not in its domain"
            return ""
        if self.reject_nan and math.isnan(value):
            return f"{start} is NaN"
        if self.reject_inf and math.isinf(value):
            return f"{start} is infinite"
        if value < self.lower:
            return f"{start} is {value}, below the minimum {self.lower}"
        if value > self.upper:
            return f"{start} is {value}, above the maximum {self.upper}"
        return ""


class ExampleChecker:
    """Finds examples that violate a schema; a picklable value for worker processes.

    Args:
        schema_text: Content of ``schema.pbtxt``.
        labels: All labels in the order of their class ids; empty: class ids are not looked up.

    Raises:
        UsageError: The text is not a schema.
    """

    def __init__(self, schema_text: str, labels: Sequence[str] = ()) -> None:
        schema = _parse_schema(schema_text)
        domains = {domain.name: domain for domain in schema.string_domain}
        self._rules = {f.name: _make_rule(f, domains) for f in schema.feature}
        self._images = tuple(f.name for f in schema.feature if f.HasField("image_domain"))
        self._labels = tuple(label.encode() for label in labels)

    def find_violation(self, payload: bytes) -> str:
        """Return why an example does not fit the schema, as a sentence without a full stop.

        Args:
            payload: The serialized tf.train.Example.

        Returns:
            The first violation, or an empty text.
        """
        try:
            features = parse_example(payload)
        except ExampleError as error:
            return str(error)
        for name in features:
            if name not in self._rules:
                return f"the feature {_shorten(name)!r} is not in the schema"
        for name, rule in self._rules.items():
            feature = features.get(name)
            if feature is not None:
                if violation := rule.find_violation(feature):
                    return violation
            elif rule.required:
                return f"the feature {name!r} is missing"
        return self._find_wrong_label(features) or self._find_wrong_format(features)

    def _find_wrong_label(self, features: dict[str, Feature]) -> str:
        """Return how the class id contradicts the labels or the class text, or an empty text."""
        number, text = _first_value(features, CLASS_ID), _first_value(features, CLASS_TEXT)
        if not isinstance(number, int) or not self._labels:
            return ""
        if not 0 <= number < len(self._labels):
            return (
                f"the class id {number} is not one of the {len(self._labels):,} labels "
                f"(0 to {len(self._labels) - 1})"
            )
        label = self._labels[number]
        if isinstance(text, bytes) and text != label:
            return (
                f"the class id {number} means {_quote(label)}, but {CLASS_TEXT!r} is {_quote(text)}"
            )
        return ""

    def _find_wrong_format(self, features: dict[str, Feature]) -> str:
        """Return which image does not begin like a file of its format, or an empty text."""
        stated = _first_value(features, FORMAT)
        name = stated.decode(errors="replace") if isinstance(stated, bytes) else ""
        if name not in IMAGE_FORMATS:
            return ""
        for feature in self._images:
            image = _first_value(features, feature)
            if isinstance(image, bytes) and not has_image_format(image, name):
                start = image[:4].hex(" ") or "nothing"
                return f"the feature {feature!r} begins with {start}, which is not {name}"
        return ""


def _first_value(features: dict[str, Feature], name: str) -> object:
    feature = features.get(name)
    return feature.values[0] if feature is not None and feature.values else None


def _parse_schema(text: str) -> Any:
    # These take 25 ms to import.
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    try:
        return text_format.Parse(text, schema_pb2.Schema())
    except text_format.ParseError as error:
        raise UsageError(f"the schema cannot be read: {error}") from error


def _make_rule(feature: Any, domains: dict[str, Any]) -> FeatureRule:
    """Return the rule of one feature of a tensorflow_metadata Schema."""
    type_name = feature.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number[feature.type]
    kind = _KINDS.get(type_name.name, "empty")
    min_values, max_values = _value_counts(feature)
    values: dict[str, Any] = {}
    domain = {"int64": "int_domain", "float": "float_domain"}.get(kind)
    if domain is not None and feature.HasField(domain):
        bounds = getattr(feature, domain)
        values["lower"] = bounds.min if bounds.HasField("min") else -math.inf
        values["upper"] = bounds.max if bounds.HasField("max") else math.inf
        if kind == "float":
            values["reject_inf"], values["reject_nan"] = bounds.disallow_inf, bounds.disallow_nan
    elif kind == "bytes":
        values["domain"] = frozenset(_string_domain(feature, domains))
        values["value_bytes"], values["array_type"] = _array_size(feature)
    required = feature.presence.min_fraction >= 1
    return FeatureRule(feature.name, kind, required, min_values, max_values, **values)


def _array_size(feature: Any) -> tuple[int, str]:
    """Return the bytes of a raw array of a fixed shape and its type for messages; else -1.

    Raises:
        UsageError: The schema names an unknown dtype or a malformed shape.
    """
    tags = dict(tag.partition("=")[::2] for tag in feature.annotation.tag)
    if tags.get(ENCODING_TAG) != "raw" or not {DTYPE_TAG, SHAPE_TAG} <= set(tags):
        return -1, ""
    try:
        itemsize = np.dtype(tags[DTYPE_TAG]).itemsize
        shape = tuple(int(size) for size in tags[SHAPE_TAG].split(",") if size)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the schema cannot be read: the feature {feature.name!r} has the dtype "
            f"{tags[DTYPE_TAG]!r} and shape {tags[SHAPE_TAG]!r}."
        ) from error
    return math.prod(shape) * itemsize, f"{tags[DTYPE_TAG]} in the shape {shape}"


def _value_counts(feature: Any) -> tuple[int, int]:
    """Return the least and the greatest number of values of a feature."""
    if feature.HasField("shape"):
        dims = feature.shape.dim
        count = math.prod(dim.size for dim in dims)
        return (count, count) if all(d.HasField("size") for d in dims) else (0, _UNLIMITED)
    if feature.HasField("value_count"):
        counts = feature.value_count
        return max(0, counts.min), counts.max if counts.HasField("max") else _UNLIMITED
    return 0, _UNLIMITED


def _string_domain(feature: Any, domains: dict[str, Any]) -> Iterator[bytes]:
    """Yield the allowed values of a feature whose string domain holds for every example."""
    constraints = feature.distribution_constraints
    if feature.HasField("distribution_constraints") and constraints.min_domain_mass < 1:
        return
    domain = feature.string_domain if feature.HasField("string_domain") else None
    if feature.HasField("domain"):
        domain = domains.get(feature.domain)
    for value in domain.value if domain is not None else ():
        yield value.encode()


def _quote(value: bytes) -> str:
    return repr(_shorten(value.decode("utf-8", "backslashreplace")))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
