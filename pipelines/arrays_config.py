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
        _ = self.shard_spec  # its parser checks values
        if len(self.sources) > 1:
            raise UsageError(
                "--input can name one file or folder of arrays: put the arrays into one folder."
            )
        if self.place_spec.splits.mode != "fractions" or self.place_spec.splits.named:
            raise UsageError(
                f"--splits={self.splits} does not work for arrays, whose rows have no folders: use "
                "shares such as train:0.9,validation:0.1."
            )

    @property
    def query(self) -> ArraysQuery:
        """Where the arrays are, and which to read."""
        names = tuple(name.strip() for name in self.arrays)
        return ArraysQuery(self.source, self.root, self.labels, self.label, names)

    def identity(self) -> dict[str, Any]:
        """Return the options that decide the content of the dataset."""
        return {**super().identity(), "labels": bool(self.labels)}
