"""WriteArrays: write arrays as a published dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from shardmill.schemas.refs import InputRef
from shardmill.transforms.runtime.sum_into import SumInto
from shardmill.transforms.sink.census import Census
from shardmill.transforms.sink.make_plan import adjust_plan
from shardmill.transforms.sink.outcome import Outcome
from shardmill.transforms.sink.placement import Series
from shardmill.transforms.sink.planning import Plan
from shardmill.transforms.sink.spec import SinkSpec
from shardmill.transforms.sink.transform import (
    BuildInput,
    BuildShards,
    announce,
)
from shardmill.transforms.sources.arrays.array_source import ArraySource
from shardmill.transforms.sources.arrays.encoder import ArrayEncoder
from shardmill.transforms.tables.planning import RowsSpec
from shardmill.transforms.tables.table_source import TableInput
from shardmill.transforms.tables.transform import COUNTS, RUNS, CutSegments, write_units

_MODULUS = 1 << 128


@dataclass(frozen=True)
class ArraysSpec:
    """The parameters of ``WriteArrays``; a small picklable value.

    Attributes:
        rows: What is written, where, and how.
        encoder: The features.
        key: Key of the input, part of the identity of its rows.
        files: A reference to each file of the input.
        parts: Number of parts of each split.
        warnings: Warnings for the manifest.
    """

    rows: RowsSpec
    encoder: ArrayEncoder
    key: str
    files: tuple[InputRef, ...]
    parts: tuple[tuple[str, int], ...]
    warnings: tuple[str, ...] = ()

    @property
    def sink(self) -> SinkSpec:
        """What the build writes, and where."""
        return self.rows.sink

    @property
    def source(self) -> ArraySource:
        """What gives the rows."""
        return cast("ArraySource", self.rows.source)

    @property
    def input(self) -> TableInput:
        """The input: all files together."""
        return self.source.inspect(InputRef(self.key, self.files[0].uri, version=self.input_id))

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
        units = (
            start
            | "ListUnits" >> beam.FlatMap(lambda _, plan: list_units(spec, plan), AsSingleton(plan))
            | "SpreadUnits" >> beam.Reshuffle()
        )
        made = write_units(units, spec.rows)
        segments = (made[RUNS], plan) | "CutSegments" >> CutSegments(spec.rows)
        placed = segments | "AllPlaced" >> beam.Flatten()
        matched = plan | "CountRows" >> beam.Map(lambda plan: count_rows(spec, plan))
        counts = (
            (matched, made[COUNTS])
            | "AllCounts" >> beam.Flatten()
            | "SumCounts" >> beam.CombineGlobally(SumInto(Census, Census.merge))
        )
        return BuildInput(placed, plan, counts) | BuildShards(spec.sink, spec.encoder)


def start_plan(spec: ArraysSpec) -> Plan:
    """Return the plan, and report its size as progress."""
    plan = plan_arrays(spec)
    announce(spec.sink, plan, "encoding", spec.input.num_bytes)
    return plan


def plan_arrays(spec: ArraysSpec) -> Plan:
    """Return the plan of a build, adjusted for what is already published."""
    label = spec.encoder.label
    parts = {Series(name, ""): count for name, count in spec.parts}
    labels = label.texts if label else ()
    plan = Plan("build", "", parts, labels, spec.input_id, warnings=spec.warnings)
    return adjust_plan(spec.sink, plan)


def count_rows(spec: ArraysSpec, plan: Plan) -> Census:
    """Return what the counts of runs do not include; a dry run counts files."""
    matched = {"build": 0, "dry_run": len(spec.files)}.get(plan.status, spec.source.num_rows)
    return Census(matched=matched, identity=int(spec.input_id, 16))


def list_units(spec: ArraysSpec, plan: Plan) -> Iterator[tuple[Any, ...]]:
    """Yield the units of a build as plain values."""
    if plan.status == "build":
        yield from map(tuple, spec.source.units(spec.input))
