"""``shardmill verify``: does not import Apache Beam."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shardmill.pipelines import run
from shardmill.pipelines.commands.parser import Parser, add_debug, command_parser
from shardmill.pipelines.report.numbers import human_bytes
from shardmill.pipelines.report.terminal import clean
from shardmill.schemas.errors import OutputError, UsageError

if TYPE_CHECKING:
    from shardmill.transforms.verify.verify import Dataset, Finding

_DESCRIPTION = """\
Check every byte of a dataset against its manifest, and every example against
its schema."""
_EPILOG = """\
example:
  shardmill verify ds

Exit codes: 0 sound, 1 damaged, 2 usage error, 130 interrupted."""


def make_parser() -> Parser:
    """Return the parser of the command."""
    parser = command_parser("verify", "DIR [FLAGS]", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("dataset", metavar="DIR", help="folder of a dataset, or a manifest of shardmill count")
    add("--processes", type=int, metavar="N", help="concurrent readers (default: one per core)")
    add("--json", action="store_true", help="print the result as JSON")
    add_debug(parser)
    return parser


def main(argv: list[str]) -> int:
    """Check a dataset against its manifest and schema; return the exit code."""
    flags = make_parser().parse_args(argv)
    if flags.processes is not None and flags.processes < 1:
        raise UsageError(f"--processes={flags.processes} must be 1 or more.")
    from shardmill.transforms.runtime.process_pool import close_all, usable_cores
    from shardmill.transforms.runtime.progress import Progress
    from shardmill.transforms.verify.verify import find_dataset, verify_dataset

    started = time.monotonic()
    dataset = find_dataset(flags.dataset)
    watched = Progress(unit="MiB", per_unit=1 << 20, refused="damaged")
    try:
        with run.show_progress(watched):
            findings = verify_dataset(dataset, flags.processes or usable_cores(), watched)
    except KeyboardInterrupt:
        close_all()
        raise
    seconds = time.monotonic() - started
    if flags.json:
        print(json.dumps(report(dataset, findings), ensure_ascii=False))
    else:
        print("\n".join(map(clean, lines(dataset, findings, seconds))))
    if findings:
        files = len({finding.file for finding in findings})
        print(
            f"shardmill: {files:,} file{'s are' if files > 1 else ' is'} not as the manifest says: "
            "restore or build again what is named above.",
            file=sys.stderr,
        )
        return OutputError.exit_code
    return 0


def report(dataset: Dataset, findings: Sequence[Finding]) -> dict[str, object]:
    """Returns what was found as plain data: root, sound, examples, shards and faults."""
    return {
        "root": dataset.root,
        "sound": not findings,
        "examples": dataset.manifest.written,
        "shards": len(dataset.shards),
        "faults": [finding._asdict() for finding in findings],
    }


def lines(dataset: Dataset, findings: Sequence[Finding], seconds: float) -> Iterator[str]:
    """Yields a table of the splits, and one line a fault."""
    faulty = {finding.file for finding in findings}
    rows = [("split", "examples", "shards", "bytes", "checks")]
    for name, split in dataset.manifest.splits.items():
        bad = sum(shard.file in faulty for shard in split.shards)
        rows.append(
            (
                name,
                f"{split.num_examples:,}",
                f"{len(split.shards):,}",
                human_bytes(split.num_bytes),
                f"{bad:,} faulty" if bad else "all sound",
            )
        )
    yield f"Verified {dataset.root}"
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        name, *numbers, checks = row
        aligned = (text.rjust(width) for text, width in zip(numbers, widths[1:-1], strict=True))
        yield f"  {name.ljust(widths[0])}  {'  '.join(aligned)}  {checks}"
    size = sum(split.num_bytes for split in dataset.manifest.splits.values())
    yield f"  {seconds:,.1f} s, {human_bytes(size / max(seconds, 1e-9))}/s"
    for finding in findings:
        yield f"  fault  {finding.file}: {finding.message}"
