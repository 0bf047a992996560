"""``shardmill count``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shardmill.pipelines import run
from shardmill.pipelines.flags.count import count_parser
from shardmill.pipelines.report.numbers import human_bytes
from shardmill.pipelines.report.progress_display import quiet_logs, show_counters
from shardmill.pipelines.report.terminal import clean
from shardmill.pipelines.runners import find_runner
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import OutputError, UsageError

if TYPE_CHECKING:
    from shardmill.pipelines.count import CountConfig

_SHOWN = 20


def main(argv: list[str]) -> int:
    """Counts TFRecord files; returns the exit code."""
    count_parser().parse_known_args(argv)  # what it can tell needs no Beam
    with run.quiet_import():
        from shardmill.pipelines.count import outcomes, resolve
        from shardmill.pipelines.preflight import check_takes_files
        from shardmill.transforms.runtime.process_pool import close_all
    started = time.monotonic()
    config, runner, rest, debug = _parse(argv)
    invocation = run.new_invocation()
    job = resolve(config, runner=runner, invocation=invocation)
    folder = job.spec.manifest.rpartition("/")[0]
    if folder:
        check_takes_files(folder, f"--manifest={job.spec.manifest}")
    try:
        with quiet_logs(debug=debug):
            ended = run.run_job(
                lambda pipeline: outcomes(pipeline, job), runner, rest, invocation, folder,
                unit="MiB",
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
        show_counters(ended.counters())
    outcome = ended.outcome
    if outcome.status == "failed":
        raise OutputError(outcome.message)
    manifest = Manifest.from_json(outcome.manifest)
    seconds = time.monotonic() - started
    print("\n".join(map(clean, lines(manifest, job.spec.manifest, seconds))))
    if manifest.damaged:
        files = manifest.inputs.matched - manifest.inputs.skipped - manifest.inputs.duplicates
        print(
            f"shardmill: {len(manifest.damaged):,} of {files:,} files are damaged or hold no "
            "TFRecords; the others were counted.",
            file=sys.stderr,
        )
        return OutputError.exit_code
    return 0


def _parse(argv: list[str]) -> tuple[CountConfig, str, list[str], bool]:
    """Returns the config, the runner, Beam's options, and whether to debug.

    Raises:
        UsageError: A flag breaks a rule.
    """
    from shardmill.pipelines.count import CountConfig
    from shardmill.pipelines.options import check_beam_flags
    from shardmill.transforms.runtime.process_pool import usable_cores

    known, rest = count_parser().parse_known_args(argv)
    values: dict[str, Any] = vars(known)
    debug = values.pop("debug", False)
    check_beam_flags(rest, [action.option_strings[0] for action in count_parser()._actions])  # noqa: SLF001
    if "input" not in values:
        raise UsageError("--input is missing: give a folder, a glob, a list or a file.")
    runner, rest = run.take_runner(rest)
    # Other runners have a process for each core of their own.
    values.setdefault("processes", usable_cores() if runner == run.IN_MEMORY else 1)
    config = CountConfig(**{**values, "input": tuple(values["input"])})
    if runner != run.IN_MEMORY and not config.manifest:
        raise UsageError(f"--runner={runner} needs --manifest: the result comes from there.")
    places = [*(("--input", path) for path in config.input), ("--manifest", config.manifest)]
    find_runner(runner).check_places(places)
    return config, runner, rest, debug


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
