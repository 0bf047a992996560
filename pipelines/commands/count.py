"""``shardmill count``."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from shardmill.pipelines import run as runs
from shardmill.pipelines.commands import MEBIBYTES, find_parser
from shardmill.pipelines.commands.build import check_accepts_files, finish_run
from shardmill.pipelines.commands.parser import check_beam_flags
from shardmill.pipelines.report.terminal import Answer, quiet_import
from shardmill.pipelines.runners.base import IN_MEMORY, find_runner, take_runner
from shardmill.pipelines.tool_options import CountConfig
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardmill.pipelines.count_config import CountJob

CountOptions = CountConfig  # the table of the command


def run(config: CountConfig, answer: Answer, beam_flags: Sequence[str] = ()) -> int:
    """Count TFRecord files; return the exit code."""
    config, runner, beam_flags = configure(config, beam_flags)
    from shardmill.pipelines.count_config import resolve
    from shardmill.pipelines.report.summary import log_summary, render_count
    from shardmill.transforms.runtime.process_pool import close_all

    started = time.monotonic()
    job = resolve(config, runner=runner)
    folder = job.spec.manifest.rpartition("/")[0]
    if folder:
        check_accepts_files(folder, f"--manifest={job.spec.manifest}")
    ended = finish_run(
        _runner_of(job, runner, beam_flags, folder), answer, remedy="nothing was written"
    )
    if isinstance(ended, int):
        if ended:  # interrupted
            close_all()
        return ended
    if isinstance(ended, Manifest):
        manifest = ended
    elif ended.outcome.status == "failed":
        raise OutputError(ended.outcome.message)
    else:
        manifest = Manifest.from_json(ended.outcome.manifest)
    seconds = time.monotonic() - started
    status = "failed" if manifest.damaged else "counted"
    answer.give({"status": status, **json.loads(manifest.to_json())})
    if answer.quiet or not log_summary(
        "count", {"status": status, "seconds": seconds}, manifest.to_json(), ended
    ):
        answer.show(lambda _: render_count(manifest, job.spec.manifest, seconds))
    if manifest.damaged:
        files = manifest.inputs.matched - manifest.inputs.skipped - manifest.inputs.duplicates
        print(
            f"shardmill: {len(manifest.damaged):,} of {files:,} files are damaged or hold no "
            "TFRecords; the others were counted.",
            file=sys.stderr,
        )
        return OutputError.exit_code
    return 0


def _runner_of(
    job: CountJob, runner: str, beam_flags: list[str], folder: str
) -> Callable[[], Manifest | runs.RunResult]:
    """Return a function that counts: in this process, or with Beam if the flags ask for it."""
    if runner == IN_MEMORY and not beam_flags:  # to import Beam takes longer than most counts
        from shardmill.transforms.count.counting import count_now

        return lambda: runs.run_here(lambda: count_now(job.match, job.spec), MEBIBYTES)
    with quiet_import():
        from shardmill.pipelines.count import outcomes
    return lambda: runs.run_pipeline(
        lambda pipeline: outcomes(pipeline, job), runner, beam_flags, folder, new_progress=MEBIBYTES
    )


def configure(config: CountConfig, beam_flags: Sequence[str]) -> tuple[CountConfig, str, list[str]]:
    """Return the config, the runner, and Beam's other options.

    Raises:
        UsageError: A value breaks a rule.
    """
    from shardmill.transforms.runtime.process_pool import usable_cores

    check_beam_flags(config.beam_options, find_parser("count"), once=True)
    runner, beam_flags = take_runner([*beam_flags, *config.beam_options])
    if runner == IN_MEMORY:  # other runners start a process per core themselves
        return replace(config, processes=config.processes or usable_cores()), runner, beam_flags
    if not config.manifest:
        raise UsageError(f"--runner={runner} needs --manifest, which returns the result.")
    paths = [*(("--input", path) for path in config.paths), ("--manifest", config.manifest)]
    find_runner(runner).check_paths(paths)
    return config, runner, beam_flags
