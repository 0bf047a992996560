"""WriteArrays: arrays go in, a published dataset comes out.

An array can be read at any place, and hashes of row numbers alone tell which rows a part has. So
the ref of a part stands for all its rows, and nothing but such refs is placed and grouped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from shardmill.schemas.errors import InputError
from shardmill.schemas.refs import ArrayRef, InputRef
from shardmill.transforms.arrays.array_file import check_stored
from shardmill.transforms.arrays.encoder import ArrayEncoder
from shardmill.transforms.build.census import Census
from shardmill.transforms.build.finalize import SinkSpec
from shardmill.transforms.build.outcome import Outcome
from shardmill.transforms.build.placement import PartKey, Placed, PlacedRef, Series
from shardmill.transforms.build.planning import PART_BYTES, Plan, ShardSpec
from shardmill.transforms.build.transform import (
    BuildInput,
    BuildShards,
    announce,
    settle_plan,
)

_MAX_PARTS = 1 << 16
_MODULUS = 1 << 128


@dataclass(frozen=True)
class ArraysSpec:
    """All that arrays need; a small picklable value that travels to every worker.

    Attributes:
        sink: What is written, and where.
        encoder: How rows become records.
        files: A ref for each file of the input.
        warnings: What the manifest should say.
    """

    sink: SinkSpec
    encoder: ArrayEncoder
    files: tuple[InputRef, ...]
    warnings: tuple[str, ...] = ()

    @property
    def input_id(self) -> str:
        """Identity of the inputs as 32 hexadecimal digits."""
        return f"{sum(ref.digest() for ref in self.files) % _MODULUS:032x}"


@dataclass(eq=False)
class WriteArrays(beam.PTransform):
    """Writes arrays as a published dataset: ``pipeline | WriteArrays(spec)``; one ``Outcome``.

    Args:
        spec: What is written, where, and how.
    """

    spec: ArraysSpec

    def expand(self, root: beam.Pipeline | beam.pvalue.PBegin) -> beam.PCollection[Outcome]:
        """Wires plan, placement and the sink."""
        spec = self.spec
        start = root | "Start" >> beam.Create([0])
        plan = start | "PlanParts" >> beam.Map(lambda _: announced(spec)).with_output_types(Plan)
        census = start | "CountRows" >> beam.Map(lambda _: count_rows(spec)).with_output_types(
            Census
        )
        placed = start | "PlaceParts" >> beam.FlatMap(
            lambda _, plan: place_parts(spec, plan), plan=AsSingleton(plan)
        ).with_output_types(Placed)
        return BuildInput(placed, plan, census).of() | BuildShards(spec.sink, spec.encoder)


def announced(spec: ArraysSpec) -> Plan:
    """Returns the plan, and tells whoever watches how much there is to do."""
    plan = plan_arrays(spec)
    watched = announce(spec.sink, plan)
    if watched is not None:
        placing = spec.encoder.placing
        watched.begin("encoding", placing.rows * (spec.encoder.expected_bytes or 0))
    return plan


def plan_arrays(spec: ArraysSpec) -> Plan:
    """Returns what is to be done with the arrays, looking at the output first."""
    placing, label = spec.encoder.placing, spec.encoder.label
    parts = {
        Series(name, ""): number
        for (name, _), number in zip(placing.shares, placing.parts, strict=True)
        if number
    }
    labels = label.texts if label else ()
    plan = Plan("build", "", parts, labels, spec.input_id, warnings=spec.warnings)
    plan = settle_plan(spec.sink, plan)
    if plan.status == "build":
        try:
            for array in (*spec.encoder.arrays, *((label.array,) if label else ())):
                check_stored(array)
        except InputError as error:
            return Plan("failed", str(error))
    return plan


def count_array_parts(rows: int, share: Fraction, row_bytes: int, shards: ShardSpec) -> int:
    """Returns how many parts a share of the rows becomes; none where the share is 0.

    A power of two (times the number of shards, where that is given), so that a few more rows rarely
    change it. Where the shards' size is given, at least 4 parts a shard of uncompressed records.

    Args:
        rows: All of them.
        share: Of the split.
        row_bytes: Bytes of one.
        shards: What shards are wanted.
    """
    if not share:
        return 0
    mine = share * rows
    needed = [mine * row_bytes / PART_BYTES]
    if shards.shard_examples is not None:
        needed.append(4 * mine / shards.shard_examples)
    elif shards.num_shards is None:
        needed.append(4 * mine * row_bytes / shards.shard_bytes)
    parts = shards.num_shards or 1
    while parts < max(needed) and parts < _MAX_PARTS:
        parts *= 2
    return parts


def count_rows(spec: ArraysSpec) -> Census:
    """Returns the census: every row is matched, and none refused; in a dry run files are told."""
    files = spec.sink.dry_run
    matched = len(spec.files) if files else spec.encoder.placing.rows
    return Census(matched=matched, identity=int(spec.input_id, 16))


def place_parts(spec: ArraysSpec, plan: Plan) -> Iterator[Placed]:
    """Yields one ref for each part of a build."""
    if plan.status != "build":
        return
    key = spec.encoder.placing.key
    for series, parts in plan.parts.items():
        for part in range(parts):
            ref = ArrayRef(key, plan.input_id, series.split, part, parts)
            yield PartKey(*series, part), PlacedRef(part.to_bytes(8, "big"), ref)


__all__ = ["ArraysSpec", "WriteArrays", "count_array_parts", "place_parts", "plan_arrays"]
