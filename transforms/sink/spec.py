"""SinkSpec: the output and the options of a build, and the hooks of a kind of input."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Split
from shardmill.schemas.rejects import Reject
from shardmill.schemas.storage import join
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.sink.division import ShardSpec
from shardmill.transforms.sink.placement import DuplicatesMode, PlaceSpec

PARTS_FOLDER = "parts"  # in the build folder
SHARDS_FOLDER = "shards"


class ExtraFiles(NamedTuple):
    """Files that are published next to the shards, and a schema instead of the encoder's.

    Attributes:
        files: Finished files: final name to path in the build folder.
        schema: Text of ``schema.pbtxt``; empty for the encoder's.
        features: Features as the manifest lists them; empty for the encoder's.
    """

    files: Mapping[str, str] = {}
    schema: str = ""
    features: Sequence[dict[str, Any]] = ()


class BuildHooks:
    """Adapts a build to one kind of input; a small picklable value. The base class adapts nothing.

    Attributes:
        reports_inputs: Whether the sink counts each input of a part in the progress of the run.
        inputs: Word for inputs in messages.
        wanted: What the names of inputs say that they are, for messages.
        archives: Suffixes of archives that may hold inputs.
    """

    reports_inputs: bool = True
    inputs: str = "inputs"
    wanted: str = "an input"
    archives: tuple[str, ...] = ()

    def next_step(self, name: str, default: str) -> str:  # noqa: ARG002
        """Return what to do with a file that is not of this kind.

        Args:
            name: Name of the file.
            default: What to return if the name does not say.
        """
        return default

    def remedy(self, reason: str, keys: Sequence[str]) -> str:  # noqa: ARG002
        """Return what to change if matching rejected all inputs, or nothing.

        Args:
            reason: The most frequent reason.
            keys: Some of the rejected inputs.
        """
        return ""

    def input_warnings(self, labels: Collection[str], usable: int) -> Iterator[str]:  # noqa: ARG002
        """Yield warnings about the matched inputs.

        Args:
            labels: Labels of the inputs.
            usable: Number of inputs that were not rejected.
        """
        yield from ()

    def labels(
        self,
        counted: Collection[str],
        features: Sequence[dict[str, Any]],  # noqa: ARG002
    ) -> tuple[str, ...] | None:
        """Return the labels in the order of their class ids, where they are known from records.

        None if they are too many to be listed and counted.

        Args:
            counted: Labels of the records.
            features: Features of the records, as the manifest lists them.
        """
        return tuple(sorted(counted, key=str.encode))

    def extra_files(self, build: str, input_id: str) -> ExtraFiles:  # noqa: ARG002
        """Return the files that are published next to the shards.

        Args:
            build: The build folder.
            input_id: Identity of the inputs and of their ctimes.
        """
        return ExtraFiles()

    def schema(self, text: str, splits: Mapping[str, Split]) -> str:  # noqa: ARG002
        """Return the text of ``schema.pbtxt``, given that of the encoder and the written splits."""
        return text

    def why_unacceptable(self, rejects: Iterator[Reject], rows: int) -> str:  # noqa: ARG002
        """Return why a build with these rejects must not be published, as a sentence, or nothing.

        Args:
            rejects: The rejects of the build.
            rows: Number of records and rejected inputs.
        """
        return ""

    def advice(self, rejects: Iterator[Reject]) -> str:
        """Return what to change when too many inputs were rejected, as a sentence, or nothing."""
        first = next(rejects, None)
        return "" if first is None else self.next_step(first.key, "")


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
        input: The input as the user named it, for messages; or empty.
        config: Options as the manifest shows them (an allow-list).
        command: Command line that builds the dataset again.
        runner: Name of the runner.
        hooks: Adapts the build to the kind of input.
        record_id: Identity of the options and codecs that decide the features of a record, for the
            catalog; not of seed, splits, labels and shards.
        duplicates: What is done with inputs of the same content.
        compares: Whether the inputs are compared with a published dataset that has catalogs.
        warnings: Warnings for the manifest that are known before the build.
        source_id: Identity of a Python source, of which the inputs are temporary copies.
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
    input: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    runner: str = ""
    hooks: BuildHooks = field(default_factory=BuildHooks)
    record_id: str = ""
    duplicates: DuplicatesMode = "keep"
    compares: bool = False
    warnings: tuple[str, ...] = ()
    source_id: str = ""

    def packing(self, wanted: Packing) -> Packing:
        """Return how members are packed, given how the encoder packs those of gzip shards."""
        return wanted if self.compression == "gzip" else "none"

    @property
    def kept_root(self) -> str:
        """Folder that keys are relative to; empty if it will be deleted."""
        return "" if self.source_id else self.root

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

    @property
    def runs(self) -> str:
        """Path of the folder of runs."""
        return join(self.build, "runs")
