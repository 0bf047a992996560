"""What the records of a dataset hold, as its schema.pbtxt says it, without TensorFlow.

Beside what a tensorflow_metadata Schema can say itself, bytes features that are arrays carry
annotation tags, which other readers of the schema skip:

=================== ========================================================================
``encoding=png``    how the bytes hold the array: ``jpeg``, ``png``, or ``raw`` for its values
``dtype=float32``   the NumPy type of the values; raw ones are little-endian, rows first (C order)
``shape=28,28,1``   the shape of one record's array; empty for a single value; left out where it
                    differs from record to record
``channels=3``      of pictures: the last side of the shape
=================== ========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardmill.schemas.errors import FormatError
from shardmill.schemas.schema_pbtxt.image_features import ENCODINGS

Kind = Literal["bytes", "int64", "float32"]
ENCODING_TAG, DTYPE_TAG, SHAPE_TAG, CHANNELS_TAG = "encoding", "dtype", "shape", "channels"
_KINDS: dict[str, Kind] = {"BYTES": "bytes", "INT": "int64", "FLOAT": "float32"}
_SHAPE = re.compile(r"(\d{1,18}(,\d{1,18})*)?", re.ASCII)
_CHANNELS = ("1", "3", "4")
_DTYPE = re.compile(r"[a-z]+\d*", re.ASCII)
_DTYPES = "biufc"  # kinds of numbers that raw bytes may be
# Stages of features that TensorFlow Transform leaves out of a feature spec.
_SKIPPED = ("DEPRECATED", "DISABLED", "PLANNED", "ALPHA", "DEBUG_ONLY", "VALIDATION_DERIVED")


@dataclass(frozen=True)
class FeatureSpec:
    """What one feature of a record is.

    Attributes:
        name: Its name.
        kind: ``bytes``, ``int64`` or ``float32``.
        fixed: Shape of its values where each record has the same number, such as ``(1,)``; None
            where a record may have any number of them.
        single: Whether a record has at most one value: one always where ``fixed`` says so.
        encoding: Of bytes that hold an array: ``jpeg``, ``png`` or ``raw``; else empty.
        dtype: Of such an array: a NumPy type, little-endian; else None.
        shape: Of such an array; None where it differs from record to record.
        channels: Of a picture; else 0.
    """

    name: str
    kind: Kind
    fixed: tuple[int, ...] | None
    single: bool
    encoding: str = ""
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None
    channels: int = 0


def array_tags(
    dtype: np.dtype[Any], shape: Sequence[int] | None, encoding: str = "raw", channels: int = 0
) -> list[str]:
    """Returns the tags of a bytes feature that holds arrays.

    Args:
        dtype: Type of the values.
        shape: Of one record's array; None where it differs from record to record.
        encoding: How the bytes hold it.
        channels: Of pictures.
    """
    tags = [f"{ENCODING_TAG}={encoding}", f"{DTYPE_TAG}={dtype.name}"]
    if shape is not None:
        tags.append(f"{SHAPE_TAG}={','.join(map(str, shape))}")
    return [*tags, f"{CHANNELS_TAG}={channels}"] if channels else tags


def parse_feature_specs(text: str, source: str) -> tuple[FeatureSpec, ...]:
    """Returns the features that a schema.pbtxt describes, sorted by name.

    Args:
        text: The schema.
        source: What messages call it.

    Raises:
        FormatError: It is no schema, or describes an array that cannot be.
    """
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    try:
        schema = text_format.Parse(text, schema_pb2.Schema())
    except (text_format.ParseError, RecursionError) as error:
        problem = " ".join(str(error).split())[:200]
        raise FormatError(f"{source} is no schema ({problem})") from error
    stages = schema_pb2.LifecycleStage
    found = [
        _feature(feature, source)
        for feature in schema.feature
        if not feature.deprecated and stages.Name(feature.lifecycle_stage) not in _SKIPPED
    ]
    return tuple(sorted(found, key=lambda spec: spec.name.encode()))


def _feature(feature: Any, source: str) -> FeatureSpec:
    from tensorflow_metadata.proto.v0 import schema_pb2

    kind = _KINDS.get(schema_pb2.FeatureType.Name(feature.type))
    if kind is None:
        raise FormatError(f"{source} does not say what the feature {feature.name!r} is")
    tags = dict(tag.partition("=")[::2] for tag in feature.annotation.tag)
    fixed = None
    if feature.WhichOneof("shape_type") == "shape" and feature.presence.min_fraction == 1:
        fixed = tuple(dim.size for dim in feature.shape.dim)
    count = feature.value_count
    single = fixed in ((), (1,)) or (fixed is None and count.max == 1)
    encoding, channels = tags.get(ENCODING_TAG, ""), tags.get(CHANNELS_TAG, "0")
    if kind != "bytes" or encoding not in ENCODINGS:  # such tags are somebody else's
        return FeatureSpec(feature.name, kind, fixed, single)
    dtype, shape = _array(tags, f"{source}: the feature {feature.name!r}")
    if encoding == "raw" and dtype is None:
        raise FormatError(f"{source}: the feature {feature.name!r} holds raw values of no dtype")
    return FeatureSpec(
        feature.name, kind, fixed, single, encoding, dtype, shape,
        int(channels) if channels in _CHANNELS else 0,
    )  # fmt: skip


def _array(
    tags: Mapping[str, str], what: str
) -> tuple[np.dtype[Any] | None, tuple[int, ...] | None]:
    if DTYPE_TAG not in tags:
        return None, None
    try:
        if not _DTYPE.fullmatch(tags[DTYPE_TAG]):
            raise TypeError
        dtype = np.dtype(tags[DTYPE_TAG]).newbyteorder("<")
    except TypeError as error:
        raise FormatError(f"{what} has the unknown dtype {tags[DTYPE_TAG]!r}") from error
    if dtype.kind not in _DTYPES or dtype.shape:
        raise FormatError(f"{what} has the dtype {tags[DTYPE_TAG]!r}, which is no number")
    text = tags.get(SHAPE_TAG)
    if text is None:
        return dtype, None
    if not _SHAPE.fullmatch(text):
        raise FormatError(f"{what} has the shape {text!r}: sizes with commas are meant")
    return dtype, tuple(int(size) for size in text.split(",") if size)
