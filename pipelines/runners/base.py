"""What Shardmill asks of a runner; this much it knows of any that Beam has a name for."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardmill.schemas.errors import OutputError, ShardmillError

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

IN_MEMORY = "in-memory"
_IN_MEMORY_NAMES = frozenset({"", "DirectRunner", "InMemoryRunner", "FnApiRunner", IN_MEMORY})


@dataclass(frozen=True)
class Job:
    """A job as the runner knows it.

    Attributes:
        id: The runner's own name for it.
        page: Where a person can watch it; empty where there is no such page.
    """

    id: str
    page: str = ""


class Runner:
    """A runner in other processes, by Beam's name for it.

    Attributes:
        name: Beam's name.
        in_process: Whether the pipeline runs in this very process.
    """

    in_process = False

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, argv: Sequence[str], job_name: str) -> list[str]:
        """Looks at Beam's options before anything starts, and adds what was left open.

        Args:
            argv: Beam's options.
            job_name: A name that no other job has.

        Raises:
            UsageError: An option is missing or breaks a rule.
            OutputError: The cluster does not answer.
        """
        return [*argv] if option_given(argv, "job_name") else [*argv, f"--job_name={job_name}"]

    def check_places(self, places: Iterable[tuple[str, str]]) -> None:
        """Checks that the runner's workers can reach what is read and written.

        Args:
            places: Each flag that names a path or URI, with what it names.

        Raises:
            UsageError: They cannot.
        """

    def make(self) -> Any:
        """Returns what ``beam.Pipeline(runner=...)`` takes."""
        return self.name

    def staged_at(self, options: PipelineOptions) -> str:
        """Returns where the job is put down for others to run; empty where it runs now.

        Args:
            options: Of the pipeline.
        """
        del options
        return ""

    def wait(self, result: Any) -> None:
        """Waits until the job is over.

        Args:
            result: What Beam returned of it.
        """
        result.wait_until_finish()

    def find_job(self, options: PipelineOptions, result: Any) -> Job | None:
        """Returns the job, or None while the runner does not show it.

        Args:
            options: Of the pipeline.
            result: What Beam returned of it, or None while it has not.
        """
        del options
        found = getattr(result, "job_id", None) or getattr(result, "_job_id", None)
        if callable(found):
            found = found()
        return Job(str(found)) if found else None

    def cancel(self, options: PipelineOptions, result: Any) -> bool:
        """Ends the job; returns whether it is known to have ended.

        Args:
            options: Of the pipeline.
            result: What Beam returned of it, or None where it has not.
        """
        import grpc

        del options
        if result is None:
            return False
        try:
            result.cancel()
        except (grpc.RpcError, ValueError):  # the server is gone, which is what ValueError says
            return False
        return True

    def explain(self, error: BaseException, job: Job | None) -> ShardmillError | None:
        """Returns the plain sentence for a failure of the runner itself, or None for another.

        Args:
            error: What Beam raised.
            job: The job, if it is known.
        """
        import grpc

        if isinstance(error, grpc.RpcError):
            return OutputError(
                f"The job server of {self.name} ended or does not answer: run again to resume."
            )
        text = str(error)
        where = f"; its page {job.page} says more" if job and job.page else ""
        # Flink says that it failed, and why, when somebody cancelled it on its page.
        if "in state CANCELLED" in text or "JobCancellationException" in text:
            return OutputError(f"The job was cancelled on {self.name}: run again to resume{where}.")
        if "Traceback (most recent call last)" in text:  # of Python code, most likely ours
            return None
        if "in state FAILED" in text:
            return OutputError(
                f"The job failed on {self.name}: {_cause(text)}{where}; run again to resume."
            )
        return None


def take_runner(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the name of the runner in Beam's flags, and the other flags.

    ``DirectRunner`` means Beam's in-memory runner here: the one that Beam itself starts under that
    name first tries to download a program. ``PrismRunner`` stays to be had by its own name.
    """
    runner = ""
    rest = []
    waiting = False
    for argument in argv:
        if waiting:
            runner, waiting = argument, False
        elif argument == "--runner":
            waiting = True
        elif argument.startswith("--runner="):
            runner = argument.partition("=")[2]
        else:
            rest.append(argument)
    return (IN_MEMORY if runner in _IN_MEMORY_NAMES else runner), rest


def option_given(argv: Sequence[str], name: str) -> bool:
    """Tells whether an option is among flags."""
    return any(flag == f"--{name}" or flag.startswith(f"--{name}=") for flag in argv)


def dies_with_us() -> list[str]:
    """Returns what goes before a command so that its process ends when this one does.

    Nothing where there is no such program: there, killing this process leaves the other.
    """
    found = shutil.which("setpriv") if sys.platform == "linux" else None
    return [found, "--pdeathsig", "KILL"] if found else []


def _cause(text: str) -> str:
    """Returns the innermost cause that a runner's report names, in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    line = (
        causes[-1].removeprefix("Caused by: ") if causes else (lines or ["it does not say why"])[0]
    )
    return line.rstrip(".")[:300]
