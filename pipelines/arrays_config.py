"""ArraysConfig: every option of the arrays pipeline as one frozen value, checked when made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from shardmill.pipelines.build_config import BuildConfig
from shardmill.schemas.errors import UsageError
from shardmill.transforms.arrays.resolve_input import ArraysQuery


@dataclass(frozen=True)
class ArraysConfig(BuildConfig):
    """Options of ``shardmill arrays``; docs/arrays.md explains each.

    Raises:
        UsageError: A value breaks a rule, or two do not go together.
    """

    not_identity: ClassVar[frozenset[str]] = BuildConfig.not_identity | {"labels"}

    noun: ClassVar[str] = "rows"

    labels: str = ""
    label: str | None = None
    arrays: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Each part checks its own values.
        place = self.place_spec
        _ = self.shard_spec
        if place.splits.mode != "fractions":
            raise UsageError(
                f"--splits={self.splits} is not for arrays, whose rows lie in no folders: use "
                "shares such as train:0.9,validation:0.1."
            )

    @property
    def query(self) -> ArraysQuery:
        """What is looked for."""
        names = tuple(name.strip() for name in self.arrays.split(",")) if self.arrays else ()
        return ArraysQuery(
            self.input, self.root, self.labels, self.label, names, self.absolute_output
        )

    def identity(self) -> dict[str, Any]:
        """Returns the options that decide what is written, and nothing else."""
        return {**super().identity(), "labels": bool(self.labels)}
