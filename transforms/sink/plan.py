"""The plan of a build, made from the census of its inputs and the published dataset."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.dataset_files import read_dataset_file
from shardmill.schemas.dataset.manifest import Manifest, Shard
from shardmill.schemas.dataset.shard_names import check_file_names
from shardmill.schemas.errors import FormatError, OutputError, ShardmillError
from shardmill.schemas.numbers import plural
from shardmill.schemas.refs import TRANSIENT, InputRef
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.match.containers.expand import expand
from shardmill.transforms.match.labels import sort_labels, warn_of_order, warn_of_spellings
from shardmill.transforms.publish.generation import (
    describe_other_dataset,
    find_changed_options,
    open_output,
    why_not_up_to_date,
)
from shardmill.transforms.sink.census import Census, compare_files, input_warnings, why_unusable
from shardmill.transforms.sink.placement import REJECTED, Series, plan_parts
from shardmill.transforms.sink.spec import SinkSpec

MAX_PARTS = 1 << 21  # of a build; each is a file with a sidecar
_GROUP_INPUTS = 1 << 14  # under one key of a shuffle: some MB, which any worker can hold
CanUse: TypeAlias = Callable[[InputRef], bool]
Status = Literal["build", "up_to_date", "failed", "dry_run"]


@dataclass(frozen=True)
class Plan:
    """The plan of a build; a small side input of every later step.

    Attributes:
        status: Whether to build; otherwise ``message`` gives the reason.
        message: One sentence for the user.
        parts: Number of parts in each series.
        labels: Labels in the order of their class ids.
        input_id: Identity of the inputs.
        default_parts: Number of parts in a series that is not in ``parts``: where the split is a
            column of the records.
        warnings: Warnings for the manifest.
        published: The published shards that are compared with the inputs, or none.
        published_folder: Folder of the published files.
        published_root: Folder that the keys of the published dataset are relative to.
        changes: Changes since the published dataset, a line for each kind.
        base: Version of the manifest that is published, or empty.
        ctime_id: Identity of the ctimes of the inputs.
        content_id: Published content that the inputs are compared with, or empty.
        groups: Number of groups in which inputs are compared with each other and with published
            ones: joining few large groups costs less than joining single inputs.
        held: The published version, if a rollback held it; else empty.
    """

    status: Status
    message: str = ""
    parts: dict[Series, int] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    input_id: str = ""
    default_parts: int = 0
    warnings: tuple[str, ...] = ()
    published: tuple[Shard, ...] = ()
    published_folder: str = ""
    published_root: str = ""
    changes: tuple[str, ...] = ()
    base: str = ""
    ctime_id: str = ""
    content_id: str = ""
    groups: int = 1
    held: str = ""

    @property
    def read_id(self) -> str:
        """Identity of the inputs and their ctimes: if it is equal, none is read again."""
        return self.input_id + self.ctime_id

    def parts_of(self, series: Series) -> int:
        """Return the number of parts in a series."""
        return self.parts.get(series, self.default_parts)

    def group_of(self, identity: str) -> int:
        """Return the number of the group of a key or hash."""
        return zlib.crc32(identity.encode()) % self.groups

    def start(self, spec: SinkSpec) -> Plan:
        """Return the plan of a build that starts, or of its dry run."""
        if spec.dry_run:
            return replace(self, status="dry_run", message="\n".join(self.warnings))
        if self.held:
            return self.fail(spec, "")
        return replace(self, status="build", message="")

    def fail(self, spec: SinkSpec, message: str) -> Plan:
        """Return the plan of a build that does not replace the published dataset, and why."""
        if self.held:
            message = (
                f"{spec.output} is held at {self.held} by a rollback, and builds do not replace "
                f"it: correct the input, then run `shardmill rollback {spec.output} --release` and "
                "this command again."
            )
        return replace(self, status="failed", message=message)


def can_read(ref: InputRef) -> bool:
    """Return whether the first byte of an input can be read."""
    with open_storage(ref.uri).open_at(ref.uri) as reader:
        return bool(reader.read_at(0, 1))


def make_plan(
    spec: SinkSpec, expected_bytes: int | None, census: Census, can_use: CanUse = can_read
) -> Plan:
    """Return the plan for the matched inputs, after checking the output.

    Args:
        spec: Output and options of the build.
        expected_bytes: Expected bytes of a record, or None for the size of its input.
        census: Census of all references.
        can_use: See ``decide_status``.
    """
    problem = why_unusable(census, spec.hooks, spec.input or spec.root)
    if problem and (spec.dry_run or not census.is_rejected):
        return Plan("failed", problem)
    labels = spec.labels
    warnings = (*spec.warnings, *input_warnings(census, spec.hooks))
    if labels is None:
        labels = sort_labels(census.labels, spec.label_order)
        warnings += tuple(warn_of_spellings(labels))
        if spec.label_order == "text":
            warnings += tuple(warn_of_order(labels))
    parts = plan_parts(census.series, expected_bytes, spec.shards)
    pattern = spec.place.group_pattern
    if pattern and not census.grouped:
        warnings += (f"--group_pattern={pattern} groups nothing: each input is alone",)
    plan = Plan(
        "build",
        "",
        parts,
        labels,
        census.input_id,
        warnings=warnings,
        ctime_id=census.ctime_id,
        groups=1 + census.refs // _GROUP_INPUTS,
    )
    if census.is_rejected:  # the build fails too, after it has listed all rejects in a file
        spec = replace(spec, overwrite=True)
    return decide_status(spec, plan, can_use)


def decide_status(
    spec: SinkSpec, plan: Plan, can_use: CanUse = can_read, files: Mapping[str, str] = {}
) -> Plan:
    """Return the plan with its status, decided by the published dataset; writes nothing.

    Args:
        spec: Output and options of the build.
        plan: The plan of a build from scratch.
        can_use: Returns whether an input with a transient reject can be used now.
        files: Identity of each file by its key, where the manifest lists them.
    """
    storage = open_storage(spec.output)
    if spec.source_id:
        plan = replace(plan, input_id=spec.source_id, ctime_id="")
    try:
        _check_parts(spec, plan)
        published = open_output(storage, spec.output)
    except OutputError as error:
        return Plan("failed", str(error))
    old = published.manifest
    held = old.generation if old is not None and old.held else ""
    plan = replace(plan, base=published.version, held=held)
    if old is None or spec.overwrite:
        return plan.start(spec)
    other_codec = spec.hooks.why_not_updated(spec.output, old.build.versions)
    if spec.update and other_codec:
        return replace(plan, status="failed", message=other_codec)
    codec = spec.hooks.codec_change(old.build.versions)
    options = (*filter(None, [codec]), *find_changed_options(old, spec.config))
    changes = compare_files(old.build.files, files)
    summary = f"files: {changes}" if changes.counts else ""
    problem = why_not_up_to_date(
        storage, spec.output, old, spec.config_id, plan.input_id, options, summary
    )
    problem = problem or find_usable(spec.output, old, can_use)
    moved = bool(old.catalogs) and old.inputs.root != spec.kept_root
    decoded = []
    if old.catalogs and old.build.record_id != spec.record_id:
        decoded = ["options or codecs that decide the records: all inputs are decoded"]
    shards = old.shards if old.catalogs else ()
    compared = replace(
        plan,
        published=shards,
        published_folder=old.folder(spec.output),
        published_root=old.inputs.root,
        changes=(*options, *changes.lines(), *decoded),
        content_id=old.build.content_id,
        groups=plan.groups + old.inputs.matched // _GROUP_INPUTS,
    )
    if not problem and not (moved and spec.update):
        # Equal sizes and times prove nothing where a ctime differs, or by request.
        if old.build.ctime_id != plan.ctime_id or spec.update == "content":
            plan = compared
        message = f"{spec.output} is up to date."
        return replace(plan, status="up_to_date", message=message)
    if spec.record_id and (spec.update or old.build.input_id != plan.input_id):
        plan = compared
    elif not spec.record_id:
        plan = replace(plan, changes=compared.changes)
    return plan.start(spec) if spec.update else plan.fail(spec, problem)


def compare_content(plan: Plan, contents: Iterable[Census], spec: SinkSpec) -> Plan:
    """Return the plan, changed if the content of tables differs from the published dataset.

    Args:
        plan: The plan, by sizes and times.
        contents: The content of each input, if the plan asks for it.
        spec: Output and options of the build.
    """
    census = Census()
    for file_census in contents:
        census.merge(file_census)
    if not plan.content_id or plan.content_id == census.content_id:
        return plan
    if spec.update and not census.counts.fatal:
        return plan.start(spec)
    changed = "an input of equal size and modification time has other content"
    message = describe_other_dataset(output=spec.output, changed=changed)
    return plan.fail(spec, census.counts.fatal or message)


def _check_parts(spec: SinkSpec, plan: Plan) -> None:
    """Check the number of parts, and the longest name that a shard of each series can have.

    Raises:
        OutputError: There are too many parts, or a name cannot be a file's.
    """
    total = sum(plan.parts.values())
    if total > MAX_PARTS:
        raise OutputError(
            f"The build would have {plural(total, 'part')}, more than {MAX_PARTS:,}: raise "
            "--shard_bytes or --shard_examples, ask for fewer shards, or divide the input."
        )
    names = []
    for (split, label), parts in plan.parts.items():
        if (split, label) != REJECTED:
            shards = spec.shards.num_shards or parts
            names.append(spec.shards.template.format(split, shards - 1, shards, 10**9, label))
    check_file_names(names)


def find_usable(output: str, published: Manifest, can_use: CanUse) -> str:
    """Return why a dataset is not up to date, or an empty text if its transient rejects stay.

    An input that was missing, unreadable or changing is rejected in one build only: the next run
    looks at exactly these inputs again.

    Args:
        output: The output folder.
        published: The published dataset.
        can_use: Returns whether an input can be used now.
    """
    counted = published.inputs.rejected_by_reason
    if not TRANSIENT & counted.keys():
        return ""
    try:
        path = join(published.folder(output), shard_names.REJECTS)
        lines = read_dataset_file(path).splitlines()
        rejects = [json.loads(line) for line in lines]
        transient = [
            (reject["key"], reject["uri"]) for reject in rejects if reject["error"] in TRANSIENT
        ]
        listed = Counter(reject["error"] for reject in rejects)
        if any(listed[error] != counted.get(error, 0) for error in TRANSIENT):
            raise ValueError("lines are missing")
    except (FormatError, ValueError, TypeError, KeyError):
        return "rejects.jsonl is damaged: add --overwrite to build the dataset again."
    usable = [key for key, uri in transient if _is_usable(key, uri, can_use)]
    if not usable:
        return ""
    return (
        f"{len(usable):,} of the {len(transient):,} inputs that could not be read when {output} "
        f"was built can be read now, such as {usable[0]!r}: add --update to publish a new version."
    )


def _is_usable(key: str, uri: str, can_use: CanUse) -> bool:
    try:
        path, entry = uri, open_storage(uri).stat(uri)
        while entry is None and "/" in path.split("://")[-1].strip("/"):
            path = path.rpartition("/")[0]  # of a member, the archive
            entry = open_storage(path).stat(path)
        if entry is None or entry.kind != "file":
            return False
        ref = InputRef(key, uri, entry.size, entry.version)
        if path == uri:
            return can_use(ref)
        members = expand(ref._replace(key="", uri=path, ctime=entry.ctime))
        candidates = (
            member for member in members if isinstance(member, InputRef) and member.uri == uri
        )
        return any(can_use(member) for member in candidates if not member.error)
    except (ShardmillError, OSError):
        return False
