"""Counts and sums of a part, and of all parts of a series.

A build may have a million parts, each with the counts of a thousand labels. They are combined where
parts are written, so that the worker that publishes receives one small value per series.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from shardmill.transforms.statistics.sums import Summary, merge_summaries


@dataclass
class Totals:
    """The totals over some parts; they do not depend on the order of adding.

    Attributes:
        made: Number of parts that this run made.
        reused: Number of finished parts that it reused.
        taken: Number of records that were taken from the published dataset.
        records: Number of records.
        label_counts: Number of records by label.
        rejects: Number of rejected inputs by reason.
        duplicates: Number of references that repeat the key of another.
        multi_frame: Number of records from files with several frames.
        versions: Versions of the codecs: one tuple of (name, version) pairs per distinct set.
        summary: Sums over the values of the records.
        failure: Smallest sentence of the parts that could not be made; empty if there are none.
    """

    made: int = 0
    reused: int = 0
    taken: int = 0
    records: int = 0
    label_counts: Counter[str] = field(default_factory=Counter)
    rejects: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    multi_frame: int = 0
    versions: set[tuple[tuple[str, str], ...]] = field(default_factory=set)
    summary: Summary = field(default_factory=Summary)
    failure: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the totals of a part for its sidecar."""
        return {**vars(self), "versions": sorted(self.versions)}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Totals:
        """Return the totals of a finished part, which is reused, from its sidecar."""
        versions = {tuple((name, version) for name, version in each) for each in body["versions"]}
        summary = Summary.from_json(body["summary"])
        known = {"made": 0, "reused": 1, "versions": versions, "summary": summary}
        return cls(**{**body, **known})

    def merge(self, other: Totals) -> None:
        """Add the totals of other parts."""
        self.made += other.made
        self.reused += other.reused
        self.taken += other.taken
        self.records += other.records
        self.label_counts.update(other.label_counts)
        self.rejects.update(other.rejects)
        self.duplicates += other.duplicates
        self.multi_frame += other.multi_frame
        self.versions |= other.versions
        self.summary = merge_summaries((self.summary, other.summary))
        self.failure = min(filter(None, (self.failure, other.failure)), default="")
