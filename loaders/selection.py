"""Splits and slices of them: ``train+validation``, ``train[:10%]``, ``train[100:200]``."""

from __future__ import annotations

import difflib
import itertools
import re
from dataclasses import dataclass
from typing import NamedTuple

from shardmill.schemas.dataset.manifest import Manifest, Shard, Split
from shardmill.schemas.dataset.splits import split_of_folder
from shardmill.schemas.errors import UsageError
from shardmill.schemas.numbers import plural

_TERM = re.compile(r"([^\[\]+]*)(?:\[([^\[\]:]*):([^\[\]:]*)\])?")
_BOUND = re.compile(r"(-?\d{1,15})(%?)")


class ShardSlice(NamedTuple):
    """Consecutive records of a shard: ``first`` to ``stop`` - 1."""

    shard: Shard
    first: int
    stop: int

    @property
    def records(self) -> int:
        """Number of records."""
        return self.stop - self.first


@dataclass(frozen=True)
class Selection:
    """The records that are read in an epoch, in their order.

    Attributes:
        split: The expression, such as ``train+validation``.
        parts: Where they are.
    """

    split: str
    parts: tuple[ShardSlice, ...]

    @property
    def num_examples(self) -> int:
        """Number of records."""
        return sum(part.records for part in self.parts)


def select(manifest: Manifest, split: str) -> Selection:
    """Returns the records that an expression such as ``train[:10%]+validation`` names.

    A slice counts records from 0 in the order of the shards; negative numbers count from the end.
    A percentage is rounded down, so that ``train[:10%]`` and ``train[10%:]`` are ``train``. Where
    each label has separate shards, percentages hold for each label.

    Raises:
        UsageError: A split is unknown, a slice is malformed, or an example is named twice.
    """
    if not isinstance(split, str):
        raise UsageError(f"split={split!r} is not a str: name a split, as in 'train'.")
    parts: list[ShardSlice] = []
    for term in split.split("+"):
        match = _TERM.fullmatch(term.strip())
        if match is None or not match[1].strip():
            raise UsageError(
                f"the split {split!r} is malformed: write it as in train[:10%] or train+test."
            )
        name, first, stop = match[1].strip(), match[2], match[3]
        chosen = find_split(manifest, name)
        if first is None:
            parts += [ShardSlice(shard, 0, shard.records) for shard in chosen.shards]
        else:
            parts += _slice(chosen, term.strip(), first.strip(), stop.strip())
    ordered = sorted(parts, key=lambda part: (part.shard.file, part.first))
    for before, after in itertools.pairwise(ordered):
        if before.shard.file == after.shard.file and after.first < before.stop:
            raise UsageError(f"the split {split!r} has some examples twice: name each once.")
    return Selection(split, tuple(parts))


def _slice(split: Split, term: str, first: str, stop: str) -> list[ShardSlice]:
    by_label: dict[str | None, list[Shard]] = {}
    for shard in split.shards:
        by_label.setdefault(shard.label, []).append(shard)
    if len(by_label) > 1 and not all(bound in ("", "0") or "%" in bound for bound in (first, stop)):
        raise UsageError(
            f"{term}: the labels have separate shards, and a slice by numbers would take few of "
            "them: use percentages."
        )
    parts = []
    for shards in by_label.values():
        total = sum(shard.records for shard in shards)
        low, high = _bound(term, first or "0", total), _bound(term, stop or "100%", total)
        for shard in shards:
            begin, end = max(low, 0), min(high, shard.records)
            if begin < end:
                parts.append(ShardSlice(shard, begin, end))
            low, high = low - shard.records, high - shard.records
    if not parts and split.num_examples:
        raise UsageError(
            f"{term} has none of the {plural(split.num_examples, 'example')}: write it as in "
            "train[:10%] or train[100:200]."
        )
    return parts


def _bound(term: str, text: str, total: int) -> int:
    """Returns the number of a record; of the first or last one if it is out of range."""
    match = _BOUND.fullmatch(text)
    if match is None or (match[2] and abs(int(match[1])) > 100):
        raise UsageError(
            f"{term}: {text!r} is neither a number nor a percentage up to 100%: write it as in "
            "train[:10%] or train[100:200]."
        )
    number = int(match[1])
    if match[2]:
        if number < 0:
            return total - -number * total // 100
        return number * total // 100
    if number < 0:
        return max(0, total + number)
    return min(number, total)


def find_split(manifest: Manifest, name: str) -> Split:
    """Returns a split of a manifest.

    Raises:
        UsageError: It is unknown.
    """
    if name not in manifest.splits:
        names = ", ".join(manifest.splits) or "none"
        alike = [split for split in manifest.splits if split.lower() == name.lower()]
        meant = split_of_folder(name)
        alike += [split for split in manifest.splits if split_of_folder(split) == meant and meant]
        alike += difflib.get_close_matches(name, manifest.splits, 1)
        alike += [split for split in manifest.splits if name and split.startswith(name)]
        if "," in name:
            alike = [name.replace(",", "+")]
        hint = f" (did you mean {alike[0]}?)" if alike else ""
        raise UsageError(f"the dataset has no split {name!r}{hint}: it has {names}.")
    return manifest.splits[name]
