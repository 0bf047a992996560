"""Add up the counts and sums of the parts of each series on the workers.

A build may have a million parts, each with the counts of a thousand labels. They are combined where
parts are written, so that the worker that publishes receives one small value per series.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import apache_beam as beam

from shardmill.transforms.build.parts import Part
from shardmill.transforms.statistics.sums import Summary, merge_summaries


@dataclass
class Totals:
    """The totals over some parts; they do not depend on the order of adding.

    Attributes:
        made: Number of parts that this run made.
        reused: Number of finished parts that it reused.
        records: Number of records.
        label_counts: Number of records by label.
        rejects: Number of rejected inputs by reason.
        duplicates: Number of references that repeat the key of another.
        multi_frame: Number of records from files with several frames.
        versions: Versions of the codecs: one tuple of (name, version) pairs per distinct set.
        summary: Sums over the values of the records.
    """

    made: int = 0
    reused: int = 0
    records: int = 0
    label_counts: dict[str, int] = field(default_factory=dict)
    rejects: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    multi_frame: int = 0
    versions: set[tuple[tuple[str, str], ...]] = field(default_factory=set)
    summary: Summary = field(default_factory=Summary)

    @classmethod
    def of(cls, part: Part) -> Totals:
        """Return the totals of one part. They share its dictionaries: do not merge into them."""
        return cls(
            made=int(not part.reused),
            reused=int(part.reused),
            records=part.records,
            label_counts=part.label_counts,
            rejects=part.rejects,
            duplicates=part.duplicates,
            multi_frame=part.multi_frame,
            versions={tuple(sorted(part.versions.items()))} if part.versions else set(),
            summary=part.summary,
        )

    def merge(self, other: Totals) -> None:
        """Add the totals of other parts."""
        self.made += other.made
        self.reused += other.reused
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
    """Combines parts into ``Totals``."""

    def create_accumulator(self) -> Totals:
        """Return the totals of no part."""
        return Totals()

    def add_input(self, mutable_accumulator: Totals, element: Part) -> Totals:
        """Add one part."""
        mutable_accumulator.merge(Totals.of(element))
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[Totals]) -> Totals:
        """Merge totals."""
        total = Totals()
        for accumulator in accumulators:
            total.merge(accumulator)
        return total

    def extract_output(self, accumulator: Totals) -> Totals:
        """Return the totals."""
        return accumulator


__all__ = ["SumTotals", "Totals"]
