"""Specs of the features of a dataset's records, from its schema.pbtxt and without TensorFlow.

A tensorflow_metadata Schema cannot describe arrays that are stored as bytes. Such features have
annotation tags, which other readers of the schema ignore:

=================== ========================================================================
``encoding=png``    the encoding of the array: ``jpeg``, ``png``, ``keep`` for either of them as the
                    bytes say, or ``raw`` for its values
``dtype=float32``   the NumPy type of the values; raw values are little-endian and in C order
``shape=28,28,1``   the shape of one record's array; empty for a scalar; omitted where it differs
                    from record to record
``channels=3``      of images: the last dimension of the shape
=================== ========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardmill.schemas.errors import FormatError
from shardmill.schemas.schema_pbtxt import schema_text
from shardmill.schemas.schema_pbtxt.image_features import ENCODINGS
from shardmill.schemas.schema_pbtxt.schema_text import (
    CHANNELS_TAG,
    DTYPE_TAG,
    ENCODING_TAG,
    SHAPE_TAG,
    Kind,
)

_SHAPE = re.compile(r"(\d{1,18}(,\d{1,18})*)?", re.ASCII)
_CHANNELS = ("1", "3", "4")
_DTYPE_KINDS = "biufc"  # numpy.dtype.kind of booleans and numbers


@dataclass(frozen=True)
class FeatureSpec:
    """The values of one feature.

    Attributes:
        name: Name of the feature.
        kind: ``bytes``, ``int64`` or ``float32``.
        fixed: Shape of the values where every record has the same number, such as ``(1,)``; None
            where the number varies.
        single: Whether a record has at most one value.
        encoding: For bytes that hold an array: one of ``ENCODINGS``; else empty.
        dtype: Little-endian type of the array's values; None for other features.
        shape: Shape of the array; None where it differs from record to record.
        channels: Channels of an image; 0 for other features.
        value: Name in the records of the values of a sparse or ragged feature; else empty.
        indices: Names in the records of the indices of a sparse feature, and the size of each axis.
        inner: Shape of each value of a ragged feature.
        is_sorted: Whether the indices of a sparse feature are sorted.
        parts: Names in the records of the features that a feature of loaders is made of.
    """

    name: str
    kind: Kind
    fixed: tuple[int, ...] | None
    single: bool
    encoding: str = ""
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None
    channels: int = 0
    value: str = ""
    indices: tuple[tuple[str, int], ...] = ()
    inner: tuple[int, ...] = ()
    is_sorted: bool = False
    parts: tuple[str, ...] = ()


def parse_feature_specs(text: str, source: str) -> tuple[FeatureSpec, ...]:
    """Return the active features of a schema.pbtxt, in its order.

    The features in the records that hold a sparse or ragged feature of TensorFlow Transform are one
    feature, which has its name.

    Args:
        text: The text of the schema.
        source: Name of the schema in messages.

    Raises:
        FormatError: The text is not a schema, or the tags of an array are invalid.
    """
    proto = schema_text.parse_schema_text(text, source)
    features = filter(schema_text.is_active, proto.feature)
    specs = {feature.name: parse_feature_spec(feature, source) for feature in features}
    for spec in [*_sparse_specs(proto, specs), *_ragged_specs(proto, specs)]:
        for name in (spec.value, *(name for name, _ in spec.indices)):
            specs.pop(name, None)
        specs[spec.name] = spec
    return tuple(specs.values())


def _sparse_specs(proto: Any, specs: Mapping[str, FeatureSpec]) -> Iterator[FeatureSpec]:
    """Yield the sparse features of known size whose value and indices are all in the records."""
    sizes = {feature.name: feature.int_domain.max + 1 for feature in proto.feature}
    for sparse in filter(schema_text.is_active, proto.sparse_feature):
        indices = tuple((index.name, sizes.get(index.name, 0)) for index in sparse.index_feature)
        value = specs.get(sparse.value_feature.name)
        if value and all(name in specs and size > 1 for name, size in indices):
            yield FeatureSpec(
                sparse.name,
                value.kind,
                None,
                False,
                value=value.name,
                indices=indices,
                is_sorted=sparse.is_sorted,
            )


def _ragged_specs(proto: Any, specs: Mapping[str, FeatureSpec]) -> Iterator[FeatureSpec]:
    """Yield the ragged features of lists of values of one shape."""
    for group in proto.tensor_representation_group.values():
        for name, form in group.tensor_representation.items():
            ragged = form.ragged_tensor
            value = specs.get("/".join(ragged.feature_path.step))
            inner = tuple(dimension.uniform_row_length for dimension in ragged.partition)
            if value and all(inner):
                yield FeatureSpec(name, value.kind, None, False, value=value.name, inner=inner)


def parse_feature_spec(feature: Any, source: str) -> FeatureSpec:
    """Return the spec of one feature; raise FormatError if the tags of an array are invalid."""
    name, kind = feature.name, schema_text.kind_of(feature)
    if kind is None:
        raise FormatError(f"{source} does not give the feature {name!r} a type")
    sizes = schema_text.shape_of(feature)
    has_sizes = sizes is not None and -1 not in sizes
    fixed = sizes if has_sizes and schema_text.is_required(feature) else None
    single = fixed in ((), (1,)) or (fixed is None and feature.value_count.max == 1)
    tags = schema_text.tags_of(feature)
    encoding, channels = tags.get(ENCODING_TAG, ""), tags.get(CHANNELS_TAG, "0")
    if kind != "bytes" or encoding not in ENCODINGS:  # tags of another program
        return FeatureSpec(name, kind, fixed, single)
    dtype, shape = _array(tags, f"{source}: the feature {name!r}")
    if encoding == "raw" and dtype is None:
        raise FormatError(f"{source}: the feature {name!r} holds raw values without a dtype")
    depth = int(channels) if channels in _CHANNELS else 0
    return FeatureSpec(name, kind, fixed, single, encoding, dtype, shape, depth)


def _array(
    tags: Mapping[str, str], what: str
) -> tuple[np.dtype[Any] | None, tuple[int, ...] | None]:
    if DTYPE_TAG not in tags:
        return None, None
    scalar = np.sctypeDict.get(tags[DTYPE_TAG])
    if scalar is None:
        raise FormatError(f"{what} has the unknown dtype {tags[DTYPE_TAG]!r}")
    dtype = np.dtype(scalar).newbyteorder("<")
    if dtype.kind not in _DTYPE_KINDS:
        raise FormatError(f"{what} has the dtype {tags[DTYPE_TAG]!r}, which is not numeric")
    text = tags.get(SHAPE_TAG)
    if text is None:
        return dtype, None
    if not _SHAPE.fullmatch(text):
        raise FormatError(f"{what} has the shape {text!r}: it must be sizes separated by commas")
    return dtype, tuple(int(size) for size in text.split(",") if size)
