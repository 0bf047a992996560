"""Checks of single examples against the schema of their dataset.

``check`` says in one sentence why an example does not fit, and needs the example parsed for that.
Nearly all examples do fit and are written in one plain form, with features sorted by name. So
their bytes are first compared with the bytes that a fitting example must have, name by name, which
takes a quarter of the time; only what differs is parsed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardmill.schemas.errors import UsageError
from shardmill.schemas.example.parse import (
    ExampleError,
    Feature,
    Kind,
    UnusualError,
    block,
    integers,
    parse_example,
    plain_feature,
)
from shardmill.schemas.example.serialize import varint
from shardmill.schemas.file_signatures import IMAGE_FORMATS, has_image_format
from shardmill.schemas.schema_pbtxt.feature_spec import DTYPE_TAG, ENCODING_TAG, SHAPE_TAG
from shardmill.schemas.schema_pbtxt.image_features import CLASS_ID, CLASS_TEXT, FORMAT

_KINDS: dict[str, Kind] = {"BYTES": "bytes", "INT": "int64", "FLOAT": "float"}
_FIRST, _SECOND, _THIRD = 0x0A, 0x12, 0x1A
_MANY = 1 << 62
_SHOWN = 40
_REMEMBERED, _SMALL = 10_000, 1_000
_SIGNATURE = 12


@dataclass(frozen=True)
class Rule:
    """What the schema says of one feature.

    Attributes:
        name: The feature.
        kind: What its values are; empty where the schema does not say.
        required: Whether every example has it (``presence.min_fraction`` is 1; ``min_count`` is a
            rule for the dataset).
        fewest: How many values it has at least, where it is not missing.
        most: And at most.
        low: Lower bound of integers or floats.
        high: Upper bound.
        texts: All allowed values of a string domain; empty: any.
        finite: Whether infinities are refused.
        no_nan: Whether NaNs are refused.
        size: Bytes that each value has, where it is the values of an array; -1: any number.
        array: The type and shape of that array, for messages.
    """

    name: str
    kind: Kind
    required: bool
    fewest: int = 0
    most: int = _MANY
    low: float = -math.inf
    high: float = math.inf
    texts: frozenset[bytes] = frozenset()
    finite: bool = False
    no_nan: bool = False
    size: int = -1
    array: str = ""

    @property
    def free(self) -> bool:
        """Whether every value of the kind is allowed, but for its size."""
        bounded = self.low > -math.inf or self.high < math.inf
        return not (bounded or self.texts or self.finite or self.no_nan)

    def fault(self, feature: Feature) -> str:
        """Returns why a feature breaks the rule, or an empty text."""
        count = len(feature.values)
        if not count and feature.kind in ("empty", self.kind) and self.required:
            return f"the feature {self.name!r} has no value, and the schema requires one"
        if feature.kind == "empty":
            return ""
        if self.kind not in ("empty", feature.kind):
            return f"the feature {self.name!r} is {feature.kind}, not {self.kind}"
        if not self.fewest <= count <= self.most:
            return f"the feature {self.name!r} has {count:,} values, not {self._counts()}"
        if self.free and self.size < 0:
            return ""
        return next((text for text in map(self._fault_of, feature.values) if text), "")

    def _counts(self) -> str:
        if self.fewest == self.most:
            return f"{self.fewest:,}"
        if self.most == _MANY:
            return f"{self.fewest:,} or more"
        return f"{self.fewest:,} to {self.most:,}"

    def _fault_of(self, value: bytes | float) -> str:
        if isinstance(value, bytes):
            if 0 <= self.size != len(value):
                return (
                    f"the feature {self.name!r} has {len(value):,} bytes, not the {self.size:,} "
                    f"of {self.array}"
                )
            if self.texts and value not in self.texts:
                return f"the feature {self.name!r} is {_short(value)}, which is not in its domain"
            return ""
        if self.no_nan and value != value:  # noqa: PLR0124 - NaN alone differs from itself
            return f"the feature {self.name!r} is NaN"
        if self.finite and value in (math.inf, -math.inf):
            return f"the feature {self.name!r} is infinite"
        if value < self.low:
            return f"the feature {self.name!r} is {value}, below its least value {self.low}"
        if value > self.high:
            return f"the feature {self.name!r} is {value}, above its greatest value {self.high}"
        return ""


# A rule, its name as the wire has it, the first bytes of an entry by the entry's length, whether
# one text of the right size fits, and whether the value is compared with that of another feature.
_PlainRule = tuple[Rule, bytes, dict[int, bytes], bool, bool]


class ExampleChecker:
    """Tells whether examples fit a schema; a picklable value for worker processes.

    Args:
        schema_text: The text of ``schema.pbtxt``.
        labels: All labels in the order of their class ids; empty: class ids are not looked up.

    Raises:
        UsageError: The text is no schema.
    """

    def __init__(self, schema_text: str, labels: Sequence[str] = ()) -> None:
        schema = _parse(schema_text)
        domains = {domain.name: domain for domain in schema.string_domain}
        self._rules = {f.name: _rule(f, domains) for f in schema.feature}
        self._images = tuple(f.name for f in schema.feature if f.HasField("image_domain"))
        self._labels = tuple(label.encode() for label in labels)
        watched = {FORMAT, CLASS_TEXT, CLASS_ID, *self._images}
        self._agreed: set[tuple[bytes, ...]] = set()
        in_order = sorted(self._rules.values(), key=lambda rule: rule.name.encode())
        self._plain = tuple(_plain_rule(rule, watched=rule.name in watched) for rule in in_order)

    def check(self, payload: bytes) -> str:
        """Returns why an example does not fit, as one sentence without a full stop, or ''."""
        try:
            if self._fits(payload):
                return ""
        except (UnusualError, IndexError):
            pass
        return self._fault(payload)

    def _fault(self, payload: bytes) -> str:
        try:
            features = parse_example(payload)
        except ExampleError as error:
            return str(error)
        for name in features:
            if name not in self._rules:
                return f"the feature {_cut(name)!r} is not in the schema"
        for rule in self._rules.values():
            feature = features.get(rule.name)
            if feature is not None:
                if fault := rule.fault(feature):
                    return fault
            elif rule.required:
                return f"the feature {rule.name!r} is missing"
        return self._disagreement(features)

    def _disagreement(self, features: dict[str, Feature]) -> str:
        """Returns what two features say against each other, or an empty text."""
        seen = {name: f.values[0] for name, f in features.items() if f.values}
        number = seen.get(CLASS_ID)
        if isinstance(number, int) and self._labels:
            if not 0 <= number < len(self._labels):
                return (
                    f"the class id {number} is not one of the {len(self._labels):,} labels "
                    f"(0 to {len(self._labels) - 1})"
                )
            text = seen.get(CLASS_TEXT)
            if isinstance(text, bytes) and text != self._labels[number]:
                return (
                    f"the class id {number} means {_short(self._labels[number])}, but "
                    f"{CLASS_TEXT!r} is {_short(text)}"
                )
        stated = seen.get(FORMAT)
        kind = stated.decode(errors="replace") if isinstance(stated, bytes) else ""
        if kind not in IMAGE_FORMATS:
            return ""
        for name in self._images:
            image = seen.get(name)
            if isinstance(image, bytes) and not has_image_format(image, kind):
                begin = image[:4].hex(" ") or "nothing"
                return f"the feature {name!r} begins with {begin}, which is no {kind}"
        return ""

    def _fits(self, payload: bytes) -> bool:  # noqa: C901, PLR0912 - calls cost too much
        """Tells whether a plain example fits; False may also mean that it is not plain.

        Raises:
            UnusualError: Or IndexError: it is not plain.
        """
        stop, pos = block(payload, 0, _FIRST)
        if stop != len(payload):
            return False
        seen: list[bytes] = []
        for rule, prefix, heads, text, watched in self._plain:
            if pos == stop:
                if rule.required:
                    return False
                continue
            head = heads.get(payload[pos + 1])
            if head is not None and payload.startswith(head, pos):
                start = pos + len(head)
                pos += 2 + payload[pos + 1]
                if rule.kind == "int64" and not _integer_fits(rule, payload, start, pos):
                    return False
                if watched:
                    seen += (prefix, payload[start:pos])
                continue
            end, start = block(payload, pos, _FIRST)
            if not payload.startswith(prefix, start):
                if rule.required:
                    return False
                continue
            last, start = block(payload, start + len(prefix), _SECOND)
            value = _one_text(payload, start, end) if text else 0
            if value and 0 <= rule.size != end - value:
                return False
            if last != end or (not value and rule.fault(plain_feature(payload, start, end))):
                return False
            if watched:
                if value and rule.name in self._images:
                    start, end = value, min(end, value + _SIGNATURE)
                seen += (prefix, payload[start:end])
            pos = last
        return pos == stop and (tuple(seen) in self._agreed or self._agree(payload, tuple(seen)))

    def _agree(self, payload: bytes, seen: tuple[bytes, ...]) -> bool:
        """Tells whether an example's features agree, and remembers it: the same few come again."""
        if self._disagreement(parse_example(payload)):
            return False
        if len(self._agreed) < _REMEMBERED and sum(map(len, seen)) < _SMALL:
            self._agreed.add(seen)
        return True


def _one_text(payload: bytes, start: int, end: int) -> int:
    """Returns where the value begins in a plain bytes feature of one value, or 0."""
    if start < end and payload[start] == _FIRST:
        inner, start = block(payload, start, _FIRST)
        if inner == end > start:
            inner, start = block(payload, start, _FIRST)
            return start if inner == end else 0
    return 0


def _integer_fits(rule: Rule, payload: bytes, start: int, end: int) -> bool:
    """Tells whether bytes are one integer that a rule allows."""
    value = payload[start]
    if value > 0x7F or end - start > 1:
        values = integers(payload, start, end)
        if len(values) != 1:
            return False
        value = values[0]
    return rule.low <= value <= rule.high


def _plain_rule(rule: Rule, *, watched: bool) -> _PlainRule:
    """Returns a rule with the bytes that a short fitting feature begins with."""
    name = rule.name.encode()
    prefix = bytes((_FIRST,)) + varint(len(name)) + name
    tag = {"bytes": _FIRST, "float": _SECOND, "int64": _THIRD}.get(rule.kind)
    heads = {}
    if tag is not None and rule.fewest <= 1 <= rule.most and (rule.kind == "int64" or rule.free):
        small = range(128) if rule.size < 0 else range(rule.size, min(rule.size, 127) + 1)
        sizes = {"bytes": small, "float": range(4, 5), "int64": range(1, 11)}[rule.kind]
        for size in sizes:
            inner = bytes((_SECOND, size + 4, tag, size + 2, _FIRST, size))
            length = len(prefix) + len(inner) + size
            if length < 0x80:
                heads[length] = bytes((_FIRST, length)) + prefix + inner
    text = rule.kind == "bytes" and rule.fewest <= 1 <= rule.most and rule.free
    return rule, prefix, heads, text, watched


def _parse(text: str) -> Any:
    # 25 ms to load.
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    try:
        return text_format.Parse(text, schema_pb2.Schema())
    except text_format.ParseError as error:
        raise UsageError(f"the schema cannot be read: {error}") from error


def _rule(feature: Any, domains: dict[str, Any]) -> Rule:
    """Returns the rule of one feature of a tensorflow_metadata Schema."""
    type_name = feature.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number[feature.type]
    kind = _KINDS.get(type_name.name, "empty")
    fewest, most = _counts(feature)
    bounds: dict[str, Any] = {}
    if feature.HasField("int_domain") and kind == "int64":
        domain = feature.int_domain
        bounds["low"] = domain.min if domain.HasField("min") else -math.inf
        bounds["high"] = domain.max if domain.HasField("max") else math.inf
    elif feature.HasField("float_domain") and kind == "float":
        domain = feature.float_domain
        bounds["low"] = domain.min if domain.HasField("min") else -math.inf
        bounds["high"] = domain.max if domain.HasField("max") else math.inf
        bounds["finite"], bounds["no_nan"] = domain.disallow_inf, domain.disallow_nan
    elif kind == "bytes":
        bounds["texts"] = frozenset(_texts(feature, domains))
        bounds["size"], bounds["array"] = _array(feature)
    required = feature.presence.min_fraction >= 1
    return Rule(feature.name, kind, required, fewest, most, **bounds)


def _array(feature: Any) -> tuple[int, str]:
    """Returns the bytes of a raw array whose shape the schema knows, and what it is; else -1.

    Raises:
        UsageError: The schema names a type or shape that there is not.
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


def _counts(feature: Any) -> tuple[int, int]:
    """Returns how many values a feature has: at least and at most."""
    if feature.HasField("shape"):
        count = math.prod(dim.size for dim in feature.shape.dim)
        return (count, count) if all(d.HasField("size") for d in feature.shape.dim) else (0, _MANY)
    if feature.HasField("value_count"):
        counts = feature.value_count
        return max(0, counts.min), counts.max if counts.HasField("max") else _MANY
    return 0, _MANY


def _texts(feature: Any, domains: dict[str, Any]) -> Iterator[bytes]:
    """Yields the allowed values of a feature with a string domain that holds for all examples."""
    constraints = feature.distribution_constraints
    if feature.HasField("distribution_constraints") and constraints.min_domain_mass < 1:
        return
    domain = feature.string_domain if feature.HasField("string_domain") else None
    if feature.HasField("domain"):
        domain = domains.get(feature.domain)
    for value in domain.value if domain is not None else ():
        yield value.encode()


def _short(value: bytes) -> str:
    """Returns a value as it may stand in a sentence."""
    return repr(_cut(value.decode("utf-8", "backslashreplace")))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
