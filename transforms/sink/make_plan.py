"""Make the plan of a build: from the census of its inputs and what is published at the output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.shard_names import ShardName, check_file_names
from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.match.labels import sort_labels
from shardmill.transforms.publish.generation import (
    find_changed_options,
    open_output,
    why_not_up_to_date,
)
from shardmill.transforms.sink.census import Census, input_warnings, why_unusable
from shardmill.transforms.sink.compare import Changes
from shardmill.transforms.sink.placement import REJECTED
from shardmill.transforms.sink.planning import Plan, plan_parts, why_too_many_parts
from shardmill.transforms.sink.reexamine import CanUse, can_read, find_usable
from shardmill.transforms.sink.reuse import PublishedShard, list_shards
from shardmill.transforms.sink.spec import SinkSpec


def make_plan(
    spec: SinkSpec, expected_bytes: int | None, census: Census, can_use: CanUse = can_read
) -> Plan:
    """Return the plan for the matched inputs, after checking the output.

    Args:
        spec: Output and options of the build.
        expected_bytes: Expected bytes of a record, or None for the size of its input.
        census: Census of all references.
        can_use: See ``adjust_plan``.
    """
    problem = why_unusable(census, spec.hooks, spec.root)
    if problem:
        return Plan("failed", problem)
    labels = sort_labels(census.labels) if spec.labels is None else spec.labels
    parts = plan_parts(census.series, expected_bytes, spec.shards)
    warnings = (*spec.warnings, *input_warnings(census, spec.hooks))
    ctimes = f"{census.ctimes:032x}"
    plan = Plan("build", "", parts, labels, census.input_id, warnings=warnings, ctime_id=ctimes)
    return adjust_plan(spec, plan, can_use)


def adjust_plan(spec: SinkSpec, plan: Plan, can_use: CanUse = can_read) -> Plan:
    """Return the plan, adjusted for what is published at the output.

    Args:
        spec: Output and options of the build.
        plan: The plan of a build from scratch.
        can_use: Returns whether an input with a transient reject can be used now.
    """
    problem = why_too_many_parts(plan)
    if problem:
        return Plan("failed", problem)
    storage = open_storage(spec.output)
    try:
        check_file_names(_largest_names(spec, plan))
        published = open_output(storage, spec.output)
    except OutputError as error:
        return Plan("failed", str(error))
    plan, old = replace(plan, base=published.version), published.manifest
    if old is not None and not spec.overwrite:
        changed = find_changed_options(old, spec.config)
        problem = why_not_up_to_date(
            storage, spec.output, old, spec.config_id, plan.input_id, changed
        )
        problem = problem or find_usable(storage, spec.output, old, can_use)
        moved = bool(old.catalogs) and old.inputs.root != spec.root
        compared = replace(
            plan, published=_published(spec, old), published_root=old.inputs.root,
            changes=(*changed, *_all_decoded(spec, old)),
        )  # fmt: skip
        if not problem and not (moved and spec.update):
            look = old.build.ctime_id != plan.ctime_id or spec.update == "content"
            message = f"{spec.output} is up to date."
            return replace(compared if look else plan, status="up_to_date", message=message)
        if spec.record_id and (spec.update or old.build.input_id != plan.input_id):
            plan = compared
        if not spec.update:
            return replace(plan, status="failed", message=problem)
    if spec.dry_run:
        return replace(plan, status="dry_run", message="\n".join(plan.warnings))
    return plan


def _published(spec: SinkSpec, old: Manifest) -> tuple[PublishedShard, ...]:
    """Return what is compared with the inputs; nothing if the dataset has no catalogs."""
    shards = list_shards(old, spec.output)
    rejects = join(old.folder(spec.output), shard_names.REJECTS)
    return (*shards, PublishedShard(rejects)) if shards else ()


def _all_decoded(spec: SinkSpec, old: Manifest) -> tuple[str, ...]:
    """Return why no published record can be reused, as a line, or nothing."""
    if not old.catalogs or old.build.record_id == spec.record_id:
        return ()
    return ("options or codecs that decide the records: all inputs are decoded",)


def add_changes(plan: Plan, changes: Changes, spec: SinkSpec) -> Plan:
    """Return a plan that says what changed since the published dataset.

    A dataset that seemed up to date is not, where inputs of which only the ctime differed have
    other contents.
    """
    if not changes.counts:
        return plan
    if plan.status == "up_to_date" and spec.update:
        plan = replace(plan, status="build", message="")
        if spec.dry_run:
            plan = replace(plan, status="dry_run", message="\n".join(plan.warnings))
    elif plan.status in ("failed", "up_to_date"):
        message = (
            f"The inputs of {spec.output} have changed since it was built "
            f"({'; '.join([*plan.changes, str(changes)])}): run again with "
            "--update to publish a new version, or choose another --output."
        )
        plan = replace(plan, status="failed", message=message)
    return replace(plan, changes=(*plan.changes, *changes.lines()))


def _largest_names(spec: SinkSpec, plan: Plan) -> Iterator[str]:
    """Yield the longest name that a shard of each series can have."""
    for series, parts in plan.parts.items():
        if series != REJECTED:
            shards = spec.shards.num_shards or parts
            name = ShardName(series.split, shards - 1, shards, 10**9, series.label)
            yield spec.shards.template.format(name)
