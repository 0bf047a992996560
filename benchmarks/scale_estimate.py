"""Estimate resources and costs of a build from the planner's functions and measured costs.

usage: python benchmarks/scale_estimate.py

Writes the tables of docs/scale.md with estimates. Costs and prices are assumptions: replace them
with those of your machines and your cloud.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from shardmill.schemas.dataset.shard_names import DEFAULT_TEMPLATE, ShardTemplate
from shardmill.schemas.storage.base import storage_threads
from shardmill.transforms.sink.placement import Series, ShardSpec, count_shards, plan_parts
from shardmill.transforms.sources.csv.row_ranges import RANGE_BYTES
from shardmill.transforms.tables import run_writer, segments, transform
from shardmill.transforms.tables.table import count_row_parts

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
SHARES = {"train": Fraction(9, 10), "validation": Fraction(1, 10)}
TEMPLATE = ShardTemplate(DEFAULT_TEMPLATE)
COMPONENTS = 32  # maximum of one compose call
READERS = storage_threads("gs://bucket")


@dataclass(frozen=True)
class Costs:
    """Costs of single operations; docs/scale.md gives the source of each number.

    Attributes:
        ref_bytes: Bytes of a reference with key and position that is packed alone.
        content_bytes: Bytes of a record where copies are counted.
        ref_cpu: CPU seconds per reference in all stages except reading and encoding.
        image_cpu: CPU seconds per image of 500x375.
        row_cpu: CPU seconds per row of 42 columns.
        row_packed: Bytes of such a row in a shard.
        run_row: Bytes of such a row in a run.
        merge_cpu: CPU seconds per row to merge runs, apart from ``read_cpu``.
        read_cpu: CPU seconds of one read of a run when runs are merged.
        read_seconds: Wall seconds of such a read from a bucket.
        shard_json: Bytes of a shard entry in the manifest.
        part_bytes: Encoded bytes of a part result in a shuffle.
        core_hour: Price of a virtual core with 4 GB for an hour, in dollars.
        shuffled_gb: Price of a shuffled GB, in dollars.
        write_call: Price of a request that writes, lists or composes, in dollars.
        read_call: Price of a request that reads, in dollars.
        stored_gb: Price of a GB that is stored for a month, in dollars.
        busy: Utilization of the cores of workers.
    """

    ref_bytes: float = 160
    content_bytes: float = 69
    ref_cpu: float = 78e-6
    image_cpu: float = 1.36e-3
    row_cpu: float = 7.35e-6
    row_packed: float = 46.2
    run_row: float = 152
    merge_cpu: float = 3e-6
    read_cpu: float = 0.1e-3
    read_seconds: float = 0.05
    shard_json: float = 137
    part_bytes: float = 123
    core_hour: float = 0.056 + 4 * 0.003557
    shuffled_gb: float = 0.011
    write_call: float = 0.05 / 10_000
    read_call: float = 0.004 / 10_000
    stored_gb: float = 0.02
    busy: float = 0.7

    @property
    def cpu(self) -> float:
        """CPU seconds of an image."""
        return self.image_cpu + self.ref_cpu


def composes(parts: int) -> int:
    """Returns the number of compose calls that join objects, in a tree of at most 32 each."""
    calls = 0
    while parts > COMPONENTS:
        whole, rest = divmod(parts, COMPONENTS)
        calls += whole + (rest > 1)
        parts = whole + (rest > 0)
    return calls + 1


def images(
    count: int, record: int = 23_400, shard_bytes: int = 128 << 20, size: int = 110_000
) -> dict[str, float]:
    """Returns the estimates for a build of JPEG images."""
    costs, spec = Costs(), ShardSpec(TEMPLATE, shard_bytes=shard_bytes)
    refs_of = {Series(name, ""): int(count * share) for name, share in SHARES.items()}
    sizes = {series: (refs, refs * size) for series, refs in refs_of.items()}
    plan = plan_parts(sizes, record, spec)
    parts = sum(plan.values())
    shards = sum(
        count_shards(spec, refs, refs * record, plan[name]) for name, (refs, _) in sizes.items()
    )
    reads = count + parts + 2 * shards  # as measured in docs/gcs.md
    each = -(-parts // shards)
    writes = count / 1000 + 2 * parts + shards * (composes(each) + 1) + parts / 1000
    shuffled = count * (costs.ref_bytes + costs.content_bytes) + parts * costs.part_bytes
    cpu = count * costs.cpu
    return {
        "shuffled GB": shuffled / 1e9,
        "parts": parts,
        "shards": shards,
        "output TB": count * record / 1e12,
        "manifest MB": shards * costs.shard_json / 1e6,
        "one worker's list of parts, MB": plan[Series("train", "")] * costs.part_bytes / 1e6,
        "reading calls, million": reads / 1e6,
        "writing calls, million": writes / 1e6,
        "CPU hours": cpu / 3600,
        "calls $": reads * costs.read_call + writes * costs.write_call,
        "shuffle $": shuffled / 1e9 * costs.shuffled_gb,
    }


def count_groups(ranges: int) -> int:
    """Returns the number of runs that parts read, if each range of text is a run.

    More than ``MAX_RUNS`` are merged by a hash; some groups stay empty while runs are few.
    """
    groups = transform.MAX_RUNS
    if ranges <= groups:
        return ranges
    return round(groups * (1 - (1 - 1 / groups) ** ranges))


def count_merge_reads(ranges: int, records: Sequence[float]) -> int:
    """Returns the number of reads that merge runs.

    Args:
        ranges: Number of runs. A run is read once for every slice of the positions of a split.
        records: Bytes of the records of each split.
    """
    if ranges <= transform.MAX_RUNS:
        return 0
    return ranges * sum(_merge_slices(ranges, size) for size in records)


def _merge_slices(ranges: int, records: float) -> int:
    """Returns the number of slices in which a group merges the records of a split."""
    return 1 << int(records / count_groups(ranges) // run_writer.MERGE_BYTES).bit_length()


def _blocks(records: float) -> int:
    """Returns the number of blocks of the records of a split in one run."""
    slices = 1 << int(records // run_writer.SLICE_BYTES).bit_length()
    return 1 << (slices * int(records / slices // segments.BLOCK_BYTES)).bit_length()


def rows(count: int, row_bytes: int = 150, growth: float = 6.9, sets: int = 1) -> dict[str, float]:
    """Returns the estimates for a build of rows, divided into a number of datasets."""
    costs = Costs()
    count //= sets
    text = count * row_bytes
    spec = ShardSpec(TEMPLATE)
    texts = [int(text * share) for share in SHARES.values()]
    records = [size * growth for size in texts]
    parts = [count_row_parts(spec, growth, row_bytes, size) for size in texts]
    ranges = -(-text // RANGE_BYTES)
    groups = count_groups(ranges)
    pieces = groups * sum(parts)
    merge_reads = count_merge_reads(ranges, records)
    # Slices that are smaller than the blocks of a run read each block several times.
    merged_bytes = merged_again = 0.0
    if merge_reads:
        merged_bytes = count * costs.run_row
        for size in records:
            repeated = max(1, _merge_slices(ranges, size) / _blocks(size / ranges))
            merged_again += repeated * merged_bytes * size / sum(records)
    packed = int(count * costs.row_packed)
    shards = count_shards(spec, 0, packed, sum(parts))
    reads = ranges * 21 + 2 * (pieces + merge_reads) + sum(parts) + 3 * shards
    writes = 2 * (ranges + groups) + 2 * sum(parts)
    writes += shards * (composes(-(-sum(parts) // shards)) + 1)
    cpu = count * costs.row_cpu + pieces * costs.ref_cpu
    if merge_reads:
        cpu += count * costs.merge_cpu + merge_reads * costs.read_cpu
    return {
        "ranges": sets * ranges,
        "merge: reads, million": sets * merge_reads / 1e6,
        "merge: hours of a group": merge_reads / groups * costs.read_seconds / READERS / 3600,
        "merge: TB read": sets * merged_again / 1e12,
        "merge: TB written": sets * merged_bytes / 1e12,
        "parts": sets * sum(parts),
        "records of a part, MB": records[0] / parts[0] / 1e6,
        "segments, million": sets * pieces / 1e6,
        "output TB": sets * packed / 1e12,
        "reading calls, million": sets * reads / 1e6,
        "writing calls, million": sets * writes / 1e6,
        "CPU hours": sets * cpu / 3600,
        "cores $": sets * cpu / 3600 * costs.core_hour,
        "calls $": sets * (reads * costs.read_call + writes * costs.write_call),
    }


def bill(count: int, shard_bytes: int = 128 << 20) -> dict[str, float]:
    """Returns what a build of images takes and costs, on workers that are busy for a part."""
    costs, estimate = Costs(), images(count, shard_bytes=shard_bytes)
    core_hours = estimate["CPU hours"] / costs.busy
    dollars = {
        "cores $": core_hours * costs.core_hour,
        "calls $": estimate["calls $"],
        "shuffle $": estimate["shuffle $"],
    }
    return {
        **{name: value for name, value in estimate.items() if "$" not in name},
        "core hours": core_hours,
        **dollars,
        "build $": sum(dollars.values()),
        "storage $ a month": estimate["output TB"] * 1000 * costs.stored_gb,
    }


def table(columns: dict[str, dict[str, float]]) -> str:
    """Returns a Markdown table with a column per build."""
    names = next(iter(columns.values()))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in names:
        cells = [format_number(each[name]) for each in columns.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def format_number(value: float) -> str:
    """Returns a number with three significant digits, or as an integer if it is 100 or more."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def tables() -> dict[str, str]:
    """Returns the tables of docs/scale.md by the headings above them."""
    return {
        "On paper: images": table(
            {
                "10^6 images": bill(10**6),
                "10^7": bill(10**7),
                "10^8": bill(10**8),
                "10^9": bill(10**9),
                "10^9, `--shard_bytes=1GiB`": bill(10**9, 1 << 30),
            }
        ),
        "On paper: rows": table(
            {
                "10^9 rows": rows(10**9),
                "10^10 rows": rows(10**10),
                "10^11 rows": rows(10**11),
                "10^10 in 10 datasets": rows(10**10, sets=10),
            }
        ),
    }


def main() -> None:
    """Writes the tables into docs/scale.md."""
    page = PAGE.read_text(encoding="utf-8")
    for heading, text in tables().items():
        pattern = rf"(## {heading}\n(?:(?!\|).*\n)*)(?:\|.*\n)+"
        page = re.sub(pattern, lambda found, text=text: f"{found[1]}{text}\n", page, count=1)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
