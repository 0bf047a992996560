"""What the commands that build a dataset share: option parsing, the run and its summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from shardmill.pipelines import run
from shardmill.pipelines.commands import find_parser
from shardmill.pipelines.commands.beam_flags import parse_flags
from shardmill.pipelines.input_kinds import INPUT_KINDS
from shardmill.pipelines.report.quiet import quiet_import, quiet_logs
from shardmill.pipelines.runners import find_runner


class BuildOptions(NamedTuple):
    """The options of a command that builds a dataset.

    Attributes:
        config: Options of the pipeline; of the class that its kind of input has.
        beam_flags: Beam's options.
        debug: Whether to show tracebacks and Beam's log.
    """

    config: Any
    beam_flags: list[str]
    debug: bool


def parse_build(kind: str, argv: list[str]) -> BuildOptions:
    """Return the options of a command line.

    Args:
        kind: Name of the kind of input, which is its command.
        argv: Arguments after the command.

    Raises:
        UsageError: A flag is unknown, missing or malformed.
    """
    parser = find_parser(kind)
    values, beam_flags, debug = parse_flags(parser, argv, required=("input", "output"))
    with quiet_import():
        config = INPUT_KINDS[kind].load_config()
    return BuildOptions(config(**values), beam_flags, debug)


def run_build(
    kind: str, config: Any, beam_flags: list[str], debug: bool,
    explain: Callable[[BaseException], Exception | None] | None = None,
) -> int:  # fmt: skip
    """Build and publish a dataset; return the exit code.

    Args:
        kind: Name of the kind of input.
        config: Options of the pipeline.
        beam_flags: Beam's options.
        debug: Whether to show Beam's log.
        explain: Returns the error to report instead of an error of another library, or None.
    """
    with quiet_import():
        pipeline_module = INPUT_KINDS[kind].load_pipeline()
        from shardmill.pipelines.preflight import check_writable
        from shardmill.pipelines.report import summary

    started = time.monotonic()
    runner, beam_flags = run.take_runner(beam_flags)
    if config.dry_run:
        runner = run.IN_MEMORY
    find_runner(runner).check_places([("--input", config.input), ("--output", config.output)])
    job = pipeline_module.resolve(config, runner=runner)
    output = config.absolute_output
    if not config.dry_run:
        check_writable(output)
    try:
        with quiet_logs(debug=debug):
            ended = run.run_pipeline(
                lambda pipeline: pipeline_module.outcomes(pipeline, job), runner, beam_flags,
                output, unit=INPUT_KINDS[kind].unit, build=job.sink.build,
            )  # fmt: skip
    except run.Staged as staged:
        print(staged)
        return 0
    except run.Interrupted as interrupted:
        remark = f" ({interrupted.remark})" if interrupted.remark else ""
        print(f"shardmill: interrupted{remark}; run again to resume.", file=sys.stderr)
        return interrupted.code
    except Exception as error:
        plain = explain(error) if explain else None
        if plain is None:
            raise
        raise plain from error
    seconds = time.monotonic() - started
    if debug:
        summary.print_counters(ended.counters())
    inputs = INPUT_KINDS[kind].inputs
    print("\n".join(summary.lines(ended.outcome, output, seconds, inputs)))
    return 0
