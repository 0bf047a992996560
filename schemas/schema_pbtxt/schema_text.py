"""The parser and the writer of schema.pbtxt, a ``tensorflow_metadata.proto.v0.Schema`` as text.

No other module uses protobuf's text format. Importing this one does not load protobuf. The parser
returns features as protobuf messages; the writer takes them as dicts with the field names of
schema.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from shardmill.schemas.errors import FormatError

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["int64", "float32", "bytes"]
ENCODING_TAG, DTYPE_TAG, SHAPE_TAG, CHANNELS_TAG = "encoding", "dtype", "shape", "channels"
_KINDS: dict[str, Kind] = {"INT": "int64", "FLOAT": "float32", "BYTES": "bytes"}
TYPES: dict[Kind, str] = {kind: name for name, kind in _KINDS.items()}
# Lifecycle stages of features that TensorFlow Transform omits from a feature spec.
_INACTIVE = ("DEPRECATED", "DISABLED", "PLANNED", "ALPHA", "DEBUG_ONLY", "VALIDATION_DERIVED")
_SHARED_DOMAINS = ("int_domain", "float_domain", "string_domain")
_MAX_PROBLEM = 200


def feature_fields(
    name: str,
    kind: Kind,
    tags: Sequence[str] = (),
    *,
    required: bool = True,
    several: bool = False,
) -> dict[str, Any]:
    """Return a feature to write.

    Args:
        name: Name of the feature.
        kind: Type of the values.
        tags: The tags of its annotation.
        required: Whether every example has the feature.
        several: Whether an example may have any number of values, not one.
    """
    presence = {"min_fraction": 0.0}
    if required:
        presence = {"min_fraction": 1.0, "min_count": 1}
    fields = {"name": name, "type": TYPES[kind], "presence": presence}
    if required and not several:
        fields["shape"] = {"dim": [{"size": 1}]}
    elif several:
        fields["value_count"] = {"min": 0}
    else:
        fields["value_count"] = {"min": 1, "max": 1}
    if tags:
        return {**fields, "annotation": {"tag": tags}}
    return fields


def array_tags(
    dtype: np.dtype[Any], shape: Sequence[int] | None, encoding: str = "raw", channels: int = 0
) -> list[str]:
    """Return the annotation tags of a bytes feature that holds arrays.

    Args:
        dtype: Type of the values.
        shape: Shape of one record's array; None where it differs from record to record.
        encoding: One of ``ENCODINGS``.
        channels: Channels of an image; 0 for other arrays.
    """
    tags = [f"{ENCODING_TAG}={encoding}", f"{DTYPE_TAG}={dtype.name}"]
    if shape is not None:
        tags.append(f"{SHAPE_TAG}={','.join(map(str, shape))}")
    if channels:
        return [*tags, f"{CHANNELS_TAG}={channels}"]
    return tags


def class_id_domain(name: str, labels: Sequence[str]) -> dict[str, Any]:
    """Return the field that restricts a feature to the class ids of labels."""
    last = max(0, len(labels) - 1)
    return {"int_domain": {"name": name, "min": 0, "max": last, "is_categorical": True}}


def format_schema_text(features: Iterable[dict[str, Any]]) -> str:
    """Return the schema.pbtxt of features, in their order."""
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    schema = schema_pb2.Schema(feature=list(features))
    return str(text_format.MessageToString(schema, as_utf8=True))


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


def parse_schema_text(text: str, source: str) -> Any:
    """Return a text as a ``schema_pb2.Schema`` whose features have their domains in them.

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
    names = set()
    for feature in proto.feature:
        if feature.name in names:
            raise FormatError(f"{source} has the feature {feature.name!r} twice: remove one")
        names.add(feature.name)
        if feature.HasField("domain") and feature.domain in shared:
            form, domain = shared[feature.domain]
            getattr(feature, form).CopyFrom(domain)
    return proto


def type_of(feature: Any) -> str:
    """Return the name of a feature's type: ``INT``, ``FLOAT``, ``BYTES``, ``STRUCT`` and others."""
    from tensorflow_metadata.proto.v0 import schema_pb2

    return str(schema_pb2.FeatureType.Name(feature.type))


def kind_of(feature: Any) -> Kind | None:
    """Return the type of a feature's values; None if it is not INT, FLOAT or BYTES."""
    return _KINDS.get(type_of(feature))


def is_active(feature: Any) -> bool:
    """Return whether TensorFlow Transform reads a feature, by its lifecycle stage."""
    from tensorflow_metadata.proto.v0 import schema_pb2

    stage = schema_pb2.LifecycleStage.Name(feature.lifecycle_stage)
    return not feature.deprecated and stage not in _INACTIVE


def is_required(feature: Any) -> bool:
    """Return whether every example has a feature."""
    return bool(feature.presence.min_fraction >= 1)


def shape_of(feature: Any) -> tuple[int, ...] | None:
    """Return the shape of one example's values; None if it is not fixed.

    A dimension without a size is -1.
    """
    if not feature.HasField("shape"):
        return None
    return tuple(dim.size if dim.HasField("size") else -1 for dim in feature.shape.dim)


def tags_of(feature: Any) -> dict[str, str]:
    """Return the tags of the form ``NAME=VALUE``; the value of other tags is empty."""
    return dict(tag.partition("=")[::2] for tag in feature.annotation.tag)


def bounds_of(feature: Any) -> dict[str, float | int]:
    """Return the bounds of a feature's domain that are given, by ``min`` and ``max``."""
    domain = getattr(feature, feature.WhichOneof("domain_info"))
    return {name: getattr(domain, name) for name in ("min", "max") if domain.HasField(name)}


def texts_of(feature: Any) -> tuple[str, ...] | None:
    """Return the texts of a feature's ``string_domain``; None if other values are allowed too."""
    enforced = feature.distribution_constraints.min_domain_mass >= 1
    if enforced:
        return tuple(feature.string_domain.value)
    return None
