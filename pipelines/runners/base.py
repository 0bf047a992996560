"""The interface of a runner, with defaults for any runner that Beam knows by name.

Errors come back from a runner as text: Beam's workers send an exception of a DoFn as a formatted
traceback in a string, also those of the in-memory runner in this process, and every runner raises a
RuntimeError with that text. Class, cause and attributes are gone, so the text is parsed here, and
nowhere else:

    shardmill.schemas.errors.StorageError: Cannot write ... [storage-failed] [while running 'Write']
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from shardmill.pipelines.report.terminal import THREAD_PREFIX
from shardmill.schemas import errors
from shardmill.schemas.errors import OutputError, ShardmillError, UsageError
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.runtime.progress import find_total

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

    from shardmill.transforms.runtime.progress import Progress

T = TypeVar("T")
IN_MEMORY = "in-memory"
_IN_MEMORY_NAMES = frozenset({"", "DirectRunner", "InMemoryRunner", "FnApiRunner", IN_MEMORY})
_STEP = " [while running '"  # Beam appends the name of the step to the message
_ERROR_LINE = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.*)$", re.MULTILINE)
_PYTHON_ERROR = re.compile(r"[\w.]*(Error|Exception|Exit)\b")
TRACEBACK = "Traceback (most recent call last)"
_MAX_CAUSE = 300
_SHOWN = 100  # characters of an error of Beam
_MIN_PAUSE, _MAX_PAUSE = 1.0, 60.0  # seconds
_NEARLY_DONE = 0.9  # of the expected parts: from here on, assembling may have started
_MAX_SHARE = 0.02  # of the time that is spent listing files
# Class of each module; a module is imported when its runner is used.
_CLASSES = {"flink": "Flink", "prism": "Prism", "dataflow": "Dataflow"}


@dataclass(frozen=True)
class Job:
    """A job as the runner knows it.

    Attributes:
        id: The runner's identifier of it.
        page: URL of its page; empty if the runner has none.
    """

    id: str
    page: str = ""


class Runner:
    """A runner in other processes.

    Attributes:
        name: Beam's name of it.
        in_process: Whether the pipeline runs in this process.
        finds_jobs: Whether a command waits for the job of an equal command, instead of starting a
            second one, if that command was killed.
    """

    in_process = False
    finds_jobs = False

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, argv: Sequence[str], job_name: str) -> list[str]:
        """Check Beam's options before anything starts, and add defaults.

        Args:
            argv: Beam's options.
            job_name: A unique name for the job.

        Raises:
            UsageError: An option is missing or breaks a rule.
            OutputError: The cluster does not answer.
        """
        if option_given(argv, "job_name"):
            return [*argv]
        return [*argv, f"--job_name={job_name}"]

    def check_paths(self, paths: Iterable[tuple[str, str]]) -> None:
        """Check that the runner's workers can reach the inputs and the output.

        Args:
            paths: Flags with the paths or URIs that they name.

        Raises:
            UsageError: They cannot.
        """

    def find_running(self, error: Exception, options: PipelineOptions) -> Any:  # noqa: ARG002
        """Return the result of the running job of an equal command, or None if there is none.

        Args:
            error: Why the job was not accepted.
            options: Its options.
        """
        return None

    def has_process_per_core(self, argv: Sequence[str]) -> bool:  # noqa: ARG002
        """Return whether workers start one process for each core of their machine.

        Args:
            argv: Beam's options.
        """
        return False

    def make(self) -> Any:
        """Return the argument of ``beam.Pipeline(runner=...)``.

        Raises:
            UsageError: Beam has no runner of this name.
        """
        from apache_beam.runners import PipelineRunner, create_runner

        try:
            made = create_runner(self.name)
        except (ImportError, ValueError, AttributeError, TypeError) as error:
            raise _runner_unknown(self.name) from error
        if not isinstance(made, PipelineRunner):
            raise _runner_unknown(self.name)
        return self.name

    def staged_at(self, options: PipelineOptions) -> str:  # noqa: ARG002
        """Return where the job is staged for a later launch; empty if it runs now.

        Args:
            options: Options of the pipeline.
        """
        return ""

    def wait(self, result: Any) -> None:
        """Wait until the job ends.

        Args:
            result: Beam's pipeline result.
        """
        result.wait_until_finish()

    def find_job(self, options: PipelineOptions, result: Any) -> Job | None:  # noqa: ARG002
        """Return the job, or None while the runner does not show it.

        Args:
            options: Options of the pipeline.
            result: Beam's pipeline result, or None before there is one.
        """
        job_id = getattr(result, "job_id", None) or getattr(result, "_job_id", None)
        if callable(job_id):
            job_id = job_id()
        if job_id:
            return Job(str(job_id))
        return None

    def cancel(self, options: PipelineOptions, result: Any) -> bool:  # noqa: ARG002
        """Cancel the job; return whether it is known to have ended.

        Args:
            options: Options of the pipeline.
            result: Beam's pipeline result, or None before there is one.
        """
        import grpc

        if result is None:
            return False
        try:
            result.cancel()
        except (grpc.RpcError, ValueError):  # ValueError: the server is gone
            return False
        return True

    def explain(self, error: BaseException, job: Job | None) -> ShardmillError | None:
        """Return the error for a failure of the runner itself, or None for any other failure.

        Args:
            error: The exception that Beam raised.
            job: The job, if it is known.
        """
        import grpc

        if isinstance(error, grpc.RpcError):
            return OutputError(
                f"The job server of {self.name} ended or does not answer: run again to resume."
            )
        text = str(error)
        if "job server jar" in text:  # which Beam could not download
            start = text[:_SHOWN]
            return OutputError(
                f"Beam cannot download a job server for {self.name} ({start}...): give the "
                "file, for Flink as --flink_job_server_jar=FILE, which deploy/flink/install.sh "
                "builds, and the cluster, as --flink_master=HOST:8081."
            )
        where = f"; see its page {job.page}" if job and job.page else ""
        # Flink reports a job that was cancelled on its page as failed, with this cause.
        if "in state CANCELLED" in text or "JobCancellationException" in text:
            return job_ended(how="cancelled", name=self.name, where=where)
        if TRACEBACK in text:  # a failure of Python code, not of the runner
            return None
        if "in state FAILED" in text:
            return job_failed(name=self.name, cause=java_cause(text), where=where)
        return None


class InMemory(Runner):
    """Beam's in-memory runner, the default: in this process, without a job to find or cancel."""

    in_process = True

    def prepare(self, argv: Sequence[str], job_name: str) -> list[str]:  # noqa: ARG002
        """See ``Runner.prepare``; there is no job name."""
        return [*argv]

    def make(self) -> Any:
        """Return Beam's in-memory runner."""
        from shardmill.pipelines.runners.in_memory import InMemoryRunner

        return InMemoryRunner(kill_with_parent_prefix())


def take_runner(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return the name of the runner in Beam's flags, and the other flags.

    ``DirectRunner`` means Beam's in-memory runner here: the one that Beam starts under that name
    first tries to download Prism, which ``PrismRunner`` names.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--runner", default="")
    namespace, rest = parser.parse_known_args(argv)
    return (IN_MEMORY if namespace.runner in _IN_MEMORY_NAMES else namespace.runner), rest


def poll(find: Callable[[], T], seconds: float, pause: float) -> T:
    """Call a function until its result is true or the time is over; return the last result.

    Args:
        find: The function.
        seconds: Time after which it is not called again.
        pause: Seconds between two calls.
    """
    deadline = time.monotonic() + seconds
    while not (result := find()) and time.monotonic() < deadline:
        time.sleep(pause)
    return result


def option_given(argv: Sequence[str], name: str) -> bool:
    """Return whether an option is among flags."""
    return any(flag == f"--{name}" or flag.startswith(f"--{name}=") for flag in argv)


def kill_with_parent_prefix() -> list[str]:
    """Return the prefix of a command line whose process the kernel kills when this one dies.

    Empty where setpriv is not installed: there, a killed command leaves such a process behind.
    """
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    if setpriv:
        return [setpriv, "--pdeathsig", "KILL"]
    return []


def find_shardmill_error(error: BaseException) -> ShardmillError | None:
    """Return the Shardmill error inside an exception of a runner, or None if there is none."""
    if isinstance(error, ShardmillError):
        return type(error)(without_step(str(error)))
    lines = _ERROR_LINE.findall(str(error))
    if not lines:
        return None
    name, message = lines[-1]
    kind: type[ShardmillError] = getattr(errors, name, ShardmillError)
    return kind(without_step(message))


def without_step(text: str) -> str:
    """Return a message without the step that Beam appended."""
    return text.partition(_STEP)[0]


def java_cause(text: str) -> str:
    """Return the innermost cause in a Java stack trace, or the first line, in one line."""
    lines = _lines(text)
    causes = [line for line in lines if line.startswith("Caused by: ")]
    if causes:
        return _shorten(causes[-1].removeprefix("Caused by: "))
    return _shorten(lines[0])


def python_cause(text: str) -> str:
    """Return the last error of a Python traceback, or the first line, in one line."""
    lines = _lines(text)
    errors_in_text = [line for line in lines if _PYTHON_ERROR.match(line)]
    cause = (errors_in_text or lines)[-1] if TRACEBACK in text else lines[0]
    return _shorten(without_step(cause))


def _lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines != ["None"]:
        return lines
    return ["it does not say why"]


def _shorten(line: str) -> str:
    return line.rstrip(".")[:_MAX_CAUSE]


@contextlib.contextmanager
def monitor_job(
    progress: Progress, build: str, find_job: Callable[[], Job | None]
) -> Iterator[Callable[[], Job | None]]:
    """Update the progress of a job from a thread until the block ends.

    Args:
        progress: The counts.
        build: Build folder, whose finished parts are counted; empty for none.
        find_job: Returns the job once the runner shows it.

    Yields:
        A function that returns the job if it was found.
    """
    ended = threading.Event()
    jobs: list[Job] = []

    def look() -> None:
        job = None if jobs else find_job()
        if job is not None:
            jobs.append(job)
            progress.notices.append(f"job: {job.id}{'  ' if job.page else ''}{job.page}")

    def monitor() -> None:
        pause = _MIN_PAUSE
        while not ended.wait(pause):
            started = time.monotonic()
            look()
            # The job reports errors of its storage itself.
            with contextlib.suppress(ShardmillError, OSError):
                update_progress(progress, build)
            took = time.monotonic() - started
            pause = min(_MAX_PAUSE, max(_MIN_PAUSE, took / _MAX_SHARE))
        look()  # at a job that ended before; in this thread, where an error does not fail the build

    thread = threading.Thread(target=monitor, name=f"{THREAD_PREFIX}monitor", daemon=True)
    thread.start()
    try:
        yield lambda: jobs[0] if jobs else None
    finally:
        ended.set()
        thread.join(timeout=5)


def update_progress(progress: Progress, build: str) -> None:
    """Update counts from the files in a build folder.

    Args:
        progress: The counts.
        build: The folder; empty for none.

    Raises:
        ShardmillError: It cannot be listed.
    """
    if not build:
        progress.phase = "running"
        return
    total = progress.total if progress.total is not None else find_total(build)
    if total is None or progress.phase == "assembling":
        return
    done = _count_sidecars(build, "parts")
    runs = 0 if done else _count_sidecars(build, "runs")
    progress.total, progress.done = total, max(done, progress.done)
    if runs:
        progress.phase = f"reading ({runs:,} ranges done)"
    elif done >= _NEARLY_DONE * total and any(open_storage(build).list_dir(join(build, "shards"))):
        progress.total = progress.done
        progress.phase = "assembling"
    else:
        progress.phase = "encoding"


def _count_sidecars(build: str, folder: str) -> int:
    """Return the number of sidecars in a folder of a build."""
    path = join(build, folder)
    return sum(entry.path.endswith(".json") for entry in open_storage(path).list_dir(path))


def find_runner(name: str) -> Runner:
    """Return the runner of a name.

    Args:
        name: A name as ``take_runner`` returns it; upper or lower case.

    Raises:
        UsageError: Shardmill was not tried on the runner.
    """
    if name == IN_MEMORY:
        return InMemory(name)
    module = name.lower().removesuffix("runner")
    if module not in _CLASSES:
        if "." not in name and module != "portable":  # a class, or the job server of any runner
            raise _runner_unknown(name)
        return Runner(name)
    runner_class: type[Runner] = getattr(import_module(f"{__package__}.{module}"), _CLASSES[module])
    return runner_class(name)


def _runner_unknown(name: object) -> UsageError:
    return UsageError(
        f"--runner={name} is unknown: use DirectRunner, PrismRunner, FlinkRunner or DataflowRunner."
    )


def job_ended(how: object, name: object, where: object) -> OutputError:
    """Return the error for a job that its cluster ended."""
    return OutputError(f"The job was {how} on {name}: run again to resume{where}.")


def job_failed(name: object, cause: object, where: object) -> OutputError:
    """Return the error for a job that failed on its cluster."""
    return OutputError(f"The job failed on {name}: {cause}{where}; run again to resume.")
