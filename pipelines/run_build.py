"""What the commands that build a dataset share, once their flags are read."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from shardmill.pipelines import run
from shardmill.pipelines.report import summary
from shardmill.pipelines.report.progress_display import quiet_logs, show_counters
from shardmill.pipelines.runners import find_runner

if TYPE_CHECKING:
    import apache_beam as beam

    from shardmill.pipelines.build_config import BuildConfig


class Pipeline(Protocol):
    """A module of a pipeline, such as ``pipelines.images``."""

    def resolve(self, config: Any, *, runner: str = "", invocation: str = "") -> Any:
        """Returns the job of a config."""
        ...

    def outcomes(self, root: beam.Pipeline, job: Any) -> Any:
        """Wires the pipeline."""
        ...


def run_build(
    module: Pipeline, config: BuildConfig, rest: list[str], *, debug: bool, unit: run.Unit,
    explain: Callable[[BaseException], Exception | None] | None = None,
) -> int:  # fmt: skip
    """Builds and publishes a dataset; returns the exit code.

    Args:
        module: The pipeline.
        config: Its options.
        rest: Beam's options.
        debug: Whether to show Beam's log.
        unit: What progress is told in.
        explain: Finds the plain sentence in an error of another library.
    """
    from shardmill.pipelines.preflight import check_writable

    started = time.monotonic()
    runner, rest = run.take_runner(rest)
    if config.dry_run:
        runner = run.IN_MEMORY
    invocation = run.new_invocation()
    find_runner(runner).check_places([("--input", config.input), ("--output", config.output)])
    job = module.resolve(config, runner=runner, invocation=invocation)
    output = config.absolute_output
    if not config.dry_run:
        check_writable(output)
    try:
        with quiet_logs(debug=debug):
            ended = run.run_job(
                lambda pipeline: module.outcomes(pipeline, job), runner, rest, invocation, output,
                unit=unit, build=job.sink.build,
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
        show_counters(ended.counters())
    print("\n".join(summary.lines(ended.outcome, output, seconds, config.noun)))
    return 0
