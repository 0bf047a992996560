"""The page and the plots that peers.py writes."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from itertools import pairwise
from pathlib import Path

from environments import PACKAGES
from plots import plot_bars

NAMES = {
    "shardmill": "Shardmill",
    "shardmill png": "Shardmill, PNG",
    "shardmill tar": "Shardmill, one archive",
    "floor": "hand-written floor",
    "tutorial": "the tutorials' loop",
    "beam": "plain Beam",
    "tfds": "TFDS",
    "tfds-beam": "TFDS on Beam",
    "img2dataset": "img2dataset",
    "mosaicml": "MosaicML Streaming",
    "webdataset": "WebDataset",
    "datasets": "Hugging Face datasets",
    "ray": "Ray Data",
    "litdata": "LitData",
    "shardmill --reducing_gap=1": "Shardmill, `--reducing_gap=1`",
    "shardmill --reducing_gap=0": "Shardmill, `--reducing_gap=0`",
}
UPDATES = {
    "new": "new build",
    "again": "nothing changed",
    "changed": "update",
    "new seed": "new build, another seed",
    "other seed": "update, another seed",
}
PAGE = """\
# Benchmarks: other tools

Made by `make bench-peers` on {machine}; medians of {rounds} interleaved rounds. Each tool runs in a
separate environment, as its documentation describes, with two processes where it has a pool;
`benchmarks/tool_runners.py`, `image_peers.py` and `row_peers.py` define them. Whole processes are
measured: wall time, CPU time and sampled peak memory of all processes, daemons and web servers
included (shared pages count once), and bytes of the output. Speeds are those of the records between
two sizes, without start-up. *Spread*: range of the wall times of the largest size by their median.

## Images

Photos of 500x375 become 224x224 JPEGs of quality 95, with label and key.

{images}

![images per second](benchmarks-peers.png)

Shardmill and TFDS shuffle all records; the others keep the order of their input, or that in which
processes finished. img2dataset downloads its input from a web server in the same process, and crops
instead of stretching. Hugging Face datasets also writes Arrow files to its cache. The tutorials'
loop resizes with TensorFlow, img2dataset with OpenCV, all others except Shardmill with the same
calls of Pillow. LitData and MosaicML Streaming load PyTorch.

## Large photos

Photos of 4000x3000 and 3.1 MiB become the same records. `--reducing_gap` is 3 by default: libjpeg
decodes at a half, a quarter or an eighth of the size if that is at least three times the size of
the record; 0 decodes all pixels. The tutorials' loop and img2dataset decode all pixels, the other
tools what Pillow's `draft` gives them at three times the size.

{large}

## Small pictures

JPEGs of 32x32 become records of the same size, so that the cost of a file decides. Shardmill also
reads all of them from one tar archive.

{small}

## Rows

42 mixed columns of a CSV file. Hugging Face datasets and Ray Data write Parquet, the others one
`tf.train.Example` per row. [Larger tables](benchmarks-rows.md).

{rows}

## Updates

A dataset of {photos:,} photos, all files different; then {added:,} are added between the others
and {removed:,} removed. *Update* is the same command on the changed folder: `--update` of
Shardmill, the cache of Hugging Face datasets, and for the added photos `mode="append"` of LitData
and `incremental_mode="extend"` of img2dataset. TFDS has no update: that is its new build. *Per
unchanged* is (update - nothing changed) / unchanged photos: decoding the added photos is in it,
and none is decoded where only the seed differs. Keys are read with the tool. Records are
*shuffled* if their positions correlate neither with the sorted keys nor with being added. *Same
bytes*: an update has those of a new build, a new build those of the other rounds.

{updates}

![seconds of an update](benchmarks-peers-updates.png)
{failures}
## Versions

Shardmill has those of `constraints.txt`, without extras; plain Beam runs in the environment of TFDS
on Beam, the tutorials' loop in that of TFDS.

{versions}
"""


class Results:
    """The results of one kind, by tool and case; medians over the rounds."""

    def __init__(self, found: list[dict], kind: str) -> None:
        self._rounds: dict[tuple[str, str], dict[int, dict]] = {}
        for each in found:
            if each["kind"] == kind and "failed" not in each:
                of_case = self._rounds.setdefault((each["tool"], each["case"]), {})
                of_case[each["round"]] = each

    def rounds(self, tool: str, case: str) -> dict[int, dict]:
        """Returns the results of a tool by round."""
        return self._rounds.get((tool, case), {})

    def tools(self, *cases: str) -> list[str]:
        """Returns the tools with results of all these cases."""
        return [tool for tool in NAMES if all(self.rounds(tool, case) for case in cases)]

    def median(self, tool: str, case: str, field: str) -> float:
        """Returns the median of a measure."""
        return statistics.median(each[field] for each in self.rounds(tool, case).values())

    def between(self, tool: str, few: str, many: str, field: str) -> float:
        """Returns the median difference of two cases, each pair of the same round."""
        one, other = self.rounds(tool, few), self.rounds(tool, many)
        return statistics.median(other[n][field] - one[n][field] for n in one.keys() & other.keys())

    def digests(self, tool: str, name: str, photos: int) -> set[str]:
        """Returns the hashes of outputs that should be equal to those of an update."""
        equal = {"changed": ("changed", "new"), "other seed": ("other seed", "new seed")}
        return {
            each["digest"]
            for case in equal.get(name, (name,))
            for each in self.rounds(tool, f"{case}/{photos}").values()
        }


def table(head: list[str], lines: list[list[str]]) -> str:
    """Returns a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *lines])


def builds_table(results: Results, counts: list[int], unit: str) -> str:
    """Returns the table of builds from scratch, fastest first."""
    cases = [str(count) for count in counts]

    def slope(tool: str, few: str, many: str, field: str) -> float:
        return results.between(tool, few, many, field) / (int(many) - int(few))

    def line(tool: str) -> list[str]:
        cpu, memory, size = (results.median(tool, cases[-1], f) for f in ("cpu", "memory", "bytes"))
        walls = [each["wall"] for each in results.rounds(tool, cases[-1]).values()]
        return [
            NAMES[tool],
            *(f"{1 / slope(tool, *step, 'wall'):,.0f}" for step in pairwise(cases)),
            f"{1e3 * slope(tool, *cases[-2:], 'cpu'):.3g}",
            *(f"{results.median(tool, case, 'wall'):.1f}" for case in cases),
            f"{(max(walls) - min(walls)) / statistics.median(walls):.0%}",
            f"{cpu:.1f}",
            f"{memory:,.0f}",
            f"{size / 2**20:,.1f}",
        ]

    head = [
        "",
        *(f"{unit}/s, {few:,} to {many:,}" for few, many in pairwise(counts)),
        f"CPU ms per {unit[:-1]}",
        *(f"wall s, {count:,}" for count in counts),
        "spread",
        "CPU s",
        "peak MiB",
        "output MiB",
    ]
    tools = results.tools(*cases)
    tools.sort(key=lambda tool: slope(tool, *cases[-2:], "wall"))
    return table(head, [line(tool) for tool in tools])


def update_line(results: Results, tool: str, name: str, photos: int) -> list[str]:
    """Returns the row of a case of updates."""
    case, again = f"{name}/{photos}", f"again/{photos}"
    wall, cpu, memory, unchanged, missing, extra, order = (
        results.median(tool, case, field)
        for field in ("wall", "cpu", "memory", "unchanged", "missing", "extra", "order")
    )
    per = ["", ""]
    if name in ("changed", "other seed"):
        more = [results.between(tool, again, case, field) for field in ("wall", "cpu")]
        per = [f"{1e3 * each / unchanged:.3f}" for each in more]
    return [
        NAMES[tool],
        UPDATES[name],
        f"{wall:.1f}",
        f"{cpu:.1f}",
        *per,
        f"{memory:,.0f}",
        f"{missing:,.0f}",
        f"{extra:,.0f}",
        "yes" if order < 4 / unchanged**0.5 else "no",
        "yes" if len(results.digests(tool, name, photos)) == 1 else "no",
    ]


def updates_table(results: Results, photos: int) -> str:
    """Returns the table of updates."""
    head = [
        "",
        "",
        "wall s",
        "CPU s",
        "wall ms per unchanged",
        "CPU ms per unchanged",
        "peak MiB",
        "photos missing",
        "removed ones left",
        "shuffled",
        "same bytes",
    ]
    tools = results.tools(f"new/{photos}", f"again/{photos}")
    found = ((t, name) for t in tools for name in UPDATES if results.rounds(t, f"{name}/{photos}"))
    return table(head, [update_line(results, tool, name, photos) for tool, name in found])


def without_sections(page: str, kinds: set[str]) -> str:
    """Returns the page without the sections of these kinds."""
    titles = tuple(kind.title() for kind in kinds)
    return "\n## ".join(part for part in page.split("\n## ") if not part.startswith(titles))


def write_page(folder: Path, found: list[dict], flags: argparse.Namespace) -> None:
    """Writes the page and its plots to a folder."""
    kinds = ("images", "large", "small", "rows", "updates")
    images, large, small, rows, updates = (Results(found, kind) for kind in kinds)
    failures = [
        f"- {NAMES[each['tool']]}, {each['case']}: {' '.join(each['failed'].split())}"
        for each in found
        if "failed" in each
    ]
    page = PAGE.format(
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}",
        images=builds_table(images, flags.counts, "images"),
        large=builds_table(large, flags.large, "photos"),
        small=builds_table(small, flags.small, "pictures"),
        rows=builds_table(rows, flags.rows, "rows"),
        updates=updates_table(updates, flags.photos),
        failures="\n".join(["\n## Failed\n", *failures, ""] if failures else [""]),
        versions="\n".join(f"- {NAMES[t]}: {', '.join(PACKAGES[t])}" for t in list(PACKAGES)[1:]),
        **{name: getattr(flags, name) for name in ("rounds", "photos", "added", "removed")},
    )
    missing = set(kinds) - {e["kind"] for e in found if "failed" not in e}
    page = without_sections(page, missing)
    (folder / "benchmarks-peers.md").write_text(page, encoding="utf-8")
    few, many = flags.counts[-2:]
    rates = {
        NAMES[tool]: (many - few) / images.between(tool, str(few), str(many), "wall")
        for tool in images.tools(str(few), str(many))
    }
    label = "images per second (500x375 JPEG to 224x224 JPEG)"
    if rates:
        plot_bars(rates, folder / "benchmarks-peers.png", label)
    times = {
        f"{NAMES[tool]}: {UPDATES[name]}": updates.median(tool, f"{name}/{flags.photos}", "wall")
        for name in ("new", "changed")
        for tool in updates.tools(f"{name}/{flags.photos}", f"again/{flags.photos}")
    }
    if times:
        plot_bars(times, folder / "benchmarks-peers-updates.png", "seconds", "{:,.1f}")
