"""Arguments and result of the sink: Encoder, SinkSpec, hooks of a kind of input, Outcome."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.catalog import CatalogRow
from shardmill.schemas.dataset.manifest import Manifest, Split
from shardmill.schemas.errors import OutputError, ShardmillError
from shardmill.schemas.refs import InputRef, Reference, Reject
from shardmill.schemas.storage import join, open_storage
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.match.labels import LabelOrder
from shardmill.transforms.sink.placement import DuplicatesMode, PlaceSpec, ShardSpec
from shardmill.transforms.statistics.sums import Totals

PARTS_FOLDER = "parts"  # in the build folder
SHARDS_FOLDER = "shards"
_reported: dict[str, Outcome] = {}  # by run, of runs whose workers are threads of this process
Status = Literal["published", "up_to_date", "failed", "dry_run", "verified"]


class Example(NamedTuple):
    """One record to write.

    Attributes:
        record: The payload: a serialized tf.train.Example, or other bytes of the encoder.
        labels: Texts of its labels for the counts in the manifest: several, one or none.
        row: Row of the catalog, from which statistics are computed; all records have one, or none.
        taken: Whether it was taken from the published dataset.
    """

    record: bytes
    labels: tuple[str, ...] = ()
    row: CatalogRow | None = None
    taken: bool = False


class Block(NamedTuple):
    """Many records to write at once.

    Attributes:
        frames: The records, framed as in a TFRecord file, one after another.
        lengths: Bytes of each frame; int64, shape [records].
        totals: Counts and sums of these records, and of the records of the blocks that follow it
            as far as their totals lack these sums.
    """

    frames: memoryview
    lengths: npt.NDArray[np.int64]
    totals: Totals


EncoderOutput = Example | Reject | Block
RefT_contra = TypeVar("RefT_contra", bound=Reference, contravariant=True)


class Encoder(Protocol[RefT_contra]):
    """Encodes references as records; a small picklable value that is sent to every worker.

    The same references must give the same records in the same order on every machine, or datasets
    are not reproducible. Inputs that were rejected while matching are never given to it.
    """

    @property
    def packing(self) -> Packing:
        """Compression of the members of a gzip shard."""

    @property
    def expected_bytes(self) -> int | None:
        """Expected bytes of a record; None for as many as its input."""

    def encode(self, refs: Sequence[RefT_contra], labels: Sequence[str]) -> Iterator[EncoderOutput]:
        """Yield the records and rejects of references, in an order that these alone decide.

        Args:
            refs: References of one part in their final order.
            labels: All labels in the order of their class ids.
        """

    def versions(self) -> dict[str, str]:
        """Return the versions of all code that decides the bytes of records."""

    def schema(self, labels: Sequence[str]) -> str:
        """Return the text of ``schema.pbtxt``."""

    def features(self) -> list[dict[str, Any]]:
        """Return the features as the manifest lists them."""


def encode_refs(
    encoder: Encoder[Any], refs: Iterable[Reference], labels: Sequence[str]
) -> Iterator[EncoderOutput]:
    """Yield the records and rejects of references, including inputs rejected while matching.

    Args:
        encoder: Encodes the others.
        refs: References in their final order.
        labels: All labels in the order of their class ids.
    """
    for rejected, group in itertools.groupby(
        refs, lambda ref: isinstance(ref, InputRef) and bool(ref.error)
    ):
        if rejected:
            yield from (ref.to_reject() for ref in group if isinstance(ref, InputRef))
        else:
            yield from encoder.encode(list(group), labels)


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
        input_description: Describes an input in messages, such as ``an image``.
        archives: Suffixes of archives that may hold inputs.
    """

    reports_inputs: bool = True
    inputs: str = "inputs"
    input_description: str = "an input"
    archives: tuple[str, ...] = ()

    def next_step(self, name: str, default: str) -> str:  # noqa: ARG002
        """Return advice for a file that is not of this kind.

        Args:
            name: Name of the file.
            default: The advice if the name gives no hint.
        """
        return default

    def why_none(self, kinds: Iterable[tuple[str, int, str]]) -> str:  # noqa: ARG002
        """Return why an option leaves out all files, or an empty text.

        Args:
            kinds: See ``MatchCounts``.
        """
        return ""

    def remedy(self, reason: str, keys: Sequence[str]) -> str:  # noqa: ARG002
        """Return advice for matching that rejected all inputs, or an empty text.

        Args:
            reason: The most frequent reason.
            keys: Some of the rejected inputs.
        """
        return ""

    def codec_change(self, versions: Mapping[str, str]) -> str:  # noqa: ARG002
        """Describe, as a clause, how a codec that users can choose differs from the dataset's.

        Args:
            versions: Versions of the codecs of the dataset.
        """
        return ""

    def why_not_updated(self, output: str, versions: Mapping[str, str]) -> str:  # noqa: ARG002
        """Return why ``--update`` needs another option, as a sentence, or an empty text.

        Args:
            output: The output folder.
            versions: Versions of the codecs of the dataset.
        """
        return ""

    def unused_options(self, used: Collection[str]) -> Iterator[str]:  # noqa: ARG002
        """Yield a warning for each option of archives that had no effect.

        Args:
            used: Names of those that had one.
        """
        yield from ()

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
        """Return the text of ``schema.pbtxt``, given the encoder's text and the written splits."""
        return text

    def why_unacceptable(self, rejects: Iterator[Reject], rows: int) -> str:  # noqa: ARG002
        """Return why a build must not be published, as a sentence, or an empty text.

        Args:
            rejects: The rejects of the build.
            rows: Number of records and rejected inputs.
        """
        return ""

    def advice(self, rejects: Iterator[Reject]) -> str:  # noqa: ARG002
        """Return advice for a build with too many rejected inputs, as a sentence.

        Args:
            rejects: The rejects of the build.

        Returns:
            The sentence; empty for examples of the most frequent reasons, and ``remedy``.
        """
        return ""


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
        label_order: Order of the class ids of labels that were collected.
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
        duplicates: How inputs of the same content are handled.
        compares: Whether the inputs are compared with a published dataset that has catalogs.
        warnings: Warnings for the manifest that are known before the build.
        source_id: Identity of a Python source, whose temporary copies are the inputs.
        check: Raises a ``LimitError`` if a finished build must not be published, given the output,
            the folder of the shards and their manifest; picklable.
    """

    output: str
    config_id: str
    place: PlaceSpec
    shards: ShardSpec
    compression: Literal["gzip", "none"] = "gzip"
    labels: tuple[str, ...] | None = None
    label_order: LabelOrder = "text"
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
    check: Callable[[str, str, Manifest], None] | None = None

    def packing(self, gzip_packing: Packing) -> Packing:
        """Return the packing of members, given the encoder's packing for gzip shards."""
        if self.compression == "gzip":
            return gzip_packing
        return "none"

    @property
    def kept_root(self) -> str:
        """Folder that keys are relative to; empty if it will be deleted."""
        if self.source_id:
            return ""
        return self.root

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


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        status: ``published``, ``up_to_date``, ``failed``, ``dry_run`` or ``verified``.
        message: One sentence for a person when nothing was published.
        parts_made: Number of parts that this run made.
        parts_reused: Number of finished parts that it reused.
        matched: Number of inputs matched now; the manifest's number may be older.
        skipped: Number of files that were skipped by their names.
        duplicates: Number of inputs that repeat another, as far as they were not read.
        series: For a dry run: split, label, references, input bytes and parts of each series.
        manifest: Text of the published manifest; another builder may replace the file before the
            caller reads it.
        reused: Number of records that were taken from the published dataset.
        changes: For a dry run: changes since the published dataset, a line for each kind; for
            ``verified``: the findings, each as JSON.
        labels: For a dry run: all labels, where they are known before the build.
        findings: Why the dataset is beyond a limit; see ``LimitError``.
    """

    status: Status
    message: str = ""
    parts_made: int = 0
    parts_reused: int = 0
    matched: int = 0
    skipped: int = 0
    duplicates: int = 0
    series: tuple[tuple[str, str, int, int, int], ...] = ()
    manifest: str = ""
    reused: int = 0
    changes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    findings: tuple[dict[str, Any], ...] = ()

    def check(self) -> Outcome:
        """Return the outcome unless it is a failure.

        Raises:
            ShardmillError: The run failed; the message says why.
        """
        if self.status == "failed":
            raise ShardmillError(self.message)
        return self


def report(outcome: Outcome, run_id: str, pid: int, folder: str) -> Outcome:
    """Hand an outcome to the process that started the run; return the outcome.

    Args:
        outcome: The outcome.
        run_id: Identity of the run.
        pid: Process that started the run; 0 if the runner works on other machines. Beam's
            in-memory runner may work in child processes
            (``--direct_running_mode=multi_processing``).
        folder: Folder of the small file that another process writes; empty for no file.
    """
    if pid == os.getpid():
        _reported[run_id] = outcome
    elif folder:
        text = json.dumps(asdict(outcome)).encode()
        open_storage(folder).replace(outcome_path(folder, run_id), text)
    return outcome


def take_reported(run_id: str, folder: str) -> Outcome | None:
    """Return the outcome that this process reported, or another one by a file, and forget it."""
    if run_id in _reported:
        return _reported.pop(run_id)
    storage = open_storage(folder)
    path = outcome_path(folder, run_id)
    try:
        body = json.loads(storage.read(path))
    except FileNotFoundError:
        return None
    storage.delete(path)
    body["series"] = tuple(tuple(row) for row in body["series"])
    body["findings"] = tuple(body["findings"])
    return Outcome(**body)


def outcome_path(folder: str, run_id: str) -> str:
    """Return the path of the file with the outcome of a run."""
    return join(folder, f"{shard_names.OUTCOME_PREFIX}{run_id}.json")


def delete_unused_build(outcome: Outcome, spec: SinkSpec) -> Outcome:
    """Return an outcome; if the dataset is up to date, delete the build folder."""
    if outcome.status == "up_to_date":
        open_storage(spec.output).delete_tree(spec.build)
    return outcome


def damaged_part(path: object) -> OutputError:
    """Return the error for a damaged part of a build."""
    return OutputError(f"{path} is damaged: run again.")
