"""SinkSpec: the output and the options of a build."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.storage import join
from shardmill.transforms.sink.division import ShardSpec
from shardmill.transforms.sink.hooks import BuildHooks
from shardmill.transforms.sink.placement import DuplicatesMode, PlaceSpec

PARTS_FOLDER = "parts"  # in the build folder
SHARDS_FOLDER = "shards"


@dataclass(frozen=True)
class SinkSpec:
    """Output and options of a build; a small picklable value that is sent to every worker.

    Attributes:
        output: Folder of the dataset, absolute.
        config_id: Identity of all options that decide bytes.
        place: How references are assigned to splits and positions.
        shards: Number and names of shards.
        compression: ``gzip`` or ``none``.
        labels: Labels that were given, or None to collect them.
        max_reject_fraction: Largest share of rejected inputs; one reject is always allowed.
        update: Whether a dataset of other inputs or options may be replaced.
        overwrite: Whether to build from scratch, also of a dataset that is up to date.
        keep: Number of earlier generations to keep.
        dry_run: Plan only, write nothing.
        root: Folder that keys are relative to.
        config: Options as the manifest shows them (an allow-list).
        command: Command line that builds the dataset again.
        runner: Name of the runner.
        hooks: Adapts the build to the kind of input.
        record_id: Identity of the options and codecs that decide the features of a record, for the
            catalog; not of seed, splits, labels and shards.
        duplicates: What is done with inputs of the same content.
        compares: Whether the inputs are compared with a published dataset that has catalogs.
        warnings: Warnings for the manifest that are known before the build.
    """

    output: str
    config_id: str
    place: PlaceSpec
    shards: ShardSpec
    compression: Literal["gzip", "none"] = "gzip"
    labels: tuple[str, ...] | None = None
    max_reject_fraction: float = 0.05
    update: bool | Literal["content"] = False
    overwrite: bool = False
    keep: int = 1
    dry_run: bool = False
    root: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    runner: str = ""
    hooks: BuildHooks = field(default_factory=BuildHooks)
    record_id: str = ""
    duplicates: DuplicatesMode = "keep"
    compares: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def build_name(self) -> str:
        """Name of the build folder in the output."""
        return shard_names.BUILD_PREFIX + self.config_id

    @property
    def build(self) -> str:
        """Path of the build folder."""
        return join(self.output, self.build_name)

    @property
    def parts(self) -> str:
        """Path of the folder of parts."""
        return join(self.build, PARTS_FOLDER)
