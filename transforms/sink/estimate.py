"""Estimate the size and the duration of a build from a sample of its records."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from shardmill.schemas.rejects import Reject
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.runtime.process_pool import usable_cores
from shardmill.transforms.sink.division import count_shards
from shardmill.transforms.sink.encoder import Block, Example, Item
from shardmill.transforms.sink.outcome import Outcome
from shardmill.transforms.sink.record_writer import MemberWriter
from shardmill.transforms.sink.spec import SinkSpec

_MAX_SECONDS = 2.0  # of encoding a sample


@dataclass(frozen=True)
class BuildSample:
    """Some of the inputs of a build, and how they become records.

    Attributes:
        encode: Encodes the inputs, as the build does.
        inputs: Number of all inputs; a record or reject of ``encode`` is one.
        workers: Processes or threads among which a build divides what ``encode`` does in one.
        packing: How the encoder packs members of gzip shards.
    """

    encode: Callable[[], Iterable[Item]]
    inputs: float
    workers: int = 1
    packing: Packing = "deflated"


def add_estimate(
    outcome: Outcome, spec: SinkSpec, take: Callable[..., BuildSample], *options: Any
) -> Outcome:
    """Return the outcome of a dry run with an estimate of the build; any other outcome unchanged.

    Args:
        outcome: The outcome.
        spec: Output and options of the build.
        take: Takes the sample of an outcome that is a dry run's.
        options: Further arguments of ``take``.
    """
    if outcome.status != "dry_run":
        return outcome
    sample, started, cores = take(outcome, *options), time.monotonic(), usable_cores()
    writer = MemberWriter(io.BytesIO(), spec.packing(sample.packing))
    shards, records, rejects = spec.shards, 0, list[Reject]()
    for item in sample.encode():
        if isinstance(item, Block):
            writer.add_frames(item.frames, item.lengths)
            records += len(item.lengths)
        elif isinstance(item, Example):
            writer.add(item.record)
            records += 1
        else:
            rejects.append(item)
        if time.monotonic() - started > _MAX_SECONDS:
            break
    writer.close()
    inputs = records + len(rejects)
    if rejects:
        shown = f"such as {rejects[0].key} ({rejects[0].error})"
        warning = f"{len(rejects):,} of {inputs:,} sampled inputs would be rejected, {shown}"
        outcome = replace(outcome, message=f"{outcome.message}\n{warning}".strip())
    if not records:
        return outcome
    share = min(1.0, inputs / sample.inputs)
    seconds = (time.monotonic() - started) / share / min(sample.workers, cores)
    size, records = round(writer.num_bytes / share), round(records / share)
    weights = [num_bytes or parts for _, _, _, num_bytes, parts in outcome.series]
    parts = [Fraction(weight, sum(weights)) for weight in weights]
    number = sum(
        shards.num_shards or count_shards(shards, int(part * records), int(part * size), most)
        for part, (*_, most) in zip(parts, outcome.series, strict=True)
    )
    found = {"num_bytes": size, "num_shards": number, "seconds": seconds, "cores": cores}
    return replace(outcome, estimate=found)
