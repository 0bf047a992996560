"""Estimate resources and costs of a build from the planner's functions and measured costs.

usage: python benchmarks/scale_estimate.py

Writes the tables of docs/scale.md with estimates. Costs and prices are assumptions: replace them
with those of your machines and your cloud.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from shardmill.schemas.dataset.shard_names import DEFAULT_TEMPLATE, ShardTemplate
from shardmill.transforms.sink.placement import Series, ShardSpec, count_shards, plan_parts
from shardmill.transforms.sources.csv.row_ranges import RANGE_BYTES
from shardmill.transforms.tables.table import count_row_parts

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
SHARES = {"train": Fraction(9, 10), "validation": Fraction(1, 10)}
TEMPLATE = ShardTemplate(DEFAULT_TEMPLATE)
COMPONENTS = 32  # maximum of one compose call


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
        "refs": count,
        "shuffled GB": shuffled / 1e9,
        "parts": parts,
        "refs a part": count / parts,
        "shards": shards,
        "output TB": count * record / 1e12,
        "manifest MB": shards * costs.shard_json / 1e6,
        "one worker's list of parts, MB": plan[Series("train", "")] * costs.part_bytes / 1e6,
        "reading calls, million": reads / 1e6,
        "writing calls, million": writes / 1e6,
        "CPU hours": cpu / 3600,
        "cores $": cpu / 3600 * costs.core_hour,
        "publishing, calls in a row": 4 * shards,
        "calls $": reads * costs.read_call + writes * costs.write_call,
        "shuffle $": shuffled / 1e9 * costs.shuffled_gb,
    }


def rows(count: int, row_bytes: int = 150, growth: float = 6.9, sets: int = 1) -> dict[str, float]:
    """Returns the estimates for a build of rows, divided into a number of datasets."""
    costs = Costs()
    text = count * row_bytes // sets
    spec = ShardSpec(TEMPLATE)
    parts = count_row_parts(spec, growth, row_bytes, text)
    ranges = -(-text // RANGE_BYTES)
    segments = min(ranges * parts, count // sets)
    packed = int(count // sets * costs.row_packed)
    shards = count_shards(spec, 0, packed, parts)
    reads = ranges * 21 + 2 * segments + parts + 3 * shards
    writes = 2 * ranges + 2 * parts + shards * (composes(-(-parts // shards)) + 1)
    cpu = count * costs.row_cpu
    return {
        "datasets": sets,
        "ranges": ranges * sets,
        "parts": parts * sets,
        "rows a segment": count / sets / segments,
        "segments, million": segments * sets / 1e6,
        "shuffled GB": segments * sets * costs.ref_bytes / 1e9,
        "shards": shards * sets,
        "output TB": packed * sets / 1e12,
        "manifest MB": shards * costs.shard_json / 1e6,
        "reading calls, million": reads * sets / 1e6,
        "writing calls, million": writes * sets / 1e6,
        "CPU hours of rows": cpu / 3600,
        "CPU hours of segments": segments * sets * costs.ref_cpu / 3600,
        "cores $": (cpu + segments * sets * costs.ref_cpu) / 3600 * costs.core_hour,
        "calls $": sets * (reads * costs.read_call + writes * costs.write_call),
        "shuffle $": segments * sets * costs.ref_bytes / 1e9 * costs.shuffled_gb,
    }


def bill(count: int, workers: int, *, dataflow: bool) -> dict[str, float]:
    """Returns what a build of images takes on workers of two cores and 8 GB, and what it costs."""
    costs, found = Costs(), images(count)
    core_hours = found["CPU hours"] / costs.busy
    shuffled = found["shuffled GB"] if dataflow else 0
    dollars = {
        "cores $": core_hours * costs.core_hour,
        "calls $": found["calls $"],
        "shuffle $": shuffled * costs.shuffled_gb,
    }
    return {
        "workers": workers,
        "core hours": core_hours,
        "hours": core_hours / (2 * workers),
        "reading calls, million": found["reading calls, million"],
        "writing calls, million": found["writing calls, million"],
        "shuffled GB": shuffled,
        "stored GB": found["output TB"] * 1000,
        **dollars,
        "build $": sum(dollars.values()),
        "storage $ a month": found["output TB"] * 1000 * costs.stored_gb,
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
                "10^8 images": images(10**8),
                "10^9 images": images(10**9),
                "10^9, --shard_bytes=1GiB": images(10**9, shard_bytes=1 << 30),
            }
        ),
        "On paper: the bill": table(
            {
                "10^6, one machine": bill(10**6, 1, dataflow=False),
                "10^6, Dataflow": bill(10**6, 4, dataflow=True),
                "10^7, one machine": bill(10**7, 1, dataflow=False),
                "10^7, Dataflow": bill(10**7, 20, dataflow=True),
                "10^8, Dataflow": bill(10**8, 100, dataflow=True),
            }
        ),
        "On paper: rows": table(
            {
                "10^9 rows": rows(10**9),
                "10^10 rows": rows(10**10),
                "10^10 in 16 datasets": rows(10**10, sets=16),
                "10^10 in 64 datasets": rows(10**10, sets=64),
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
