"""Decoding of serialized examples to NumPy values according to the schema, without TensorFlow."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from shardmill.loaders.boxes import BOXES, boxes_array
from shardmill.loaders.source import LONG_NAMES, Source
from shardmill.schemas.errors import FormatError, UsageError
from shardmill.schemas.example.parse import FeatureValues, parse_example
from shardmill.schemas.numbers import plural
from shardmill.schemas.schema_pbtxt.feature_spec import FeatureSpec

Fill = Mapping[str, bytes | str | int | float]
IMAGE_ENCODINGS = ("jpeg", "png", "keep")  # JPEG or PNG, as its bytes say
_Reader = Callable[[Any, dict[str, FeatureValues]], Any]  # from a feature's values and all features
_DTYPES: dict[str, type[np.generic]] = {
    "bytes": np.object_,  # NumPy's own bytes type would drop trailing zeros
    "int64": np.int64,
    "float32": np.float32,
}
_INT64_LIMIT = 1 << 63
_ABSENT = FeatureValues("empty", [])


def select_features(source: Source, features: Sequence[str] | None) -> tuple[FeatureSpec, ...]:
    """Returns the specs of the named features, or of all if None.

    Raises:
        UsageError: A name is unknown, two name one feature, or it is not a list of names.
    """
    if features is None:
        return source.specs
    is_list = isinstance(features, Iterable) and not isinstance(features, str)
    names = [*features] if is_list else []
    specs = [source.spec_of(name) for name in names if isinstance(name, str)]
    if not 0 < len(names) == len({spec.name for spec in specs}):
        raise UsageError(
            f"features={features!r:.99} must be a list of different names, as in ['image', "
            "'label']: omit it to read all features."
        )
    return tuple(specs)


def output_names(specs: Sequence[FeatureSpec], features: Sequence[str] | None) -> dict[str, str]:
    """Returns the names of values in an example by feature: the requested ones, or short ones."""
    if features is not None:
        pairs = zip(specs, features, strict=True)
        return {spec.name: BOXES if spec.parts else name for spec, name in pairs}
    long = {spec.name for spec in specs}
    return {name: short for short, name in LONG_NAMES.items() if name in long and short not in long}


def default_values(
    specs: Sequence[FeatureSpec], fill: Fill | None, *, required: bool = True
) -> dict[str, Any]:
    """Returns the value that replaces a missing one, by feature that may be missing.

    The default is NaN for float32 and ``b""`` for bytes. Integers have no such value, so ``fill``
    must have one if a value is ``required``.

    Raises:
        UsageError: ``fill`` lacks a value, has an unknown name or a value of another type.
    """
    if not isinstance(fill, Mapping | None):
        raise UsageError(f"fill={fill!r}: give a value for each feature, as in fill={{'age': -1}}.")
    given = dict(fill or {})
    defaults: dict[str, Any] = {}
    for spec in specs:
        if spec.fixed is not None or not spec.single:
            continue
        if spec.name in given:
            defaults[spec.name] = _convert_fill(spec, given.pop(spec.name))
        elif spec.kind != "int64":
            defaults[spec.name] = b"" if spec.kind == "bytes" else np.float32("nan")
        elif required:
            raise UsageError(
                f"the feature {spec.name!r} may be missing, and integers have no value for that: "
                f"give one, as in fill={{{spec.name!r}: -1}}, or leave it out of features."
            )
    for name in given:
        raise UsageError(
            f"fill names {name!r}, which is not one of the features to read, is never missing, or "
            "has several values."
        )
    return defaults


def _convert_fill(spec: FeatureSpec, value: Any) -> Any:
    if spec.kind == "bytes" and isinstance(value, bytes):
        return value
    if spec.kind == "bytes" and isinstance(value, str):
        return value.encode()
    if spec.kind == "int64" and isinstance(value, int | np.integer):
        if -_INT64_LIMIT <= value < _INT64_LIMIT:
            return np.int64(value)
    elif spec.kind == "float32" and isinstance(value, int | float | np.number):
        return np.float32(value)
    raise UsageError(f"fill={{{spec.name!r}: {value!r}}}: the feature is {spec.kind}.")


@dataclass(frozen=True)
class RecordDecoder:
    """Decodes serialized examples to dicts of values; picklable.

    Attributes:
        specs: The features to decode.
        defaults: The value that replaces a missing one, by feature.
        decode: Whether bytes that hold images or raw arrays become arrays.
        sides: Names of the features with the height and width of images.
        names: Names in the result by feature, where they differ.
        text: Whether bytes that hold no arrays become str.
        classes: Number of classes by feature with class ids that become vectors of 0 and 1.
        channels_first: Whether decoded images have the shape [channels, height, width].
    """

    specs: tuple[FeatureSpec, ...]
    defaults: Mapping[str, Any]
    decode: bool
    sides: tuple[str, str]
    names: Mapping[str, str]
    text: bool = False
    classes: Mapping[str, int] = field(default_factory=dict)
    channels_first: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """Returns the fields, without the readers, which cannot be pickled."""
        return {name: value for name, value in self.__dict__.items() if name != "_readers"}

    @cached_property
    def _readers(self) -> list[tuple[str, str, str, _Reader]]:
        return [
            (
                self.names.get(spec.name, spec.name),
                spec.value or spec.name,
                spec.kind,
                self._reader(spec),
            )
            for spec in self.specs
        ]

    def __call__(self, payload: bytes) -> dict[str, Any]:
        """Returns the values of a serialized example by feature.

        Raises:
            FormatError: It does not match the schema.
        """
        features = parse_example(payload)
        values = {}
        for output, name, kind, read in self._readers:
            feature = features.get(name, _ABSENT)
            if feature.kind != kind and feature.values and not kind.startswith(feature.kind):
                raise FormatError(f"the feature {name!r} is {feature.kind}, not {kind}")
            values[output] = read(feature.values, features)
        return values

    def _reader(self, spec: FeatureSpec) -> _Reader:
        if spec.name in self.classes:
            ids = np.arange(self.classes[spec.name])
            return lambda values, _: np.isin(ids, values).astype(np.float32)
        read = self._value_reader(spec)
        is_image = spec.encoding in IMAGE_ENCODINGS or spec.channels > 0
        if self.channels_first and self.decode and is_image:
            # A view: a DataLoader copies the pixels into the batch anyway.
            return lambda values, features: read(values, features).transpose(2, 0, 1)
        if not self.text or spec.kind != "bytes" or spec.encoding:
            return read
        return lambda values, features: _to_text(spec.name, read(values, features))

    def _value_reader(self, spec: FeatureSpec) -> _Reader:
        name, dtype, shape = spec.name, _DTYPES[spec.kind], spec.fixed
        if spec.parts:
            return lambda _, features: boxes_array(spec, features)
        make = bytes if spec.kind == "bytes" else dtype
        if self.decode and spec.encoding in IMAGE_ENCODINGS:
            channels, kept = spec.channels, spec.encoding == "keep"
            return lambda values, _: decode_image(name, single_value(name, values), channels, kept)
        if self.decode and spec.encoding == "raw":
            return lambda values, features: self._raw_array(
                spec, single_value(name, values), features
            )
        if shape in ((), (1,)):
            if make is bytes:  # which the value is already
                return lambda values, _: single_value(name, values)
            return lambda values, _: make(single_value(name, values))
        if shape is not None:
            return lambda values, _: fixed_array(name, values, dtype, shape)
        if spec.single:
            default = self.defaults[name]
            return lambda values, _: make(single_value(name, values)) if values else default
        if spec.indices:
            return lambda values, features: _dense_array(spec, values, features)
        if spec.inner:
            return lambda values, _: np.array(values, dtype).reshape(-1, *spec.inner)
        return lambda values, _: np.array(values, dtype)

    def _raw_array(self, spec: FeatureSpec, data: bytes, features: dict[str, FeatureValues]) -> Any:
        shape = spec.shape
        if shape is None and all(side in features for side in self.sides):
            height, width = (single_value(side, features[side].values) for side in self.sides)
            shape = (height, width, spec.channels)
        try:
            array = np.frombuffer(data, spec.dtype)
            # A copy is writable and does not keep the record in memory.
            if shape is None:
                return array.copy()
            return array.reshape(shape).copy()
        except ValueError as error:
            expected = "any" if shape is None else shape
            raise FormatError(
                f"the feature {spec.name!r} has {plural(len(data), 'byte')}, which do not fit "
                f"{spec.dtype} of shape {expected}"
            ) from error


def _dense_array(spec: FeatureSpec, values: Any, features: dict[str, FeatureValues]) -> Any:
    """Returns a sparse feature as an array of its size, with 0 or ``b""`` where it has no value.

    Raises:
        FormatError: Indices are missing or out of range.
    """
    sizes = [size for _, size in spec.indices]
    array = np.full(sizes, b"" if spec.kind == "bytes" else 0, _DTYPES[spec.kind])
    indices = [features.get(name, _ABSENT).values for name, _ in spec.indices]
    try:
        array[tuple(np.array(index, np.intp) for index in indices)] = np.array(values, array.dtype)
    except (IndexError, ValueError) as error:
        counts = len(values)
        raise _unfit_values(name=spec.name, values=counts, shape=sizes) from error
    return array


def _to_text(name: str, value: Any) -> Any:
    """Returns bytes, or each of an array of bytes, as str.

    Raises:
        FormatError: It is not UTF-8.
    """
    try:
        if isinstance(value, bytes):
            return value.decode()
        return np.array([encoded.decode() for encoded in value.ravel()], np.object_).reshape(
            value.shape
        )
    except UnicodeDecodeError as error:
        raise FormatError(f"the feature {name!r} is not text: {error}") from error


def single_value(name: str, values: Any) -> Any:
    """Returns the value of a feature that has one.

    Raises:
        FormatError: It has none, or several.
    """
    if len(values) != 1:
        raise FormatError(f"the feature {name!r} has {plural(len(values), 'value')}, not one")
    return values[0]


def fixed_array(name: str, values: Any, dtype: type[np.generic], shape: tuple[int, ...]) -> Any:
    """Returns the values of a feature of fixed shape as an array.

    Raises:
        FormatError: There are too many or too few.
    """
    try:
        return np.array(values, dtype).reshape(shape)
    except ValueError as error:
        raise _unfit_values(name=name, values=len(values), shape=shape) from error


def decode_image(name: str, data: bytes, channels: int, repeat_grey: bool = False) -> Any:
    """Returns the pixels of a JPEG or PNG image, as Pillow: uint8, [height, width, channels].

    Args:
        name: Name of the feature.
        data: The image.
        channels: Number of channels; 0 for any.
        repeat_grey: Whether a grey image may have one of several channels, as in TensorFlow.

    Raises:
        FormatError: Pillow cannot decode it, or it has another number of channels.
    """
    from PIL import Image

    from shardmill.schemas.jpeg import decode_pixels

    pixels: Any = decode_pixels(data)
    if pixels is None:
        try:
            with Image.open(io.BytesIO(data)) as image:
                pixels = np.array(image)
        except Exception as error:  # Pillow's decoders raise many types
            raise FormatError(f"the feature {name!r} is not an image ({error})") from error
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if repeat_grey and pixels.shape[2] == 1:
        pixels = np.repeat(pixels, channels or 1, axis=2)
    if channels and pixels.shape[2] != channels:
        raise FormatError(
            f"the feature {name!r} has {plural(pixels.shape[2], 'channel')}, not {channels}"
        )
    return pixels


def _unfit_values(name: object, values: int, shape: object) -> FormatError:
    return FormatError(
        f"the feature {name!r} has {plural(values, 'value')}, which do not fit the shape {shape}"
    )
