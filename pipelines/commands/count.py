"""``shardmill count``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shardmill.pipelines import run
from shardmill.pipelines.commands.beam_flags import parse_flags
from shardmill.pipelines.commands.build_flags import RUNNERS
from shardmill.pipelines.commands.parser import Parser, add_debug, command_parser
from shardmill.pipelines.input_kinds import MEBIBYTES
from shardmill.pipelines.report.numbers import human_bytes
from shardmill.pipelines.report.quiet import quiet_import, quiet_logs
from shardmill.pipelines.report.summary import print_counters
from shardmill.pipelines.report.terminal import printable
from shardmill.pipelines.runners import find_runner
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import OutputError, UsageError

if TYPE_CHECKING:
    from shardmill.pipelines.count import CountConfig

_SHOWN = 20
_EPILOG = """\
example:
  shardmill count --input=taxi --manifest=taxi.json

Every Apache Beam pipeline option works too. Exit codes: 0 all counted, 1 a
file is damaged or the run failed, 2 usage error, 130 interrupted."""


def make_parser() -> Parser:
    """Return the parser of the command."""
    description = "Count the records of any TFRecord files, and check them."
    parser = command_parser("count", "--input PATH [PATH ...] [FLAGS]", description, _EPILOG)
    parser.argument_default = argparse.SUPPRESS
    add = parser.add_argument
    add("--input", nargs="+", action="extend", metavar="PATH",
        help="folders, globs, files, or lists of paths (.txt, .csv)")  # fmt: skip
    add("--manifest", metavar="FILE", help="write a manifest to this file")
    add("--check", metavar="HOW", help="records: read all and check every CRC (default); "
        "index: trust sound member indexes, read as little as counting needs")  # fmt: skip
    add("--root", metavar="DIR", help="names are relative to it (default: the input's folder)")
    add("--follow_links", action="store_true", help="follow links that lead outside the root")
    add("--processes", type=int, metavar="N", help="concurrent readers (default: one per core)")
    add_debug(parser, "tracebacks and Beam's log")
    parser.suggestions = {"--check": ("records", "index"), "--runner": RUNNERS}
    return parser


def main(argv: list[str]) -> int:
    """Count TFRecord files; return the exit code."""
    config, runner, beam_flags, debug = parse(argv)
    with quiet_import():
        from shardmill.pipelines.count import outcomes, resolve
        from shardmill.pipelines.preflight import check_accepts_files
        from shardmill.transforms.runtime.process_pool import close_all
    started = time.monotonic()
    job = resolve(config, runner=runner)
    folder = job.spec.manifest.rpartition("/")[0]
    if folder:
        check_accepts_files(folder, f"--manifest={job.spec.manifest}")
    try:
        with quiet_logs(debug=debug):
            ended = run.run_pipeline(
                lambda pipeline: outcomes(pipeline, job), runner, beam_flags, folder,
                unit=MEBIBYTES,
            )  # fmt: skip
    except run.Staged as staged:
        print(staged)
        return 0
    except run.Interrupted as interrupted:
        close_all()
        remark = f" ({interrupted.remark})" if interrupted.remark else ""
        print(f"shardmill: interrupted{remark}; nothing was written.", file=sys.stderr)
        return interrupted.code
    if debug:
        print_counters(ended.counters())
    outcome = ended.outcome
    if outcome.status == "failed":
        raise OutputError(outcome.message)
    manifest = Manifest.from_json(outcome.manifest)
    seconds = time.monotonic() - started
    print("\n".join(map(printable, lines(manifest, job.spec.manifest, seconds))))
    if manifest.damaged:
        files = manifest.inputs.matched - manifest.inputs.skipped - manifest.inputs.duplicates
        print(
            f"shardmill: {len(manifest.damaged):,} of {files:,} files are damaged or hold no "
            "TFRecords; the others were counted.",
            file=sys.stderr,
        )
        return OutputError.exit_code
    return 0


def parse(argv: list[str]) -> tuple[CountConfig, str, list[str], bool]:
    """Return the config, the runner, Beam's options, and whether to debug.

    Raises:
        UsageError: A flag breaks a rule.
    """
    values, beam_flags, debug = parse_flags(make_parser(), argv, required=("input",))
    with quiet_import():
        from shardmill.pipelines.count import CountConfig
        from shardmill.transforms.runtime.process_pool import usable_cores

    runner, beam_flags = run.take_runner(beam_flags)
    # Other runners start a process per core themselves.
    values.setdefault("processes", usable_cores() if runner == run.IN_MEMORY else 1)
    config = CountConfig(**{**values, "input": tuple(values["input"])})
    if runner != run.IN_MEMORY and not config.manifest:
        raise UsageError(f"--runner={runner} needs --manifest, which returns the result.")
    paths = [*(("--input", path) for path in config.input), ("--manifest", config.manifest)]
    find_runner(runner).check_places(paths)
    return config, runner, beam_flags, debug


def lines(manifest: Manifest, path: str, seconds: float) -> Iterator[str]:
    """Yields what a count says in the end."""
    inputs = manifest.inputs
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    size = sum(shard.bytes for shard in shards)
    yield f"Counted {inputs.root}"
    skipped = f", {inputs.skipped:,} skipped" if inputs.skipped else ""
    double = f", {inputs.duplicates:,} named twice" if inputs.duplicates else ""
    yield f"  files      {inputs.matched:,} matched{skipped}{double}"
    width = max([10, *(len(name) for name in manifest.splits)])
    for name, split in manifest.splits.items():
        files = f"{len(split.shards):,} file{'s' if len(split.shards) != 1 else ''}"
        yield (
            f"  {name:<{width}} {split.num_examples:,} records in {files}, "
            f"{human_bytes(split.num_bytes)}"
        )
    for damaged in manifest.damaged[:_SHOWN]:
        yield f"  damaged    {damaged.file}: {damaged.message}"
    if len(manifest.damaged) > _SHOWN:
        yield f"  damaged    and {len(manifest.damaged) - _SHOWN:,} more, see the manifest"
    for warning in manifest.warnings[:_SHOWN]:
        yield f"  warning    {warning}"
    if len(manifest.warnings) > _SHOWN:
        yield f"  warning    and {len(manifest.warnings) - _SHOWN:,} more, see the manifest"
    yield f"  time       {seconds:,.1f} s, {human_bytes(size / max(seconds, 1e-9))}/s"
    if path:
        yield f"  manifest   {path}"
        full = next((name for name, split in manifest.splits.items() if split.num_examples), "")
        if full and not manifest.damaged:
            yield "Next:"
            yield f"  shardmill steps {path} --split={full} --batch_size=32"
