"""Check serialized tf.train.Examples against the schema of their dataset."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Sequence
from typing import Any

from shardmill.schemas.errors import FormatError, UsageError
from shardmill.schemas.example.parse import ExampleError, FeatureValues, Kind, parse_example
from shardmill.schemas.file_signatures import IMAGE_FORMATS, has_image_format
from shardmill.schemas.schema_pbtxt import schema_text
from shardmill.schemas.schema_pbtxt.feature_spec import parse_feature_spec
from shardmill.schemas.schema_pbtxt.image_features import CLASS_ID, CLASS_TEXT, FORMAT
from shardmill.schemas.schema_pbtxt.schema_text import DTYPE_TAG, ENCODING_TAG, SHAPE_TAG

_KINDS: dict[str, Kind] = {"BYTES": "bytes", "INT": "int64", "FLOAT": "float"}
_SOURCE = "schema.pbtxt"
_UNLIMITED = 1 << 62
_LABEL = (CLASS_ID, CLASS_TEXT)
_MAX_SHOWN = 40  # characters of a value in a message


class _FeatureRule:
    """Constraints that a schema puts on one feature.

    Args:
        feature: A feature of the schema.

    Attributes:
        name: Name of the feature.
        kind: Kind of its values; ``empty`` if the schema does not name one.
        required: Whether every example has it (``presence.min_fraction`` is 1; ``min_count``
            constrains the dataset, not an example).

    Raises:
        FormatError: The schema names an unknown dtype or a malformed shape.
    """

    def __init__(self, feature: Any) -> None:
        self.name, self.required = feature.name, schema_text.is_required(feature)
        self.kind: Kind = _KINDS.get(schema_text.type_of(feature), "empty")
        self._least, self._most = _value_counts(feature)
        form = {"int64": "int_domain", "float": "float_domain"}.get(self.kind)
        bounded = form is not None and feature.HasField(form)
        bounds = schema_text.bounds_of(feature) if bounded else {}
        self._lower, self._upper = bounds.get("min", -math.inf), bounds.get("max", math.inf)
        self._reject_inf = bounded and feature.float_domain.disallow_inf
        self._reject_nan = bounded and feature.float_domain.disallow_nan
        texts = None
        self._bytes, self._array = -1, ""
        if self.kind == "bytes":
            texts = schema_text.texts_of(feature)
            self._bytes, self._array = _array_size(feature)
        self._texts = frozenset(text.encode() for text in texts or ())
        self._constrains_values = bounded or bool(self._texts) or self._bytes >= 0

    def find_violation(self, feature: FeatureValues) -> str:
        """Return the constraint that a feature violates, or an empty text."""
        kind, values = feature
        if not values and self.required and kind in ("empty", self.kind):
            return f"the feature {self.name!r} has no value, and the schema requires one"
        if kind == "empty":
            return ""
        if self.kind not in ("empty", kind):
            return f"the feature {self.name!r} is {kind}, not {self.kind}"
        if not self._least <= len(values) <= self._most:
            return f"the feature {self.name!r} has {len(values):,} values, not {self._counts()}"
        if not self._constrains_values:
            return ""
        return next(filter(None, map(self._find_value_violation, values)), "")

    def _counts(self) -> str:
        if self._least == self._most:
            return f"{self._least:,}"
        if self._most == _UNLIMITED:
            return f"{self._least:,} or more"
        return f"{self._least:,} to {self._most:,}"

    def _find_value_violation(self, value: bytes | float) -> str:
        start = f"the feature {self.name!r}"
        if isinstance(value, bytes):
            if 0 <= self._bytes != len(value):
                return f"{start} has {len(value):,} bytes, not the {self._bytes:,} of {self._array}"
            if self._texts and value not in self._texts:
                return f"{start} is {_quote(value)}, which is not in its domain"
            return ""
        if self._reject_nan and math.isnan(value):
            return f"{start} is NaN"
        if self._reject_inf and math.isinf(value):
            return f"{start} is infinite"
        if value < self._lower:
            return f"{start} is {value}, below the minimum {self._lower}"
        if value > self._upper:
            return f"{start} is {value}, above the maximum {self._upper}"
        return ""


class ExampleChecker:
    """Finds examples that violate a schema; a picklable value for worker processes.

    Args:
        schema: Content of ``schema.pbtxt``.
        labels: All labels in the order of their class ids; empty: class ids are not looked up.
        optional: Features that an example may lack although the schema requires them.

    Raises:
        UsageError: The text is not a schema.
    """

    def __init__(
        self, schema: str, labels: Sequence[str] = (), optional: Container[str] = ()
    ) -> None:
        try:
            features = schema_text.parse_schema_text(schema, _SOURCE).feature
            self._rules = {feature.name: _FeatureRule(feature) for feature in features}
        except FormatError as error:
            raise UsageError(f"the schema cannot be read: {error}") from error
        self._images = tuple(
            feature.name for feature in features if feature.HasField("image_domain")
        )
        self._optional = optional
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
                violation = rule.find_violation(feature)
                if violation:
                    return violation
            elif rule.required and name not in self._optional:
                return f"the feature {name!r} is missing"
        return self._find_wrong_label(features) or self._find_wrong_format(features)

    def _find_wrong_label(self, features: dict[str, FeatureValues]) -> str:
        """Return how the class id contradicts the labels or the class text, or an empty text."""
        columns = (features[name].values if name in features else () for name in _LABEL)
        for number, text in itertools.zip_longest(*columns):
            if not self._labels or not isinstance(number, int):
                continue
            if not 0 <= number < len(self._labels):
                return (
                    f"the class id {number} is not one of the {len(self._labels):,} labels "
                    f"(0 to {len(self._labels) - 1})"
                )
            label = self._labels[number]
            if isinstance(text, bytes) and text != label:
                means = f"the class id {number} means {_quote(label)}"
                return f"{means}, but {CLASS_TEXT!r} is {_quote(text)}"
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
    if feature is None or not feature.values:
        return None
    return feature.values[0]


def _array_size(feature: Any) -> tuple[int, str]:
    """Return the bytes of a raw array of a fixed shape and its type for messages; else -1.

    Raises:
        FormatError: The schema names an unknown dtype or a malformed shape.
    """
    tags = schema_text.tags_of(feature)
    if tags.get(ENCODING_TAG) != "raw" or not {DTYPE_TAG, SHAPE_TAG} <= set(tags):
        return -1, ""
    spec = parse_feature_spec(feature, _SOURCE)
    if spec.dtype is None or spec.shape is None:
        return -1, ""
    size = math.prod(spec.shape) * spec.dtype.itemsize
    return size, f"{tags[DTYPE_TAG]} in the shape {spec.shape}"


def _value_counts(feature: Any) -> tuple[int, int]:
    """Return the least and the greatest number of values of a feature."""
    shape, count = schema_text.shape_of(feature), feature.value_count
    if shape is not None and -1 not in shape:
        return math.prod(shape), math.prod(shape)
    most = count.max if count.HasField("max") else _UNLIMITED
    return max(0, count.min), most


def _quote(value: bytes) -> str:
    return repr(_shorten(value.decode("utf-8", "backslashreplace")))


def _shorten(text: str) -> str:
    if len(text) <= _MAX_SHOWN:
        return text
    return f"{text[:_MAX_SHOWN]}..."
