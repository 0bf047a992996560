"""Counts of matched files that give no reference: skipped files and duplicates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from shardmill.schemas.refs import InputRef


class Skipped(NamedTuple):
    """A file that is not an input, by its name.

    Attributes:
        key: Path relative to the root; bytes that are not UTF-8 are percent-escaped.
    """

    key: str


class Linked(NamedTuple):
    """A file in a folder that only links lead to; several may lead to it.

    Attributes:
        path: Real path of the file's folder and the file's name, percent-escaped like a key.
        ref: The reference by the path of the link.
    """

    path: str
    ref: InputRef


class MatchCounts(NamedTuple):
    """Counts of matched files that give no reference.

    Attributes:
        skipped: Number of files that are not inputs, by their names.
        duplicates: Number of entries that repeat another.
        fatal: Message of the error that makes the whole input unusable, or empty.
    """

    skipped: int = 0
    duplicates: int = 0
    fatal: str = ""


DUPLICATE = MatchCounts(duplicates=1)


def count_unused(found: Skipped | MatchCounts) -> MatchCounts:
    """Return the counts of one file that gives no reference."""
    return MatchCounts(skipped=1) if isinstance(found, Skipped) else found


def sum_counts(counts: Iterable[MatchCounts]) -> MatchCounts:
    """Return the sum of partial counts; of several fatal errors the smallest message."""
    skipped, duplicates, messages = zip(MatchCounts(), *counts, strict=True)
    return MatchCounts(sum(skipped), sum(duplicates), min(filter(None, messages), default=""))
