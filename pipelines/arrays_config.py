"""ArraysConfig: every option of the arrays pipeline as one frozen value, checked when made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardmill.pipelines.build_config import BuildConfig
from shardmill.pipelines.dataset_options import ArraysOptions
from shardmill.schemas.errors import UsageError
from shardmill.transforms.sources.arrays.resolve_input import ArraysQuery


@dataclass(kw_only=True)
class ArraysConfig(ArraysOptions, BuildConfig):
    """``ArraysOptions``, checked.

    Raises:
        UsageError: A value breaks a rule, or two values conflict.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.sources) > 1:
            raise UsageError("arrays-several-inputs")
        if self.place_spec.splits.mode != "fractions" or self.place_spec.splits.named:
            raise UsageError("splits-of-arrays", splits=self.splits)

    @property
    def query(self) -> ArraysQuery:
        """Where the arrays are, and which to read."""
        names = tuple(name.strip() for name in self.arrays)
        return ArraysQuery(self.source, self.root, self.labels, self.label, names)

    def identity(self) -> dict[str, Any]:
        """Return the options that decide the content of the dataset."""
        return {**super().identity(), "labels": bool(self.labels)}
