"""Counts of matched files that give no reference: skipped files and duplicates."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shardmill.schemas.refs import InputRef

_MAX_KINDS = 8  # in a message
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,9}")


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
        kinds: Suffix, number and smallest key of skipped files, sorted by suffix.
    """

    skipped: int = 0
    duplicates: int = 0
    fatal: str = ""
    kinds: tuple[tuple[str, int, str], ...] = ()


DUPLICATE = MatchCounts(duplicates=1)


def first_usable(ref: InputRef) -> tuple[bool, InputRef]:
    """Return the sort key of references to one input: the first is kept."""
    return bool(ref.error), ref


def keep_first(refs: Iterable[InputRef]) -> Iterator[InputRef | MatchCounts]:
    """Yield the first of the references to one input, and a count for each other."""
    first, *others = sorted(refs, key=first_usable)
    yield first
    yield from [DUPLICATE] * len(others)


def count_skipped(key: str) -> MatchCounts:
    """Return the counts of a file that is not an input, by its name.

    Args:
        key: Path relative to the root; bytes that are not UTF-8 are percent-escaped.
    """
    stem, suffix = os.path.splitext(key.rpartition("/")[2])
    kind = suffix.lower() if _SUFFIX.fullmatch(suffix) else "other"
    return MatchCounts(1, kinds=(("hidden" if stem.startswith(".") else kind, 1, key),))


def sum_counts(counts: Iterable[MatchCounts]) -> MatchCounts:
    """Return the sum of partial counts; of several fatal errors the smallest message."""
    skipped, duplicates, messages, kinds = zip(MatchCounts(), *counts, strict=True)
    merged: dict[str, tuple[int, str]] = {}
    for kind, number, key in itertools.chain(*kinds):
        known, first = merged.get(kind, (0, key))
        merged[kind] = known + number, min(first, key)
    return MatchCounts(
        sum(skipped), sum(duplicates), min(filter(None, messages), default=""),
        tuple((kind, *merged[kind]) for kind in sorted(merged)),
    )  # fmt: skip


def describe_skipped(kinds: Iterable[tuple[str, int, str]]) -> tuple[str, ...]:
    """Return a warning that lists the kinds of skipped files; none if there are none."""
    ordered = sorted(kinds, key=lambda kind: (-kind[1], kind))
    shown = [f"{number:,} {kind} ({key})" for kind, number, key in ordered[:_MAX_KINDS]]
    shown += [f"{len(ordered) - _MAX_KINDS} more kinds"] * (len(ordered) > _MAX_KINDS)
    return (f"skipped: {', '.join(shown)}",) * bool(shown)
