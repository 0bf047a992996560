"""Check serialized tf.train.Examples against the schema of their dataset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardmill.schemas.errors import FormatError, UsageError
from shardmill.schemas.example.parse import ExampleError, FeatureValues, Kind, parse_example
from shardmill.schemas.file_signatures import IMAGE_FORMATS, has_image_format
from shardmill.schemas.schema_pbtxt.feature_spec import (
    DTYPE_TAG,
    ENCODING_TAG,
    SHAPE_TAG,
    parse_feature_spec,
)
from shardmill.schemas.schema_pbtxt.image_features import CLASS_ID, CLASS_TEXT, FORMAT
from shardmill.schemas.schema_pbtxt.schema_text import Domain, SchemaFeature, parse_schema_text

_KINDS: dict[str, Kind] = {"BYTES": "bytes", "INT": "int64", "FLOAT": "float"}
_SOURCE = "schema.pbtxt"
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

    def find_violation(self, feature: FeatureValues) -> str:
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
        try:
            features = parse_schema_text(schema_text, _SOURCE).features
            self._rules = {feature.name: _make_rule(feature) for feature in features}
        except FormatError as error:
            raise UsageError(f"the schema cannot be read: {error}") from error
        self._images = tuple(
            each.name for each in features if each.domain and each.domain.form == "image_domain"
        )
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

    def _find_wrong_label(self, features: dict[str, FeatureValues]) -> str:
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

    def _find_wrong_format(self, features: dict[str, FeatureValues]) -> str:
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


def _first_value(features: dict[str, FeatureValues], name: str) -> object:
    feature = features.get(name)
    return feature.values[0] if feature is not None and feature.values else None


def _make_rule(feature: SchemaFeature) -> FeatureRule:
    """Return the rule of one feature of a schema."""
    kind = _KINDS.get(feature.type, "empty")
    domain = feature.domain or Domain("")
    values: dict[str, Any] = {}
    if domain.form == {"int64": "int_domain", "float": "float_domain"}.get(kind):
        values["lower"] = -math.inf if domain.low is None else domain.low
        values["upper"] = math.inf if domain.high is None else domain.high
        values["reject_inf"], values["reject_nan"] = domain.disallow_inf, domain.disallow_nan
    elif kind == "bytes":
        values["domain"] = frozenset(text.encode() for text in domain.values or ())
        values["value_bytes"], values["array_type"] = _array_size(feature)
    return FeatureRule(feature.name, kind, feature.required, *_value_counts(feature), **values)


def _array_size(feature: SchemaFeature) -> tuple[int, str]:
    """Return the bytes of a raw array of a fixed shape and its type for messages; else -1.

    Raises:
        FormatError: The schema names an unknown dtype or a malformed shape.
    """
    tags = feature.tag_values
    if tags.get(ENCODING_TAG) != "raw" or not {DTYPE_TAG, SHAPE_TAG} <= set(tags):
        return -1, ""
    spec = parse_feature_spec(feature, _SOURCE)
    if spec.dtype is None or spec.shape is None:
        return -1, ""
    size = math.prod(spec.shape) * spec.dtype.itemsize
    return size, f"{tags[DTYPE_TAG]} in the shape {spec.shape}"


def _value_counts(feature: SchemaFeature) -> tuple[int, int]:
    """Return the least and the greatest number of values of a feature."""
    if feature.shape is not None and -1 not in feature.shape:
        count = math.prod(feature.shape)
        return count, count
    if feature.value_count is None:
        return 0, _UNLIMITED
    least, most = feature.value_count
    return max(0, least), _UNLIMITED if most is None else most


def _quote(value: bytes) -> str:
    return repr(_shorten(value.decode("utf-8", "backslashreplace")))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
