"""Placement: the split of an example, and its position in the global order.

Both come from one hash of the key, so they do not depend on other files. The results are pinned by
golden tests: a change would reshuffle the splits of every user.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, NamedTuple

from shardmill.schemas import option_types as of
from shardmill.schemas.dataset.shard_names import ShardTemplate
from shardmill.schemas.dataset.splits import (
    SPLIT_FOLDERS,
    Splits,
    check_split_name,
    split_of_folder,
)
from shardmill.schemas.errors import UsageError
from shardmill.schemas.refs import InputRef, Reference
from shardmill.transforms.match.walk import glob_regex

_PERSON = b"shardmill-place"
DuplicatesMode = Literal["keep", "drop", "same_split"]
SEED = of.whole(0, 0, (1 << 64) - 1)
PART_BYTES = 32 << 20
# Decoding takes 10 to 100 ns of CPU per byte of an ordinary photo, and encoding at most 160 ns per
# byte of a record: such a part takes less than a minute of one core.
PART_INPUT_BYTES = 512 << 20
PART_REFS = 896  # refs spread by hash: this mean keeps nearly every part below 1,024


class PartKey(NamedTuple):
    """One part: the unit of work, retry and resume.

    Attributes:
        split: Split; empty for references that were rejected while matching and are in no shard.
        label: Label, where each label has its own shards; else empty.
        part: Number of the part, from 0.
    """

    split: str
    label: str
    part: int


class Series(NamedTuple):
    """One numbered series of shards: a split, or a split and a label."""

    split: str
    label: str


REJECTED = Series("", "")


class PlacedRef(NamedTuple):
    """A reference and its position in its part.

    Attributes:
        order: Sort key of the reference in its part: the position's 8 bytes, or empty.
        ref: The reference.
    """

    order: bytes
    ref: Reference


Placed = tuple[PartKey, PlacedRef]


class Hash(NamedTuple):
    """The two 64-bit halves of a key's hash: one for the split, one for the position."""

    split: int
    position: int


def hash_key(seed: int, key: str) -> Hash:
    """Return the placement hash of a key: blake2b with 128 bits, salted with the seed."""
    # Each half is uniform on its own, so that the split says nothing about the position.
    digest = hashlib.blake2b(
        key.encode(), digest_size=16, salt=seed.to_bytes(16, "little"), person=_PERSON
    ).digest()
    return Hash(int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big"))


def check_group_pattern(pattern: str) -> None:
    """Check the value of ``--group_pattern``.

    Raises:
        UsageError: It is not a regular expression.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"--group_pattern={pattern} is not a regular expression: {error}."
        ) from error


def check_unlabeled(names: Sequence[str], splits: Splits) -> None:
    """Check the value of ``--unlabeled_splits``.

    Raises:
        UsageError: A split is unknown.
    """
    required = splits.required
    for name in names:
        if required and name not in required:
            splits_text = ", ".join(required)
            raise UsageError(
                f"--unlabeled_splits={name} is not a split: the splits are {splits_text}."
            )


@dataclass(frozen=True)
class PlaceSpec:
    """How examples are assigned to splits and positions.

    Attributes:
        splits: The splits and their shares.
        seed: 0 or more; each seed gives a different shuffle and different splits.
        group_pattern: A regular expression that is searched in the key. Examples with the same
            match of its group ``group`` (or first group, or whole pattern) share a split. Without a
            match, the key is the group.
        by_label: Whether each label has its own shards.
        unlabeled: Splits whose examples have no labels.

    Raises:
        UsageError: The seed is out of range, the pattern is not a regular expression, or a split is
            unknown.
    """

    splits: Splits
    seed: of.Int = SEED
    group_pattern: str = ""
    by_label: bool = False
    unlabeled: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_group_pattern(self.group_pattern)
        check_unlabeled(self.unlabeled, self.splits)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without names of attributes: most steps of a job have it, and Dataflow limits their size.
        values = self.splits.mode, self.splits.shares, self.splits.named
        return _load, (values, self.seed, self.group_pattern, self.by_label, self.unlabeled)

    @cached_property
    def _places(self) -> list[tuple[str, re.Pattern[str]]]:
        """The splits that have names, and patterns of the keys in them."""
        return [
            (name, re.compile(f"(?:{glob_regex(place.rstrip('/')).pattern})(?:/.*)?", re.DOTALL))
            for name, place in self.splits.named
        ]

    @cached_property
    def _group(self) -> re.Pattern[str] | None:
        if self.group_pattern:
            return re.compile(self.group_pattern)
        return None

    def group_of(self, ref: InputRef) -> str:
        """Return the group of a reference, which decides its split; its key if it has none."""
        if ref.group:
            return ref.group
        match = self._group.search(ref.key) if self._group else None
        if match is None:
            return ref.key
        # A group that did not take part in the match is None: the next choice counts, and a match
        # of nothing must not put all such inputs into one group.
        group = match.groupdict().get("group")
        if group is None:
            number = 1 if match.re.groups else 0
            group = match.group(number)
        return group or ref.key

    def in_group(self, ref: InputRef) -> bool:
        """Return whether the pattern gives a reference a group."""
        return bool(self.group_pattern) and self.group_of(ref) != ref.key

    def named_split(self, key: str) -> str:
        """Return the split that ``--splits`` names for a file, or an empty text."""
        return next((name for name, place in self._places if place.fullmatch(key)), "")

    def places_of(self, key: str) -> list[str]:
        """Return the places of a file's split in ``--splits`` that the file is in."""
        split = self.named_split(key)
        items = zip(self.splits.named, self._places, strict=True)
        return [
            place for (name, place), (_, regex) in items if name == split and regex.fullmatch(key)
        ]

    def is_unlabeled(self, ref: InputRef) -> bool:
        """Return whether an input is in a split whose examples have no labels."""
        return bool(self.unlabeled) and self.with_split(ref).split in self.unlabeled

    def of_table(self, ref: InputRef) -> InputRef:
        """Return a reference with the split of all its rows; with none if rows have their own."""
        if self.splits.mode == "fractions":
            return ref._replace(split=self.named_split(ref.key))
        return self.with_split(ref)

    def with_split(self, ref: InputRef) -> InputRef:
        """Return a reference with its split, or rejected if it has none."""
        if ref.error:
            return ref
        split = self.named_split(ref.key)
        if split:
            return ref._replace(split=split)
        if self.splits.mode == "fractions":
            # A share is an interval of hashes: adding inputs never moves another to a new split.
            return ref._replace(
                split=self.splits.of_hash(hash_key(self.seed, self.group_of(ref)).split)
            )
        if self.splits.mode == "directory":
            folder = ref.key.split("/", 1)[0] if "/" in ref.key else ""
            split = split_of_folder(folder)
        elif self.splits.mode == "named":
            split = ""
        else:
            split = SPLIT_FOLDERS.get(ref.split.lower(), ref.split)
        problem: str | None = f"no split is named by {ref.key!r}, as --splits={self.splits} needs"
        if split:
            problem = check_split_name(split)
        if problem:
            return ref.rejected("no_split", problem)
        return ref._replace(split=split)

    def series_of(self, ref: InputRef) -> Series:
        """Return the series of shards of a reference with a split."""
        if ref.error:
            return REJECTED
        if not self.by_label:
            return Series(ref.split, "")
        # Unlabelled inputs form one series, whose label is empty.
        return Series(ref.split, ref.label or "")

    def position_of(self, ref: InputRef) -> int:
        """Return the 64-bit position of a reference, from its key and not its group."""
        # Examples of a group are spread over their split, or a batch would hold near copies.
        return hash_key(self.seed, ref.key).position


def _load(splits: tuple[Any, ...], *values: Any) -> PlaceSpec:
    return PlaceSpec(Splits(*splits), *values)


def part_of(position: int, parts: int) -> int:
    """Return the number of the slice, of ``parts`` equal slices, that contains a position."""
    # floor(position / 2**64 * parts) in integers: exact, and monotonic in the position, so the
    # parts of a series are consecutive slices of its order.
    return (position * parts) >> 64


@dataclass(kw_only=True)
class ShardOptions(of.Options):
    """Number and size of the shards of a series.

    Attributes:
        num_shards: ``N``: exact number of shards in each split; their record counts differ by at
            most one
        shard_bytes: ``SIZE``: target size of a shard
        shard_examples: ``N``: target number of examples per shard

    Raises:
        UsageError: A number is out of range, or the number and the size of shards are both given.
    """

    num_shards: of.MaybeInt = of.whole(None, 1, 100_000)
    shard_bytes: of.Bytes = of.size("128MiB", least="1KiB")
    shard_examples: of.MaybeInt = of.whole(None, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_shards is not None and self.shard_examples is not None:
            raise UsageError("--num_shards and --shard_examples cannot be combined: give one.")


@dataclass(unsafe_hash=True)  # its values do not change
class ShardSpec(ShardOptions):
    """Number, size and names of shards.

    Attributes:
        template: Pattern of the names.
    """

    template: ShardTemplate = field(default_factory=ShardTemplate)


def count_parts(
    refs: int | Fraction,
    output_bytes: int | Fraction,
    spec: ShardSpec,
    part_refs: int | Fraction | None = PART_REFS,
    max_parts: int | None = None,
    input_bytes: int = 0,
) -> int:
    """Return the number of parts of a series.

    It is a power of two (times the number of shards, if that is given), so that a few more inputs
    rarely change it and a rerun can reuse finished parts. If the size of shards is given, it is at
    least 4 parts per shard, so that shards come out near that size.

    Args:
        refs: Number of inputs, or expected number, in the series.
        output_bytes: Expected bytes of their records.
        spec: Number or size of the shards.
        part_refs: Most inputs in a part; None for any number.
        max_parts: Number of parts from which it is not doubled again; None for no limit.
        input_bytes: Bytes of the inputs, if decoding them takes time.
    """
    needed = max(1, -(-output_bytes // PART_BYTES), -(-input_bytes // PART_INPUT_BYTES))
    if part_refs is not None:
        needed = max(needed, -(-refs // part_refs))
    if spec.shard_examples is not None:
        needed = max(needed, -(-4 * refs // spec.shard_examples))
    elif spec.num_shards is None:
        needed = max(needed, -(-4 * output_bytes // spec.shard_bytes))
    # Doubling moves each record to one of two parts; any other step would move nearly all of them.
    parts = spec.num_shards or 1
    while parts < needed and (max_parts is None or parts < max_parts):
        parts *= 2
    return parts


def count_shards(spec: ShardSpec, records: int, num_bytes: int, parts: int) -> int:
    """Return the number of shards of a finished series whose size is given; at most its parts."""
    if spec.shard_examples is not None:
        number = -(-records // spec.shard_examples)
    else:
        number = (num_bytes + spec.shard_bytes // 2) // spec.shard_bytes
    return max(1, min(number, parts))


def deal_records(records: Sequence[int], shards: int) -> Iterator[list[tuple[int, int, int]]]:
    """Yield the slices of each shard as (part, first record, end record).

    The numbers of records of shards differ by at most one. The first shards have one more, so that
    hosts that read every n-th shard get equal numbers too. A part without records is one empty
    slice.

    Args:
        records: Number of records of each part.
        shards: Number of shards.
    """
    size, more = divmod(sum(records), shards)
    part = first = 0
    for shard in range(shards):
        left = size + (shard < more)
        slices = []
        # Empty parts are listed too: their sidecars may hold rejects.
        while part < len(records) and (left or not records[part]):
            stop = min(first + left, records[part])
            slices.append((part, first, stop))
            left -= stop - first
            part, first = (part + 1, 0) if stop == records[part] else (part, stop)
        yield slices


def deal_parts(sizes: Sequence[int], shards: int) -> list[range]:
    """Return the consecutive parts of each shard; shards have about the same size.

    Args:
        sizes: Bytes (or records) of each part.
        shards: Number of shards.
    """
    total = sum(sizes)
    bounds = [0]
    passed = 0
    for number, size in enumerate(sizes):
        # A part belongs to the shard that contains its middle.
        if total:
            shard = (2 * passed + size) * shards // (2 * total)
        else:
            shard = number * shards // len(sizes)
        while len(bounds) <= min(shard, shards - 1):
            bounds.append(number)
        passed += size
    bounds += [len(sizes)] * (shards + 1 - len(bounds))
    return [r for r in map(range, bounds, bounds[1:]) if r]


def plan_parts(
    series: Mapping[Series, tuple[int, int]], expected_bytes: int | None, spec: ShardSpec
) -> dict[Series, int]:
    """Return the number of parts of each series.

    Args:
        series: (references, input bytes) of each.
        expected_bytes: Expected bytes of a record, or None for the size of its input.
        spec: Number or size of the shards.
    """
    plan = {}
    for name, (refs, size) in sorted(series.items()):
        output = size if expected_bytes is None else refs * expected_bytes
        if name == REJECTED:  # no records, so no bytes and no shards
            plan[name] = count_parts(refs, 0, ShardSpec(spec.template, num_shards=1))
        else:
            plan[name] = count_parts(refs, output, spec, input_bytes=size)
    return plan
