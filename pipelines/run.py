"""Runs a pipeline on any runner until it ends, and returns its outcome."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from shardmill.pipelines.input_kinds import IMAGES, ProgressUnit
from shardmill.pipelines.report.progress_display import show_progress
from shardmill.pipelines.report.quiet import quiet_threads
from shardmill.pipelines.runners import IN_MEMORY, Job, Runner, find_runner, take_runner
from shardmill.pipelines.runners.error_text import find_shardmill_error
from shardmill.schemas.errors import OutputError, StaleBuildError
from shardmill.schemas.storage import open_storage

if TYPE_CHECKING:
    import apache_beam as beam

    from shardmill.transforms.build.outcome import Outcome
    from shardmill.transforms.runtime.progress import Progress

EXIT_INTERRUPTED = 130
_MAX_STALE_ATTEMPTS = 3


class Interrupted(Exception):  # noqa: N818 - not an error
    """The user pressed Ctrl-C, or a scheduler sent SIGTERM.

    Attributes:
        code: The exit code.
        remark: State of the job if it may still run, else empty.
    """

    def __init__(self, number: int = signal.SIGINT, remark: str = "") -> None:
        super().__init__(remark)
        self.code = 128 + number
        self.remark = remark


class Staged(Exception):  # noqa: N818 - not an error
    """The job was staged for a later launch, as that of a template is.

    Attributes:
        location: Path of the staged job.
    """

    def __init__(self, location: str) -> None:
        super().__init__(f"Staged {location}")
        self.location = location


@dataclass(frozen=True)
class RunResult:
    """The result of a pipeline that ended.

    Attributes:
        outcome: The outcome of the build or count.
        result: Beam's pipeline result.
        job: The job, if the runner has one.
    """

    outcome: Outcome
    result: Any
    job: Job | None = None

    def counters(self) -> dict[str, int | tuple[int, int, int, int]]:
        """Return Shardmill's counters by name; distributions as (count, sum, min, max).

        Asks the runner for them. Where it has no committed values, the attempted ones are used.
        """
        from shardmill.transforms.runtime import metrics

        counters: dict[str, int | tuple[int, int, int, int]] = {}
        queried = self.result.metrics().query()
        for kind in ("counters", "distributions"):
            for metric in queried[kind]:
                if metric.key.metric.namespace != metrics.NAMESPACE:
                    continue
                value = metric.attempted if metric.committed is None else metric.committed
                name = metric.key.metric.name
                if kind == "counters":
                    counters[name] = counters.get(name, 0) + value
                else:
                    counters[name] = (value.count, value.sum, value.min, value.max)
        return counters


def new_run_id() -> str:
    """Return a new identity for a run."""
    return uuid.uuid4().hex[:12]


def run_pipeline(
    define: Callable[[beam.Pipeline], Any], runner: str, argv: Sequence[str], output: str,
    *, unit: ProgressUnit = IMAGES, build: str = "",
) -> RunResult:  # fmt: skip
    """Run a pipeline until it ends.

    Args:
        define: Adds the transforms to a pipeline.
        runner: A name as ``take_runner`` returns it.
        argv: Beam's other flags.
        output: Folder of the dataset.
        unit: Unit of the progress, if the pipeline runs in this process.
        build: Build folder, whose finished parts are counted if it runs in other processes.

    Raises:
        ShardmillError: The run failed with an error that the user can act on.
        Interrupted: The user pressed Ctrl-C.
        Staged: The flags ask to stage the job instead of running it.
    """
    known = find_runner(runner)
    run_id = new_run_id()
    options = known.prepare(argv, f"shardmill-{run_id}")
    for number in range(1, _MAX_STALE_ATTEMPTS + 1):
        attempt = _Attempt(known, options, run_id, output, unit, build, number > 1)
        try:
            return _run_attempt(define, attempt)
        except Exception as error:
            ours = find_shardmill_error(error)
            if ours is None:
                raise
            # Another builder published during this run: the next attempt is mostly up to date.
            if not isinstance(ours, StaleBuildError) or number == _MAX_STALE_ATTEMPTS:
                raise ours from error
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class _Attempt:
    """One attempt of a run.

    Attributes:
        stale: Whether the attempt before ended because another builder had published.
    """

    runner: Runner
    argv: Sequence[str]
    run_id: str
    output: str
    unit: ProgressUnit
    build: str
    stale: bool


def _run_attempt(define: Callable[[beam.Pipeline], Any], attempt: _Attempt) -> RunResult:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from shardmill.transforms.build import outcome as outcomes
    from shardmill.transforms.runtime import progress

    runner = attempt.runner
    shown = _new_progress(attempt)
    options = PipelineOptions([*attempt.argv])
    with _interruptible(runner) as signals, contextlib.ExitStack() as stack:
        pipeline = beam.Pipeline(runner=runner.make(), options=options)
        # Beam deletes it only after a run that it started.
        stack.callback(shutil.rmtree, pipeline.local_tempdir, ignore_errors=True)
        outcome = define(pipeline)
        staged = runner.staged_at(options)
        if staged:  # no command will read its outcome: the job itself must fail
            outcome | "RaiseIfFailed" >> outcomes.RaiseIfFailed()
        elif runner.in_process:
            report = beam.Map(outcomes.report, attempt.run_id, os.getpid(), attempt.output)
            outcome | "ReportOutcome" >> report
            stack.enter_context(progress.collect(shown))
        else:
            report = beam.Map(outcomes.report_by_file, attempt.run_id, attempt.output)
            outcome | "ReportOutcome" >> report
        if not runner.in_process:
            stack.enter_context(quiet_threads())
        stack.enter_context(show_progress(shown))
        result, job = _Execution(runner, pipeline, signals).run(shown, attempt.build)
    if staged:
        raise Staged(staged)
    return RunResult(_take_outcome(attempt), result, job)


def _take_outcome(attempt: _Attempt) -> Outcome:
    """Return the outcome of a run that ended.

    Raises:
        OutputError: The run left none.
    """
    from shardmill.transforms.build import outcome as outcomes

    outcome = outcomes.take_reported(attempt.run_id)
    if outcome is None:  # another process published
        outcome = outcomes.fetch(attempt.run_id, attempt.output)
        if attempt.output:
            outcomes.delete_stale_outcomes(attempt.output)
    if outcome is None:
        where = f"in {attempt.output}: see its log" if attempt.output else "without --manifest"
        raise OutputError(f"The runner {attempt.runner.name} ended, but left no outcome {where}.")
    if attempt.stale and outcome.status == "up_to_date" and attempt.build:
        _delete_build(attempt.output, attempt.build)
    return outcome


def _delete_build(output: str, build: str) -> None:
    """Delete what this run wrote after another builder had published the same and deleted it.

    Only then: else the folder may hold parts of the same options over other inputs.
    """
    storage = open_storage(output)
    with storage.lock(output):
        storage.delete_tree(build)


def _new_progress(attempt: _Attempt) -> Progress:
    from shardmill.transforms.runtime.progress import Progress

    if not attempt.runner.in_process:
        return Progress(phase="starting", unit="parts", rejects_name="")
    unit = attempt.unit
    return Progress(unit=unit.name, per_unit=unit.size, rejects_name=unit.rejected)


@dataclass
class _Execution:
    """The execution of a pipeline.

    Attributes:
        runner: The runner.
        pipeline: The pipeline with its options.
        signals: Numbers of the signals that came.
    """

    runner: Runner
    pipeline: beam.Pipeline
    signals: list[int]

    def run(self, progress: Progress, build: str) -> tuple[Any, Job | None]:
        """Run the pipeline until it ends; return Beam's result and the job.

        Raises:
            Interrupted: A signal came; the job was cancelled.
            ShardmillError: The runner itself failed.
        """
        from shardmill.pipelines.runners.job_monitor import monitor_job

        options = self.pipeline.options
        result = None
        job: Callable[[], Job | None] = lambda: None  # noqa: E731
        try:
            if self.runner.in_process:
                result = self.pipeline.run()
                result.wait_until_finish()
                return result, None
            # Before the submission, which may take long itself.
            find_job = lambda: self.runner.find_job(options, result)  # noqa: E731
            with monitor_job(progress, build, find_job) as job:
                result = self.pipeline.run()
                self.runner.wait(result)
            return result, job() or self.runner.find_job(options, result)
        except BaseException as error:
            if self.signals:
                raise self._cancel(result) from error
            explained = None
            if not self.runner.in_process and find_shardmill_error(error) is None:
                known = job() or self.runner.find_job(options, result)
                explained = self.runner.explain(error, known)
            if explained is None:
                raise
            raise explained from error

    def _cancel(self, result: Any) -> Interrupted:
        number = self.signals[0]
        runner = self.runner
        if runner.in_process or runner.cancel(self.pipeline.options, result):
            return Interrupted(number)
        return Interrupted(number, f"the job may still run on {runner.name}: cancel it there")


@contextlib.contextmanager
def _interruptible(runner: Runner) -> Iterator[list[int]]:
    """Record Ctrl-C, which runners turn into their own errors; a second one kills the process.

    Also records SIGTERM if the job runs elsewhere: it would continue after this process.
    """
    signals: list[int] = []
    handled = [signal.SIGINT] if runner.in_process else [signal.SIGINT, signal.SIGTERM]

    def record(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        for each in handled:
            signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {each: signal.signal(each, record) for each in handled}
    try:
        yield signals
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


__all__ = [
    "EXIT_INTERRUPTED",
    "IN_MEMORY",
    "Interrupted",
    "RunResult",
    "Staged",
    "new_run_id",
    "run_pipeline",
    "show_progress",
    "take_runner",
]
