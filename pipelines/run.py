"""Running: a pipeline on any runner, to its end, and what came of it."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from shardmill.pipelines.report.progress_display import show_progress
from shardmill.pipelines.report.quiet import quiet_threads
from shardmill.pipelines.runners import IN_MEMORY, Job, Runner, find_runner, take_runner
from shardmill.schemas.errors import (
    InputError,
    OutputError,
    ShardmillError,
    StaleBuildError,
    StorageError,
)
from shardmill.schemas.storage import open_storage

if TYPE_CHECKING:
    import apache_beam as beam

    from shardmill.transforms.build.outcome import Outcome
    from shardmill.transforms.runtime.progress import Progress

EXIT_INTERRUPTED = 130
_STALE_TRIES = 3
_OURS = re.compile(
    r"^shardmill\.schemas\.errors\.(\w+): (.*?)(?: \[while running '[^\n]*)?$", re.MULTILINE
)
_ERRORS = {
    error.__name__: error
    for error in (ShardmillError, InputError, OutputError, StorageError, StaleBuildError)
}


Unit = Literal["images", "MiB", "MiB of CSV"]
_UNITS: dict[Unit, tuple[int, str]] = {
    "images": (1, "rejected"),
    "MiB": (1 << 20, "damaged"),
    "MiB of CSV": (1 << 20, "rejected"),
}


class Interrupted(Exception):  # noqa: N818 - no error of anybody's
    """The person pressed Ctrl-C, or a scheduler asked the command to end.

    Attributes:
        code: The exit code.
        remark: What became of the job, where that is not plain.
    """

    def __init__(self, number: int = signal.SIGINT, remark: str = "") -> None:
        super().__init__(remark)
        self.code = 128 + number
        self.remark = remark


class Staged(Exception):  # noqa: N818 - no error of anybody's
    """The job was put down where others will run it, as templates are.

    Attributes:
        place: Where it is.
    """

    def __init__(self, place: str) -> None:
        super().__init__(f"Staged {place}")
        self.place = place


@dataclass(frozen=True)
class Ended:
    """A pipeline that ran to its end.

    Attributes:
        outcome: What came of it.
        result: What Beam returned.
        job: The job, where the runner has such a thing.
    """

    outcome: Outcome
    result: Any
    job: Job | None = None

    def counters(self) -> dict[str, int | tuple[int, int, int, int]]:
        """Returns Beam's counters of ours by name; distributions as (count, sum, least, most).

        Committed ones, or attempted ones where no others are. The runner is asked for them.
        """
        from shardmill.transforms.runtime import metrics

        found: dict[str, int | tuple[int, int, int, int]] = {}
        queried = self.result.metrics().query()
        for kind in ("counters", "distributions"):
            for metric in queried[kind]:
                if metric.key.metric.namespace != metrics.NAMESPACE:
                    continue
                value = metric.attempted if metric.committed is None else metric.committed
                name = metric.key.metric.name
                if kind == "counters":
                    found[name] = found.get(name, 0) + value
                else:
                    found[name] = (value.count, value.sum, value.min, value.max)
        return found


def new_run_id() -> str:
    """Return a new identity for a run."""
    return uuid.uuid4().hex[:12]


def plain_error(error: BaseException) -> ShardmillError | None:
    """Returns our own error inside an exception of a runner, or None when there is none."""
    if isinstance(error, ShardmillError):
        return type(error)(str(error).partition(" [while running '")[0])
    found = _OURS.findall(str(error))
    if not found:
        return None
    name, message = found[-1]
    return _ERRORS.get(name, ShardmillError)(message)


def run_pipeline(
    define: Callable[[beam.Pipeline], Any], runner: str, argv: Sequence[str], output: str,
    *, unit: Unit = "images", build: str = "",
) -> Outcome:  # fmt: skip
    """Runs a pipeline to its end and returns its outcome; see ``run_job``."""
    return run_job(define, runner, argv, output, unit=unit, build=build).outcome


def run_job(
    define: Callable[[beam.Pipeline], Any], runner: str, argv: Sequence[str], output: str,
    *, unit: Unit = "images", build: str = "",
) -> Ended:  # fmt: skip
    """Runs a pipeline to its end.

    Args:
        define: Adds the transforms to a pipeline.
        runner: A name as ``take_runner`` gives it.
        argv: Beam's other flags.
        output: Folder of the dataset.
        unit: Unit of the progress, where the pipeline runs in this process.
        build: Folder of the build, whose parts are counted where it runs elsewhere.

    Raises:
        ShardmillError: The run failed with a sentence of ours.
        Interrupted: The person pressed Ctrl-C.
        Staged: The flags say that others run it.
    """
    found = find_runner(runner)
    run_id = new_run_id()
    options = found.prepare(argv, f"shardmill-{run_id}")
    for tries in range(1, _STALE_TRIES + 1):
        this = _Try(found, options, run_id, output, unit, build, tries > 1)
        try:
            return _run_once(define, this)
        except Exception as error:
            ours = plain_error(error)
            if ours is None:
                raise
            # Another builder published meanwhile: look again, most often all is up to date.
            if not isinstance(ours, StaleBuildError) or tries == _STALE_TRIES:
                raise ours from error
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class _Try:
    """One try of a run; ``stale``: the try before ended since another builder had published."""

    runner: Runner
    argv: Sequence[str]
    run_id: str
    output: str
    unit: Unit
    build: str
    stale: bool


def _run_once(define: Callable[[beam.Pipeline], Any], this: _Try) -> Ended:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from shardmill.transforms.build import outcome as outcomes
    from shardmill.transforms.runtime import progress

    runner = this.runner
    shown = _progress(this)
    options = PipelineOptions([*this.argv])
    with _interruptible(runner) as interrupted, contextlib.ExitStack() as stack:
        pipeline = beam.Pipeline(runner=runner.make(), options=options)
        # Beam removes it only after a run that it began.
        stack.callback(shutil.rmtree, pipeline.local_tempdir, ignore_errors=True)
        found = define(pipeline)
        staged = runner.staged_at(options)
        if staged:  # no command will read its outcome: the job itself must fail
            found | "RaiseIfFailed" >> outcomes.RaiseIfFailed()
        elif runner.in_process:
            found | "ReportOutcome" >> beam.Map(outcomes.report, this.run_id)
            stack.enter_context(progress.collect(shown))
        else:
            report = beam.Map(outcomes.report_by_file, this.run_id, this.output)
            found | "ReportOutcome" >> report
        if not runner.in_process:
            stack.enter_context(quiet_threads())
        stack.enter_context(show_progress(shown))
        running = _Running(runner, pipeline, interrupted)
        result, job = running.to_its_end(shown, this.build)
    if staged:
        raise Staged(staged)
    return Ended(_outcome(this), result, job)


def _outcome(this: _Try) -> Outcome:
    """Return the outcome of a run that ended.

    Raises:
        OutputError: The runner left none.
    """
    from shardmill.transforms.build import outcome as outcomes

    outcome = outcomes.take_reported(this.run_id)
    if outcome is None:  # another process published
        outcome = outcomes.fetch(this.run_id, this.output)
        if this.output:
            outcomes.delete_stale_outcomes(this.output)
    if outcome is None:
        where = f"in {this.output}: see its log" if this.output else "for want of --manifest"
        raise OutputError(f"The runner {this.runner.name} ended, but left no outcome {where}.")
    if this.stale and outcome.status == "up_to_date" and this.build:
        _delete_build(this.output, this.build)
    return outcome


def _delete_build(output: str, build: str) -> None:
    """Delete what this run wrote after another builder had published the same and deleted it.

    Only then: else the folder may hold parts of the same options over other inputs.
    """
    storage = open_storage(output)
    with storage.lock(output):
        storage.delete_tree(build)


def _progress(this: _Try) -> Progress:
    from shardmill.transforms.runtime.progress import Progress

    if not this.runner.in_process:
        return Progress(phase="starting", unit="parts", refused="")
    per_unit, rejected = _UNITS[this.unit]
    return Progress(unit=this.unit, per_unit=per_unit, refused=rejected)


@dataclass
class _Running:
    """A pipeline that is about to run."""

    runner: Runner
    pipeline: beam.Pipeline
    interrupted: list[int]

    def to_its_end(self, watched: Progress, build: str) -> tuple[Any, Job | None]:
        """Runs it; returns Beam's result and the job.

        Raises:
            Interrupted: A signal came; the job was cancelled.
            ShardmillError: The runner itself failed.
        """
        from shardmill.pipelines.runners.job_monitor import follow

        options = self.pipeline.options
        result = None
        job: Callable[[], Job | None] = lambda: None  # noqa: E731
        try:
            if self.runner.in_process:
                result = self.pipeline.run()
                result.wait_until_finish()
                return result, None
            # Before it is submitted: that alone may take long.
            with follow(watched, build, lambda: self.runner.find_job(options, result)) as job:
                result = self.pipeline.run()
                self.runner.wait(result)
            return result, job() or self.runner.find_job(options, result)
        except BaseException as error:
            if self.interrupted:
                raise self._cancelled(result) from error
            plain = None
            if not self.runner.in_process and plain_error(error) is None:
                known = job() or self.runner.find_job(options, result)
                plain = self.runner.explain(error, known)
            if plain is None:
                raise
            raise plain from error

    def _cancelled(self, result: Any) -> Interrupted:
        number = self.interrupted[0]
        runner = self.runner
        if runner.in_process or runner.cancel(self.pipeline.options, result):
            return Interrupted(number)
        return Interrupted(number, f"the job may still run on {runner.name}: cancel it there")


@contextlib.contextmanager
def _interruptible(runner: Runner) -> Iterator[list[int]]:
    """Notes Ctrl-C, which runners turn into errors of their own; a second one ends at once.

    SIGTERM too where a job runs elsewhere and would go on; alone it ends a process as well as any.
    """
    interrupted: list[int] = []
    caught = [signal.SIGINT] if runner.in_process else [signal.SIGINT, signal.SIGTERM]

    def note(number: int, _frame: FrameType | None) -> None:
        interrupted.append(number)
        for each in caught:
            signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = {each: signal.signal(each, note) for each in caught}
    try:
        yield interrupted
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


__all__ = [
    "EXIT_INTERRUPTED",
    "IN_MEMORY",
    "Ended",
    "Interrupted",
    "Staged",
    "Unit",
    "new_run_id",
    "plain_error",
    "run_job",
    "run_pipeline",
    "show_progress",
    "take_runner",
]
