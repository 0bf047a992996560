"""What a run says in the end: plain text, the same on a terminal and in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from shardmill.pipelines.report.numbers import human_bytes
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.shard_names import MANIFEST, REJECTS
from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage import join

if TYPE_CHECKING:
    from shardmill.transforms.build.outcome import Outcome


def lines(outcome: Outcome, output: str, seconds: float, noun: str = "images") -> Iterator[str]:
    """Yields what a run says in the end.

    Args:
        outcome: What came of it.
        output: Folder of the dataset.
        seconds: How long it took.
        noun: What inputs are called.

    Raises:
        OutputError: The run failed.
    """
    if outcome.status == "failed":
        raise OutputError(outcome.message)
    if outcome.status == "dry_run":
        yield from planned(outcome, output, noun)
    elif outcome.status == "up_to_date":
        yield f"{output} is up to date: nothing was written."
    else:
        yield from published(outcome, output, seconds, noun)


def published(outcome: Outcome, output: str, seconds: float, noun: str) -> Iterator[str]:
    """Yields the lines of a run that published a dataset."""
    manifest = Manifest.from_json(outcome.manifest)
    inputs = manifest.inputs
    rejected = f"{inputs.rejected:,}"
    if inputs.rejected:
        reasons = (f"{name} {count:,}" for name, count in inputs.rejected_by_reason.items())
        rejected += f" ({', '.join(reasons)}), see {join(output, REJECTS)}"
    yield f"Published {output}"
    skipped = f", {inputs.skipped:,} skipped" if inputs.skipped else ""
    matched = "files" if noun == "images" else noun
    yield f"  matched    {inputs.matched:,} {matched}{skipped}"
    if inputs.duplicates:
        yield f"  duplicates {inputs.duplicates:,}"
    yield f"  written    {manifest.written:,} examples"
    yield f"  rejected   {rejected}"
    for name, split in manifest.splits.items():
        shards = counted(len(split.shards), "shard")
        size = human_bytes(split.num_bytes)
        yield f"  {name:<10} {split.num_examples:,} examples, {shards}, {size}"
    found = f", {outcome.parts_reused:,} found from before" if outcome.parts_reused else ""
    yield f"  parts      {outcome.parts_made:,} made{found}"
    kept, examples = outcome.reused
    if kept:
        yield f"  shards     {len(manifest.files) - kept:,} made, {kept:,} kept"
    speed = (manifest.written - examples) / max(seconds, 1e-9)
    yield f"  time       {seconds:,.1f} s, {speed:,.0f} {noun}/s"
    for warning in manifest.warnings:
        yield f"  warning    {warning}"
    yield f"  manifest   {join(output, MANIFEST)}"
    yield "Next:"
    full = next((name for name in manifest.splits if manifest.splits[name].num_examples), "train")
    yield f"  shardmill steps {join(output, MANIFEST)} --split={full} --batch_size=32"


def planned(outcome: Outcome, output: str, noun: str) -> Iterator[str]:
    """Yields the lines of a dry run."""
    yield f"Dry run: {output} would get"
    for split, label, refs, size, parts in outcome.series:
        name = f"{split}, {label}" if label else split
        # How many rows there are is not known.
        made_of = f"{refs:,} images ({human_bytes(size)} of files) in " if noun == "images" else ""
        work = counted(parts, "part") if parts else "shards that stay"
        yield f"  {name:<20} {made_of}{work}"
    yield f"  matched {counted(outcome.matched, 'file')}; nothing was written."


def counted(number: int, noun: str) -> str:
    """Returns a number of things, the noun in its right form."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_counters(counters: Mapping[str, int | tuple[int, int, int, int]]) -> None:
    """Print Beam's counters of a run to standard error, one per line.

    Args:
        counters: By name; distributions as (count, sum, min, max).
    """
    for name, value in sorted(counters.items()):
        number = value if isinstance(value, int) else "count {} sum {} min {} max {}".format(*value)
        print(f"counter {name}: {number}", file=sys.stderr)
