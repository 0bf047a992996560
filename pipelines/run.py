"""Runs a pipeline on any runner until it ends, and returns its outcome."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import signal
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from shardmill.pipelines.commands import IMAGES, NewProgress
from shardmill.pipelines.quick_start import remember_signatures
from shardmill.pipelines.report.terminal import (
    SIGNALS,
    delayed_signals,
    hide_thread_errors,
    show_progress,
)
from shardmill.pipelines.runners.base import Job, Runner, find_runner, find_shardmill_error
from shardmill.pipelines.temporary import (
    delete_abandoned_folders,
    temporary_files_in,
    temporary_folder,
)
from shardmill.schemas.errors import LostWorkerError, OutputError, StaleBuildError
from shardmill.schemas.storage import open_storage

if TYPE_CHECKING:
    import apache_beam as beam

    from shardmill.transforms.runtime.progress import Progress
    from shardmill.transforms.sink.spec import Outcome

_MAX_STALE_ATTEMPTS = 3
_AGAIN_SECONDS = 3.0  # until an interrupt that did not arrive is raised again
T = TypeVar("T")


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
    """The job was staged for a later launch, as for a template; the message says where."""


@dataclass(frozen=True)
class RunResult:
    """The result of a pipeline that ended.

    Attributes:
        outcome: The outcome of the build or count.
        result: Beam's pipeline result, or None if a worker was lost after the outcome.
    """

    outcome: Outcome
    result: Any

    def counters(self) -> dict[str, Any]:
        """Return Shardmill's counters by name; distributions as their count, sum, min and max.

        Asks the runner for them. Attempted values are used if it has no committed ones.
        """
        if self.result is None:
            return {}
        from apache_beam.metrics import MetricsFilter

        from shardmill.transforms.runtime import metrics

        metric_results = self.result.metrics().query(
            MetricsFilter().with_namespace(metrics.NAMESPACE)
        )
        totals = Counter[str]()
        for metric in metric_results["counters"]:
            # Beam takes "committed or attempted", which is None for a committed 0 on Prism.
            totals[metric.key.metric.name] += metric.result or 0
        named = {
            metric.key.metric.name: metric.result for metric in metric_results["distributions"]
        }
        fields = ("count", "sum", "min", "max")
        return {**totals, **{k: {f: getattr(v, f) for f in fields} for k, v in named.items()}}


def new_run_id() -> str:
    """Return a new identity for a run."""
    return uuid.uuid4().hex[:12]


def run_pipeline(
    define: Callable[[beam.Pipeline], Any],
    runner: str,
    argv: Sequence[str],
    output: str,
    *,
    new_progress: NewProgress = IMAGES,
    build: str = "",
    command: str = "",
) -> RunResult:
    """Run a pipeline until it ends.

    Args:
        define: Adds the transforms to a pipeline.
        runner: A name as ``take_runner`` returns it.
        argv: Beam's other flags.
        output: Folder of the dataset.
        new_progress: Returns the progress, if the pipeline runs in this process.
        build: Build folder, whose finished parts are counted if it runs in other processes.
        command: What the pipeline does; an equal command finds its running job where the runner
            can. Empty: each run has a new job.

    Raises:
        ShardmillError: The run failed with an error that the user can act on.
        Interrupted: The user pressed Ctrl-C.
        Staged: The flags ask to stage the job instead of running it.
    """
    from shardmill.transforms.sink.spec import take_reported

    delete_abandoned_folders()
    chosen_runner = find_runner(runner)
    # To the job of an equal command, which this identity names.
    reconnects = bool(chosen_runner.finds_jobs and command)
    run_id = hashlib.sha256(command.encode()).hexdigest()[:12] if reconnects else new_run_id()
    run = _Run(
        chosen_runner,
        chosen_runner.prepare(argv, f"shardmill-{run_id}"),
        run_id,
        output,
        new_progress,
        build,
    )
    for number in range(1, _MAX_STALE_ATTEMPTS + 1):
        try:
            result = run.execute(define)
            return RunResult(run.take_outcome(stale=number > 1), result)
        except LostWorkerError:
            # Workers that were only to end have no part in an outcome that was reported.
            outcome = take_reported(run_id, output)
            if outcome is None:
                raise
            return RunResult(outcome, None)
        except Exception as error:
            ours = find_shardmill_error(error)
            if ours is None:
                raise
            # Another builder published during this run: the next attempt is mostly up to date.
            if not isinstance(ours, StaleBuildError) or number == _MAX_STALE_ATTEMPTS:
                raise ours from error
    raise AssertionError("unreachable")


def run_here(function: Callable[[], T], new_progress: NewProgress) -> T:
    """Run a function in this process without Beam, and show its progress.

    Args:
        function: Reports its progress as transforms do.
        new_progress: Returns the progress.

    Raises:
        Interrupted: The user pressed Ctrl-C.
    """
    from shardmill.transforms.runtime import progress

    run_progress = new_progress()
    with _interruptible(), progress.collect(run_progress), show_progress(run_progress):
        return function()


@dataclass(frozen=True)
class _Run:
    """A run, which may need several attempts; see ``run_pipeline`` for the attributes."""

    runner: Runner
    argv: Sequence[str]
    run_id: str
    output: str
    new_progress: NewProgress
    build: str

    def execute(self, define: Callable[[beam.Pipeline], Any]) -> Any:
        """Run the pipeline once; return Beam's result.

        Raises:
            Interrupted: A signal came; the job was cancelled.
            Staged: The job was staged instead.
        """
        import apache_beam as beam

        from shardmill.transforms.runtime import progress
        from shardmill.transforms.runtime.beam_steps import CachedOptions, RaiseIfFailed
        from shardmill.transforms.sink import spec as outcomes

        in_process = self.runner.in_process
        parts = progress.Progress(phase="starting", unit="parts", rejects_name="")
        run_progress = self.new_progress() if in_process else parts
        options = CachedOptions([*self.argv])
        remember_signatures()
        with _interruptible() as signals, contextlib.ExitStack() as stack:
            runner = self.runner.make()
            with delayed_signals():  # until it is known what to delete
                # Beam deletes its folder only after a run that it started. The files of a server
                # are used until that has stopped, when this process exits.
                temporary = temporary_folder(until_exit=not in_process)
                folder = stack.enter_context(temporary)
            with temporary_files_in(folder):
                pipeline = beam.Pipeline(runner=runner, options=options)
                outcome = define(pipeline)
            staged = self.runner.staged_at(options)
            if staged:  # no command will read its outcome: the job itself must fail
                outcome | "RaiseIfFailed" >> RaiseIfFailed()
            else:
                pid = os.getpid() if in_process else 0
                report = beam.Map(outcomes.report, self.run_id, pid, self.output)
                outcome | "ReportOutcome" >> report
            if in_process:
                stack.enter_context(progress.collect(run_progress))
            else:
                hide_thread_errors()
            stack.enter_context(show_progress(run_progress))
            result = self._wait(pipeline, signals, run_progress, folder)
        if staged:
            raise Staged(f"Staged {staged}")
        return result

    def _wait(
        self, pipeline: beam.Pipeline, signals: list[int], progress: Progress, folder: str
    ) -> Any:
        """Start the pipeline and wait until it ends.

        Args:
            pipeline: The pipeline with its options.
            signals: Numbers of the signals that came.
            progress: Progress to update.
            folder: Folder for temporary files.
        """
        from shardmill.pipelines.runners.base import monitor_job
        from shardmill.pipelines.runners.in_memory import watched_workers

        runner, options, result = self.runner, pipeline.options, None
        job: Callable[[], Job | None] = lambda: None  # noqa: E731
        try:
            if runner.in_process:
                with watched_workers(signals):
                    result = pipeline.run()
                    result.wait_until_finish()
            else:
                # Before the submission, which may take long itself.
                find_job = lambda: runner.find_job(options, result)  # noqa: E731
                with monitor_job(progress, self.build, find_job) as job:
                    try:
                        with temporary_files_in(folder), _submitting():
                            result = pipeline.run()
                    except Exception as error:
                        result = runner.find_running(error, options)
                        if result is None:
                            raise
                        progress.notices.append("the job of an equal command runs: waiting for it")
                    runner.wait(result)
        except BaseException as error:
            _stop_interrupting()
            if signals:
                if runner.in_process:
                    _end_samplers()
                    raise
                if runner.cancel(options, result):
                    raise
                remark = f"the job may still run on {runner.name}: cancel it there"
                raise Interrupted(signals[0], remark) from error
            explained = None
            if not runner.in_process and find_shardmill_error(error) is None:
                explained = runner.explain(error, job() or runner.find_job(options, result))
            if explained is None:
                raise
            raise explained from error
        return result

    def take_outcome(self, *, stale: bool) -> Outcome:
        """Return the outcome after the pipeline ended.

        Args:
            stale: Whether an earlier attempt failed because another builder published.

        Raises:
            OutputError: There is no outcome.
            StaleBuildError: An equal command, which waited for the same job, took it.
        """
        from shardmill.transforms.sink import spec as outcomes

        outcome = outcomes.take_reported(self.run_id, self.output)
        if outcome is None and self.runner.finds_jobs and self.build:
            raise StaleBuildError(
                "An equal command took the outcome of the job that both waited for: run again."
            )
        if outcome is None:
            where = f"in {self.output}: see its log" if self.output else "without --manifest"
            raise OutputError(f"The runner {self.runner.name} ended, but left no outcome {where}.")
        if stale and outcome.status == "up_to_date" and self.build:
            # The other builder published the same dataset and deleted its build folder. In other
            # cases, the folder may have parts of the same options with other inputs.
            open_storage(self.output).delete_tree(self.build)
        return outcome


@contextlib.contextmanager
def _submitting() -> Iterator[None]:
    """Undo at the end of this process what Beam does to it when it submits a job.

    It replaces the handler of Ctrl-C if it starts a server: its own handler stops the server under
    a lock, for which a second Ctrl-C would wait forever.
    """
    from apache_beam.runners.portability.job_server import StopOnExitJobServer

    # The handler that the server found is kept.
    StopOnExitJobServer._sigint_handler = property(lambda it: it._original_sigint_handler)  # noqa: SLF001
    try:
        yield
    finally:
        # Called before Beam stops its server, for which it waits a second.
        atexit.register(_end_at_once)


def _end_at_once() -> None:
    """Let a signal end this process without a traceback."""
    for signal_number in SIGNALS:
        signal.signal(signal_number, signal.SIG_DFL)


def _end_samplers() -> None:
    """End the threads that an interrupt leaves if it comes while Beam starts a bundle.

    ``StateSampler.start`` starts a thread that no one would stop, and for which Python would wait.
    """
    from apache_beam.runners.worker.statesampler import StateSampler

    for thread in threading.enumerate():
        sampler = getattr(getattr(thread, "_target", None), "__self__", None)
        if isinstance(sampler, StateSampler) and not sampler.finished:
            sampler.stop()


def _interrupt_again(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _stop_interrupting() -> None:
    """Raise an interrupt no more: it has arrived where it is handled."""
    if signal.getsignal(signal.SIGALRM) is _interrupt_again:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


@contextlib.contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Record Ctrl-C and SIGTERM, which runners turn into their own errors; a second one kills.

    Python drops an exception that is raised in the callback of a weak reference, such as those that
    delete temporary folders, or in compiled code without errors, as Beam has. So it is raised again
    until it arrives. A second signal kills after the block, too.

    Raises:
        Interrupted: A signal came, and the error that followed.
    """
    signals: list[int] = []

    def record(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        for signal_number in SIGNALS:
            signal.signal(signal_number, signal.SIG_DFL)
        sys.unraisablehook = lambda _: None  # Python prints a traceback where it drops the error
        decoders = sys.modules.get("shardmill.transforms.images.decoder_pool")
        if decoders is not None:  # the runner waits for its threads, and they for decoders
            decoders.cancel_all()
        if "shardmill.transforms.runtime.progress" in sys.modules:
            sys.modules["shardmill.transforms.runtime.progress"].interrupt()
        signal.signal(signal.SIGALRM, _interrupt_again)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS, _AGAIN_SECONDS)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {signal_number: signal.signal(signal_number, record) for signal_number in SIGNALS}
    try:
        yield signals
    except BaseException as error:
        if not signals or isinstance(error, Interrupted):
            raise
        raise Interrupted(signals[0]) from error
    finally:
        _stop_interrupting()
        if not signals:
            for signal_number, handler in before.items():
                signal.signal(signal_number, handler)
