"""``shardmill images``."""

from __future__ import annotations

import logging
import sys
import time

from shardmill.pipelines import run


def main(argv: list[str]) -> int:
    """Builds and publishes a dataset of images; returns the exit code."""
    with run.quiet_import():
        from shardmill.pipelines import summary
        from shardmill.pipelines.options import parse_images

        config, rest, debug = parse_images(argv)
        from shardmill.pipelines.images import outcomes, resolve
        from shardmill.pipelines.preflight import check_writable
    # Beam logs whole tracebacks of errors that end here as one sentence.
    logging.getLogger().setLevel(logging.INFO if debug else logging.CRITICAL)
    started = time.monotonic()
    runner, rest = run.take_runner(rest)
    if config.dry_run:
        runner = run.IN_MEMORY
    invocation = run.new_invocation()
    job = resolve(config, runner=runner, invocation=invocation)
    output = job.sink.output
    if not config.dry_run:
        check_writable(output)
    try:
        outcome = run.run_pipeline(
            lambda pipeline: outcomes(pipeline, job), runner, rest, invocation, output
        )
    except run.Interrupted:
        print("shardmill: interrupted; run again to resume.", file=sys.stderr)
        return run.EXIT_INTERRUPTED
    seconds = time.monotonic() - started
    print("\n".join(summary.lines(outcome, output, seconds)))
    return 0
