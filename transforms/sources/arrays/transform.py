"""WriteArrays: write arrays as a published dataset.

The rows of a part are computed from hashes of row numbers (``row_index``) and can be read in any
order, so that one reference points to all rows of a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from shardmill.schemas.errors import InputError
from shardmill.schemas.refs import ArrayRef, InputRef
from shardmill.transforms.sink.census import Census
from shardmill.transforms.sink.make_plan import adjust_plan
from shardmill.transforms.sink.outcome import Outcome
from shardmill.transforms.sink.placement import PartKey, Placed, PlacedRef, Series
from shardmill.transforms.sink.planning import Plan
from shardmill.transforms.sink.spec import SinkSpec
from shardmill.transforms.sink.transform import (
    BuildInput,
    BuildShards,
    announce,
)
from shardmill.transforms.sources.arrays.array_file import check_stored
from shardmill.transforms.sources.arrays.encoder import ArrayEncoder

_MODULUS = 1 << 128


@dataclass(frozen=True)
class ArraysSpec:
    """The parameters of ``WriteArrays``; a small picklable value.

    Attributes:
        sink: Options of the output.
        encoder: Encodes the rows.
        files: A reference to each file of the input.
        warnings: Warnings for the manifest.
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
        spec: Arrays, encoding and output.
    """

    spec: ArraysSpec

    def expand(self, root: beam.Pipeline | beam.pvalue.PBegin) -> beam.PCollection[Outcome]:
        """Wire the plan, the placement and the sink."""
        spec = self.spec
        start = root | "Start" >> beam.Impulse()
        plan = start | "PlanParts" >> beam.Map(lambda _: start_plan(spec)).with_output_types(Plan)
        census = start | "CountRows" >> beam.Map(lambda _: count_rows(spec)).with_output_types(
            Census
        )
        placed = start | "PlaceParts" >> beam.FlatMap(
            lambda _, plan: place_parts(spec, plan), plan=AsSingleton(plan)
        ).with_output_types(Placed)
        return BuildInput(placed, plan, census) | BuildShards(spec.sink, spec.encoder)


def start_plan(spec: ArraysSpec) -> Plan:
    """Return the plan, and report its size as progress."""
    plan = plan_arrays(spec)
    size = spec.encoder.placement.rows * (spec.encoder.expected_bytes or 0)
    announce(spec.sink, plan, "encoding", size)
    return plan


def plan_arrays(spec: ArraysSpec) -> Plan:
    """Return the plan of a build, adjusted for what is already published.

    Compares the checksums of stored .npz members first, if there is anything to build.
    """
    placement, label = spec.encoder.placement, spec.encoder.label
    parts = {
        Series(name, ""): count
        for (name, _), count in zip(placement.shares, placement.parts, strict=True)
        if count
    }
    labels = label.texts if label else ()
    plan = Plan("build", "", parts, labels, spec.input_id, warnings=spec.warnings)
    plan = adjust_plan(spec.sink, plan)
    if plan.status == "build":
        try:
            for array in (*spec.encoder.arrays, *((label.array,) if label else ())):
                check_stored(array)
        except InputError as error:
            return Plan("failed", str(error))
    return plan


def count_rows(spec: ArraysSpec) -> Census:
    """Return the census: all rows are matched and none is rejected; a dry run counts files."""
    matched = len(spec.files) if spec.sink.dry_run else spec.encoder.placement.rows
    return Census(matched=matched, identity=int(spec.input_id, 16))


def place_parts(spec: ArraysSpec, plan: Plan) -> Iterator[Placed]:
    """Yield one reference for each part of a build."""
    if plan.status != "build":
        return
    key = spec.encoder.placement.key
    for series, parts in plan.parts.items():
        for part in range(parts):
            ref = ArrayRef(key, plan.input_id, series.split, part, parts)
            yield PartKey(*series, part), PlacedRef(part.to_bytes(8, "big"), ref)
