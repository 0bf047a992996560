"""Totals: what the parts of a series come to, added up on the workers.

A build may have a million parts, each with the counts of a thousand labels. They are added up where
they are made, so that the one worker that publishes gets a single small value for each series.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import apache_beam as beam

from shardmill.transforms.build.parts import Part
from shardmill.transforms.statistics.sums import Summary, merge_summaries


@dataclass
class Totals:
    """What some parts come to, whatever the order they are added in.

    Attributes:
        made: Parts that this run made.
        found: Parts that it found finished.
        records: Number of records.
        label_counts: Records by label.
        rejects: Refused inputs by reason.
        duplicates: Refs that repeat another's key.
        multi_frame: Records that are the first of several frames.
        versions: Of the codecs that made the parts: one set of (name, version) for each that
            differs.
        summary: Exact sums of the records' values.
    """

    made: int = 0
    found: int = 0
    records: int = 0
    label_counts: dict[str, int] = field(default_factory=dict)
    rejects: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    multi_frame: int = 0
    versions: set[tuple[tuple[str, str], ...]] = field(default_factory=set)
    summary: Summary = field(default_factory=Summary)

    @classmethod
    def of(cls, part: Part) -> Totals:
        """Returns what one part comes to; shares the part's counts, so it is only to be added."""
        return cls(
            made=int(not part.found),
            found=int(part.found),
            records=part.records,
            label_counts=part.label_counts,
            rejects=part.rejects,
            duplicates=part.duplicates,
            multi_frame=part.multi_frame,
            versions={tuple(sorted(part.versions.items()))} if part.versions else set(),
            summary=part.summary,
        )

    def merge(self, other: Totals) -> None:
        """Adds the totals of other parts."""
        self.made += other.made
        self.found += other.found
        self.records += other.records
        _count(self.label_counts, other.label_counts)
        _count(self.rejects, other.rejects)
        self.duplicates += other.duplicates
        self.multi_frame += other.multi_frame
        self.versions |= other.versions
        self.summary = merge_summaries((self.summary, other.summary))


def _count(counts: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count


class SumTotals(beam.CombineFn):
    """Combines parts into their ``Totals``."""

    def create_accumulator(self) -> Totals:
        """Returns the totals of no part."""
        return Totals()

    def add_input(self, mutable_accumulator: Totals, element: Part) -> Totals:
        """Adds one part."""
        mutable_accumulator.merge(Totals.of(element))
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[Totals]) -> Totals:
        """Adds up totals."""
        total = Totals()
        for accumulator in accumulators:
            total.merge(accumulator)
        return total

    def extract_output(self, accumulator: Totals) -> Totals:
        """Returns the totals."""
        return accumulator


__all__ = ["SumTotals", "Totals"]
