"""From a record's bytes to NumPy values, as the schema says what they are. No TensorFlow."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardmill.loaders.source import Source
from shardmill.schemas.errors import UsageError
from shardmill.schemas.example.parse import ExampleError, Feature, parse_example
from shardmill.schemas.schema_pbtxt.feature_spec import FeatureSpec

Fill = Mapping[str, bytes | int | float]
_DTYPES: dict[str, type[np.generic]] = {"int64": np.int64, "float32": np.float32}
_KINDS = {"float": "float32"}
_MOST = 1 << 63
_ABSENT = Feature("empty", [])
PICTURES = ("jpeg", "png")


class MisfitError(Exception):
    """A record does not hold what the schema says; the message names the feature."""


def chosen(source: Source, features: Sequence[str] | None) -> tuple[FeatureSpec, ...]:
    """Returns the features to read: those that are named, or all.

    Raises:
        UsageError: One is unknown, or none is named.
    """
    if features is None:
        return source.specs
    if isinstance(features, str):
        raise UsageError(f"features={features!r} is a text: give a list, as in [{features!r}].")
    if not features:
        raise UsageError("no feature is named: leave features away to read all of them.")
    return tuple(source.spec_of(name) for name in features)


def fill_of(specs: Sequence[FeatureSpec], fill: Fill | None) -> dict[str, Any]:
    """Returns what stands for the missing value of each feature that may be missing.

    NaN for float32 and no bytes for bytes, unless ``fill`` says otherwise; integers have no such
    value, so one must be given.

    Raises:
        UsageError: A value is missing, unknown, or of another kind than its feature.
    """
    given = dict(fill or {})
    found: dict[str, Any] = {}
    for spec in specs:
        if spec.fixed is not None or not spec.single:
            continue
        if spec.name in given:
            found[spec.name] = _checked(spec, given.pop(spec.name))
        elif spec.kind == "int64":
            raise UsageError(
                f"the feature {spec.name!r} may be missing, and no integer means that by itself: "
                f"give one, as in fill={{{spec.name!r}: -1}}, or leave it out of features."
            )
        else:
            found[spec.name] = b"" if spec.kind == "bytes" else np.float32("nan")
    for name in given:
        if all(spec.name != name for spec in specs):
            raise UsageError(f"fill names {name!r}, which is none of the features that are read.")
        raise UsageError(f"fill names {name!r}, which is never a single missing value.")
    return found


def _checked(spec: FeatureSpec, value: Any) -> Any:
    if spec.kind == "bytes" and isinstance(value, bytes):
        return value
    if spec.kind == "bytes" and isinstance(value, str):
        return value.encode()
    if spec.kind == "int64" and isinstance(value, int | np.integer) and -_MOST <= value < _MOST:
        return np.int64(value)
    if spec.kind == "float32" and isinstance(value, int | float | np.number):
        return np.float32(value)
    raise UsageError(f"fill={{{spec.name!r}: {value!r}}}: the feature is {spec.kind}.")


@dataclass(frozen=True)
class Decoder:
    """Turns payloads into dicts of values; a small picklable value.

    Attributes:
        specs: The features that are wanted.
        fill: What stands for a missing value, by feature.
        decode: Whether bytes that hold arrays become arrays.
        sides: Names of the features that hold height and width of pictures.
    """

    specs: tuple[FeatureSpec, ...]
    fill: Mapping[str, Any]
    decode: bool
    sides: tuple[str, str]

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the readers behind: functions that are made where they are used."""
        return {name: value for name, value in self.__dict__.items() if name != "_readers"}

    @cached_property
    def _readers(self) -> list[tuple[str, str, Callable[[Any, dict[str, Feature]], Any]]]:
        return [(spec.name, spec.kind, self._reader(spec)) for spec in self.specs]

    def __call__(self, payload: bytes) -> dict[str, Any]:
        """Returns the values of a record by feature.

        Raises:
            MisfitError: It does not hold what the schema says.
        """
        try:
            features = parse_example(payload)
        except ExampleError as error:
            raise MisfitError(str(error)) from error
        found = {}
        for name, kind, read in self._readers:
            feature = features.get(name, _ABSENT)
            if feature.kind != kind and _KINDS.get(feature.kind) != kind and feature.values:
                raise MisfitError(f"the feature {name!r} is {feature.kind} and not {kind}")
            found[name] = read(feature.values, features)
        return found

    def _reader(self, spec: FeatureSpec) -> Callable[[Any, dict[str, Feature]], Any]:
        name = spec.name
        if self.decode and spec.encoding in PICTURES:
            return lambda values, _: picture(name, one(name, values), spec.channels)
        if self.decode and spec.encoding == "raw":
            return lambda values, features: self._raw(spec, one(name, values), features)
        if spec.kind == "bytes":
            if spec.fixed in ((), (1,)):
                return lambda values, _: one(name, values)
            if spec.fixed is not None:
                texts = spec.fixed
                return lambda values, _: shaped(name, values, np.object_, texts)
            if spec.single:
                missing = self.fill[name]
                return lambda values, _: one(name, values) if values else missing
            return lambda values, _: np.array(values, object)
        dtype = _DTYPES[spec.kind]
        if spec.fixed in ((), (1,)):
            return lambda values, _: dtype(one(name, values))
        if spec.fixed is not None:
            shape = spec.fixed
            return lambda values, _: shaped(name, values, dtype, shape)
        if spec.single:
            missing = self.fill[name]
            return lambda values, _: dtype(one(name, values)) if values else missing
        return lambda values, _: np.array(values, dtype)

    def _raw(self, spec: FeatureSpec, data: bytes, features: dict[str, Feature]) -> Any:
        shape = spec.shape
        if shape is None and all(side in features for side in self.sides):
            sides = [one(side, features[side].values) for side in self.sides]
            shape = (sides[0], sides[1], spec.channels)
        try:
            array = np.frombuffer(data, spec.dtype)
            # Copied: whoever takes it may write to it, and the record need not be kept.
            return array.copy() if shape is None else array.reshape(shape).copy()
        except ValueError as error:
            raise MisfitError(
                f"the feature {spec.name!r} has {len(data):,} bytes, which are no "
                f"{spec.dtype} of shape {'any' if shape is None else shape}"
            ) from error


def one(name: str, values: Any) -> Any:
    """Returns the one value of a feature.

    Raises:
        MisfitError: It has none, or several.
    """
    if len(values) != 1:
        raise MisfitError(f"the feature {name!r} has {len(values)} values and not one")
    return values[0]


def shaped(name: str, values: Any, dtype: type[np.generic], shape: tuple[int, ...]) -> Any:
    """Returns the values of a feature of fixed shape.

    Raises:
        MisfitError: They are too many or too few.
    """
    try:
        return np.array(values, dtype).reshape(shape)
    except ValueError as error:
        raise MisfitError(
            f"the feature {name!r} has {len(values)} values, which are none of shape {shape}"
        ) from error


def picture(name: str, data: bytes, channels: int) -> Any:
    """Returns the pixels of a JPEG or PNG: uint8, height x width x channels.

    Raises:
        MisfitError: It cannot be decoded.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            pixels = np.array(image)
    except Exception as error:  # Pillow's decoders raise many types
        raise MisfitError(f"the feature {name!r} is no picture ({error})") from error
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if channels and pixels.shape[2] != channels:
        raise MisfitError(f"the feature {name!r} has {pixels.shape[2]} channels and not {channels}")
    return pixels
