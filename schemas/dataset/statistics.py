"""Statistics: what a trainer wants to know of the values of a split, as the manifest has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_NUMERIC = ("min", "max", "mean", "std")
_ODD = ("nan", "infinite")


@dataclass(frozen=True)
class PixelStatistics:
    """The pixels of the written images, channel by channel, in units of 0 to 255.

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
    """The values of one feature.

    ``min``, ``max``, ``mean`` and ``std`` are those of the finite values, and None where there is
    none.

    Attributes:
        count: Number of values, also of those that are not finite.
        missing: Records without a value.
        min: Least value; an int where the feature holds integers.
        max: Greatest value.
        mean: Mean.
        std: Population standard deviation.
        nan: Values that are no numbers.
        infinite: Values that are infinite.
        numeric: Whether the values are numbers; of bytes only ``count`` and ``missing`` are known.
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
        """Returns the object of the manifest; values that are not finite only if there are any."""
        names = ["count", "missing", *(_NUMERIC if self.numeric else ())]
        names += [name for name in _ODD if getattr(self, name)]
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> FeatureStatistics:
        """Returns what an object of the manifest says."""
        return cls(**body, numeric="mean" in body)


@dataclass(frozen=True)
class Statistics:
    """What is known of the values of a split.

    Attributes:
        pixels: Of its images; None where there are none.
        features: By name of the feature, sorted.
    """

    pixels: PixelStatistics | None = None
    features: dict[str, FeatureStatistics] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the object of the manifest, without what is not known."""
        body: dict[str, Any] = {}
        if self.pixels is not None:
            values = self.pixels
            body["pixels"] = {
                "count": values.count, "mean": list(values.mean), "std": list(values.std),
            }  # fmt: skip
        if self.features:
            body["features"] = {name: each.to_json() for name, each in self.features.items()}
        return body

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Statistics:
        """Returns what an object of the manifest says."""
        pixels = body.get("pixels")
        return cls(
            None
            if pixels is None
            else PixelStatistics(pixels["count"], tuple(pixels["mean"]), tuple(pixels["std"])),
            {
                name: FeatureStatistics.from_json(each)
                for name, each in body.get("features", {}).items()
            },
        )
