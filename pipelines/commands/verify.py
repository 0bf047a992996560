"""``shardmill verify``: does not import Apache Beam."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shardmill.pipelines.commands import MEBIBYTES
from shardmill.pipelines.commands.build import finish_run
from shardmill.pipelines.report.terminal import Answer, hide_progress, quiet_import, show_progress
from shardmill.pipelines.run import run_pipeline
from shardmill.pipelines.runners.base import IN_MEMORY, find_runner, take_runner
from shardmill.pipelines.tool_options import VerifyOptions
from shardmill.schemas.errors import OutputError, UsageError
from shardmill.schemas.numbers import human_bytes, printable
from shardmill.schemas.storage import absolute

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shardmill.pipelines.report.layout import Layout
    from shardmill.transforms.publish.check_version import Finding
    from shardmill.transforms.verify.verify import Dataset


def run(options: VerifyOptions, answer: Answer, beam_flags: Sequence[str] = ()) -> int:
    """Check a dataset; return the exit code."""
    from shardmill.transforms.runtime.process_pool import close_all, usable_cores
    from shardmill.transforms.verify.verify import find_dataset, verify_dataset

    started = time.monotonic()
    dataset = find_dataset(os.fspath(options.dataset))
    runner, beam_flags = take_runner(beam_flags)
    if runner != IN_MEMORY:
        if options.deep:
            raise UsageError(
                f"--deep reads records on this machine, and --runner={runner} on others: leave one "
                "of them out."
            )
        result = _verify_on(runner, beam_flags, dataset, answer)
        if isinstance(result, int):
            return result
        findings = result
    else:
        progress = MEBIBYTES()
        try:
            with hide_progress(answer.quiet), show_progress(progress):
                findings = verify_dataset(
                    dataset,
                    options.processes or usable_cores(),
                    progress,
                    deep=options.deep,
                )
        except KeyboardInterrupt:
            close_all()
            raise
    seconds = time.monotonic() - started
    answer.give(report(dataset, findings))
    answer.show(lambda layout: render(dataset, findings, seconds, layout))
    if findings:
        files = len({finding.file for finding in findings})
        print(
            f"shardmill: {files:,} file{'s are' if files > 1 else ' is'} not as the manifest says: "
            f"{_remedy(dataset)}.",
            file=sys.stderr,
        )
        return OutputError.exit_code
    return 0


def _verify_on(
    runner: str, beam_flags: Sequence[str], dataset: Dataset, answer: Answer
) -> list[Finding] | int:
    """Return the findings, whose shards workers of a runner read; the exit code if interrupted."""
    with quiet_import():
        from shardmill.transforms.verify.transform import verify_shards
    from shardmill.transforms.publish.check_version import Finding
    from shardmill.transforms.verify.verify import check_metadata

    if dataset.counted:
        raise UsageError(
            f"--runner={runner} verifies the folder of a dataset, not the manifest of a count: "
            "leave it out."
        )
    output, folder = absolute(dataset.output), absolute(dataset.root)
    find_runner(runner).check_paths([("DIR", output)])
    define = lambda root: verify_shards(root, folder, len(dataset.manifest.shards))  # noqa: E731
    ended = finish_run(
        lambda: run_pipeline(define, runner, beam_flags, output), answer, remedy="run again"
    )
    if isinstance(ended, int):
        return ended
    changes = ended.outcome.changes
    return [*check_metadata(dataset), *(Finding(*json.loads(change)) for change in changes)]


def _remedy(dataset: Dataset) -> str:
    """Return how to repair a damaged dataset; with the command that builds it, where known."""
    command = dataset.manifest.build.command
    if dataset.counted or not command:
        return "restore or build again what is named above"
    words = [word for word in command if not word.startswith("--output=")]
    words += [f"--output={absolute(dataset.output)}", "--overwrite"]
    return f"build it again by `{printable(shlex.join(words))}`"


def report(dataset: Dataset, findings: Sequence[Finding]) -> dict[str, object]:
    """Return the findings as plain data: status, root, sound, examples, shards and faults."""
    return {
        "status": "failed" if findings else "ok",
        "root": dataset.root,
        "sound": not findings,
        "examples": dataset.manifest.written,
        "shards": len(dataset.manifest.shards),
        "faults": [finding._asdict() for finding in findings],
    }


def render(
    dataset: Dataset, findings: Sequence[Finding], seconds: float, layout: Layout
) -> Iterator[RenderableType]:
    """Yield a table of the splits and one line per fault."""
    from shardmill.pipelines.report.layout import whole_line

    faulty = {finding.file for finding in findings}
    rows = []
    for name, split in dataset.manifest.splits.items():
        bad, size = sum(s.file in faulty for s in split.shards), human_bytes(split.num_bytes)
        checks = f"{bad:,} faulty" if bad else "all sound"
        rows.append((name, f"{split.num_examples:,}", f"{len(split.shards):,}", size, checks))
    yield whole_line(f"Verified {dataset.output or dataset.root}")
    header = ("split", "examples", "shards", "bytes", "checks")
    yield layout.table(rows, "<>>><", header=header)
    total = sum(split.num_bytes for split in dataset.manifest.splits.values())
    yield layout.line(f"  {seconds:,.1f} s, {human_bytes(total / max(seconds, 1e-9))}/s")
    for finding in findings:
        yield whole_line(f"  fault  {finding.file}: {finding.message}")
