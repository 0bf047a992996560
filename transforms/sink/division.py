"""Divide records into parts, and parts into shards. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from shardmill.schemas import option_types as of
from shardmill.schemas.dataset.shard_names import ShardTemplate
from shardmill.schemas.errors import UsageError
from shardmill.transforms.sink.placement import REJECTED, Series

PART_BYTES = 32 << 20
# Decoding takes 10 to 100 ns of CPU per byte of an ordinary photo, and encoding at most 160 ns per
# byte of a record: such a part takes less than a minute of one core.
PART_INPUT_BYTES = 512 << 20
PART_REFS = 896  # refs spread by hash: this mean keeps nearly every part below 1,024
NUM_SHARDS = of.whole(None, 1, 100_000)
SHARD_BYTES = of.size("128MiB", least="1KiB")
SHARD_EXAMPLES = of.whole(None, 1)


@dataclass(frozen=True)
class ShardSpec:
    """Number, size and names of shards.

    Attributes:
        template: Pattern of the names.
        num_shards: Number of shards in each series, or None.
        shard_bytes: Approximate bytes of a shard, where the number is not given.
        shard_examples: Approximate examples of a shard; takes precedence over ``shard_bytes``.

    Raises:
        UsageError: A number is out of range, or the number and the size of shards are both given.
    """

    template: ShardTemplate = field(default_factory=ShardTemplate)
    num_shards: of.MaybeInt = NUM_SHARDS
    shard_bytes: of.Bytes = SHARD_BYTES
    shard_examples: of.MaybeInt = SHARD_EXAMPLES

    def __post_init__(self) -> None:
        if self.num_shards is not None and self.shard_examples is not None:
            raise UsageError("num-shards-and-shard-examples")


def count_parts(
    refs: int | Fraction, output_bytes: int | Fraction, spec: ShardSpec,
    part_refs: int | Fraction | None = PART_REFS, max_parts: int | None = None,
    input_bytes: int = 0,
) -> int:  # fmt: skip
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
        wanted = -(-records // spec.shard_examples)
    else:
        wanted = (num_bytes + spec.shard_bytes // 2) // spec.shard_bytes
    return max(1, min(wanted, parts))


def deal_records(records: Sequence[int], shards: int) -> Iterator[list[tuple[int, int, int]]]:
    """Yield the slices of each shard as (part, first record, end record).

    The numbers of records of shards differ by at most one. The first shards have one more, so that
    hosts that read every n-th shard get equal numbers too. A part without records is one empty
    slice.

    Args:
        records: Number of records of each part.
        shards: Number of shards.
    """
    each, more = divmod(sum(records), shards)
    part = first = 0
    for shard in range(shards):
        left = each + (shard < more)
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
        shard = (
            (2 * passed + size) * shards // (2 * total) if total else number * shards // len(sizes)
        )
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
