"""The parser and the writer of schema.pbtxt, a ``tensorflow_metadata.proto.v0.Schema`` as text.

No other module uses protobuf's text format. Importing this one does not load protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shardmill.schemas.errors import FormatError

Kind = Literal["int64", "float32", "bytes"]

_KINDS: dict[str, Kind] = {"INT": "int64", "FLOAT": "float32", "BYTES": "bytes"}
TYPES: dict[Kind, str] = {kind: name for name, kind in _KINDS.items()}
# Lifecycle stages of features that TensorFlow Transform omits from a feature spec.
_INACTIVE = ("DEPRECATED", "DISABLED", "PLANNED", "ALPHA", "DEBUG_ONLY", "VALIDATION_DERIVED")
_SHARED_DOMAINS = ("int_domain", "float_domain", "string_domain")
_UNSUPPORTED = ("sparse_feature", "tensor_representation_group")
_MAX_PROBLEM = 200


@dataclass(frozen=True)
class Domain:
    """The ``domain_info`` of a feature, which restricts its values.

    Attributes:
        form: Field name of the domain in schema.proto, such as ``int_domain``; ``domain`` for a
            reference to a domain that the schema does not define.
        name: Name of the domain.
        low: Smallest value of an ``int_domain`` or ``float_domain``; None: unbounded.
        high: Largest value.
        values: Allowed texts of a ``string_domain``; None where ``min_domain_mass`` below 1 allows
            other values too.
        booleans: Texts for true and false of a ``bool_domain``.
        is_categorical: Whether the integers of an ``int_domain`` are class ids.
        disallow_nan: Whether a ``float_domain`` excludes NaN.
        disallow_inf: Whether a ``float_domain`` excludes infinities.
    """

    form: str
    name: str = ""
    low: float | int | None = None
    high: float | int | None = None
    values: tuple[str, ...] | None = None
    booleans: tuple[str, str] | None = None
    is_categorical: bool = False
    disallow_nan: bool = False
    disallow_inf: bool = False


@dataclass(frozen=True)
class SchemaFeature:
    """One feature of a schema.

    Attributes:
        name: Name of the feature.
        type: Name of the ``FeatureType``: ``INT``, ``FLOAT``, ``BYTES``, ``STRUCT`` …
        required: Whether every example has the feature (``presence.min_fraction`` is 1).
        shape: Fixed shape of one example's values; None where it is not fixed. A dimension
            without a size is -1.
        value_count: Smallest and largest number of values; None for the largest: unlimited.
        is_nested: Whether values are lists of lists (``value_counts``).
        domain: Restriction of the values.
        tags: The tags of its annotation.
        is_active: Whether TensorFlow Transform reads the feature, by its lifecycle stage.
    """

    name: str
    type: str
    required: bool = True
    shape: tuple[int, ...] | None = None
    value_count: tuple[int, int | None] | None = None
    is_nested: bool = False
    domain: Domain | None = None
    tags: tuple[str, ...] = ()
    is_active: bool = True

    @property
    def kind(self) -> Kind | None:
        """What the values are; None where the type is not ``INT``, ``FLOAT`` or ``BYTES``."""
        return _KINDS.get(self.type)

    @property
    def tag_values(self) -> dict[str, str]:
        """The tags of the form ``NAME=VALUE``; the value of other tags is empty."""
        return dict(tag.partition("=")[::2] for tag in self.tags)


@dataclass(frozen=True)
class Schema:
    """The content of a schema.pbtxt.

    Attributes:
        features: The features, in the order of the text.
        unsupported: Names of the fields with content that is not read, such as ``sparse_feature``.
    """

    features: tuple[SchemaFeature, ...]
    unsupported: tuple[str, ...] = ()


def single_value(
    name: str, kind: Kind, tags: Sequence[str] = (), domain: Domain | None = None
) -> SchemaFeature:
    """Return a feature of which every example has exactly one value."""
    return SchemaFeature(name, TYPES[kind], shape=(1,), tags=tuple(tags), domain=domain)


def class_id_domain(name: str, labels: Sequence[str]) -> Domain:
    """Return the domain of the class ids of labels."""
    return Domain("int_domain", name=name, low=0, high=max(0, len(labels) - 1), is_categorical=True)


def parse_proto(text: str, source: str) -> Any:
    """Return a text as a ``schema_pb2.Schema``.

    Args:
        text: The schema in protobuf's text format.
        source: Name of the text in messages.

    Raises:
        FormatError: The text is not a schema.
    """
    # Loading protobuf takes 25 ms.
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    try:
        return text_format.Parse(text, schema_pb2.Schema())
    except text_format.ParseError as error:
        # The message may repeat the whole line before the problem.
        problem = " ".join(str(error).split(" : ", 1)[-1].rsplit("': ", 1)[-1].split())
        place = f"line {error.GetLine()}, column {error.GetColumn()}: "
        problem = place + problem[:_MAX_PROBLEM].rstrip(".")
    except RecursionError:
        problem = "features are nested too deeply"
    raise FormatError(
        f"{source} is not a schema ({problem}): it must be a tensorflow_metadata Schema in "
        "protobuf text format, such as the schema.pbtxt of a dataset"
    )


def parse_schema_text(text: str, source: str) -> Schema:
    """Return the content of a schema.pbtxt.

    Args:
        text: The schema in protobuf's text format.
        source: Name of the text in messages.

    Raises:
        FormatError: The text is not a schema, or describes a feature twice.
    """
    proto = parse_proto(text, source)
    shared = {
        domain.name: (form, domain) for form in _SHARED_DOMAINS for domain in getattr(proto, form)
    }
    features: dict[str, SchemaFeature] = {}
    for feature in proto.feature:
        if feature.name in features:
            raise FormatError(f"{source} has the feature {feature.name!r} twice: remove one")
        features[feature.name] = _read_feature(feature, shared)
    unsupported = tuple(field for field in _UNSUPPORTED if getattr(proto, field))
    return Schema(tuple(features.values()), unsupported)


def _read_feature(proto: Any, shared: Mapping[str, tuple[str, Any]]) -> SchemaFeature:
    from tensorflow_metadata.proto.v0 import schema_pb2

    stage = schema_pb2.LifecycleStage.Name(proto.lifecycle_stage)
    shape_type = proto.WhichOneof("shape_type")
    shape = value_count = None
    if shape_type == "shape":
        shape = tuple(dim.size if dim.HasField("size") else -1 for dim in proto.shape.dim)
    elif shape_type == "value_count":
        value_count = proto.value_count.min, _optional(proto.value_count, "max")
    return SchemaFeature(
        name=proto.name,
        type=schema_pb2.FeatureType.Name(proto.type),
        required=proto.presence.min_fraction >= 1,
        shape=shape,
        value_count=value_count,
        is_nested=shape_type == "value_counts",
        domain=_read_domain(proto, shared),
        tags=tuple(proto.annotation.tag),
        is_active=not proto.deprecated and stage not in _INACTIVE,
    )


def _read_domain(proto: Any, shared: Mapping[str, tuple[str, Any]]) -> Domain | None:
    form = proto.WhichOneof("domain_info")
    if form is None:
        return None
    domain = getattr(proto, form)
    if form == "domain":
        if domain not in shared:
            return Domain(form, name=domain)
        form, domain = shared[domain]
    if form in ("int_domain", "float_domain"):
        return Domain(
            form,
            domain.name,
            low=_optional(domain, "min"),
            high=_optional(domain, "max"),
            disallow_nan=getattr(domain, "disallow_nan", False),
            disallow_inf=getattr(domain, "disallow_inf", False),
        )
    if form == "string_domain":
        is_enforced = proto.distribution_constraints.min_domain_mass >= 1
        return Domain(form, domain.name, values=tuple(domain.value) if is_enforced else None)
    if form == "bool_domain":
        return Domain(form, domain.name, booleans=(domain.true_value, domain.false_value))
    return Domain(form)


def _optional(proto: Any, field: str) -> Any:
    return getattr(proto, field) if proto.HasField(field) else None


def format_schema_text(features: Iterable[SchemaFeature]) -> str:
    """Return the schema.pbtxt of features, in their order."""
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    schema = schema_pb2.Schema()
    for feature in features:
        proto = schema.feature.add(name=feature.name, type=feature.type)
        proto.presence.min_fraction = float(feature.required)
        if feature.required:
            proto.presence.min_count = 1
        if feature.shape is not None:
            proto.shape.SetInParent()
            for size in feature.shape:
                proto.shape.dim.add(size=size)
        if feature.value_count is not None:
            least, most = feature.value_count
            _write_fields(proto.value_count, {"min": least, "max": most})
        if feature.tags:
            proto.annotation.tag.extend(feature.tags)
        if feature.domain is not None:
            _write_domain(getattr(proto, feature.domain.form), feature.domain)
    return str(text_format.MessageToString(schema, as_utf8=True))


def _write_domain(proto: Any, domain: Domain) -> None:
    proto.SetInParent()
    if domain.values is not None:
        proto.value.extend(domain.values)
    if domain.booleans is not None:
        proto.true_value, proto.false_value = domain.booleans
    fields = {
        "min": domain.low,
        "max": domain.high,
        "is_categorical": domain.is_categorical or None,
    }
    _write_fields(proto, {"name": domain.name or None, **fields})


def _write_fields(proto: Any, values: Mapping[str, Any]) -> None:
    for field, value in values.items():
        if value is not None:
            setattr(proto, field, value)
