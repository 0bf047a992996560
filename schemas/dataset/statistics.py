"""Statistics of the values of a split, as the manifest lists them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

_NUMERIC = ("min", "max", "mean", "std")
_OPTIONAL = ("nan", "infinite")


@dataclass(frozen=True)
class PixelStatistics:
    """Statistics of the pixels of the written images, from 0 to 255.

    Attributes:
        count: Number of pixels.
        mean: Mean of each channel.
        std: Population standard deviation of each channel.
    """

    count: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class FeatureStatistics:
    """Statistics of the values of one feature.

    ``min``, ``max``, ``mean`` and ``std`` describe the finite values and are None if there is none.

    Attributes:
        count: Number of values, including NaN and infinite ones.
        missing: Number of records without a value.
        min: Smallest value; an int if the feature has integers.
        max: Largest value.
        mean: Mean.
        std: Population standard deviation.
        nan: Number of NaN values.
        infinite: Number of infinite values.
        numeric: Whether the values are numbers; bytes have only ``count`` and ``missing``.
    """

    count: int
    missing: int
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    nan: int = 0
    infinite: int = 0
    numeric: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object; ``nan`` and ``infinite`` are omitted if they are 0."""
        names = ["count", "missing"]
        if self.numeric:
            names += _NUMERIC
        names += [name for name in _OPTIONAL if getattr(self, name)]
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Statistics:
    """Statistics of a split.

    Attributes:
        pixels: Statistics of the pixels; None if the records are not images.
        features: Statistics of each feature, sorted by name.
    """

    pixels: PixelStatistics | None = None
    features: dict[str, FeatureStatistics] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object; unknown statistics are omitted."""
        body: dict[str, Any] = {}
        if self.pixels is not None:
            body["pixels"] = asdict(self.pixels)
        if self.features:
            body["features"] = {name: feature.to_json() for name, feature in self.features.items()}
        return body

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Statistics:
        """Return the statistics of a JSON object."""
        pixels = body.get("pixels")
        if pixels is not None:
            pixels = PixelStatistics(pixels["count"], tuple(pixels["mean"]), tuple(pixels["std"]))
        features = {
            name: FeatureStatistics(**feature, numeric="mean" in feature)
            for name, feature in body.get("features", {}).items()
        }
        return cls(pixels, features)
