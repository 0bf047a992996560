"""Running: which runner, what a person sees meanwhile, and what an exit code says."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from shardmill.schemas.errors import (
    InputError,
    OutputError,
    ShardmillError,
    StaleBuildError,
    StorageError,
)

if TYPE_CHECKING:
    import apache_beam as beam

    from shardmill.transforms.outcome import Outcome
    from shardmill.transforms.progress import Progress

IN_MEMORY = "in-memory"
EXIT_INTERRUPTED = 130
_IN_MEMORY_NAMES = frozenset({"", "DirectRunner", "InMemoryRunner", "FnApiRunner", IN_MEMORY})
_STALE_TRIES = 3
_FEW = 10  # MiB, below which KiB are shown
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
    """The person pressed Ctrl-C."""


def take_runner(argv: list[str]) -> tuple[str, list[str]]:
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


def new_invocation() -> str:
    """Returns an identity for one run of the command."""
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
    define: Callable[[beam.Pipeline], Any], runner: str, argv: list[str], invocation: str,
    output: str, *, unit: Unit = "images",
) -> Outcome:  # fmt: skip
    """Runs a pipeline to its end and returns its outcome.

    Args:
        define: Adds the transforms to a pipeline.
        runner: A name as ``take_runner`` gives it.
        argv: Beam's other flags.
        invocation: Identity of this run.
        output: Folder of the dataset.
        unit: What progress is told in.

    Raises:
        ShardmillError: The run failed with a sentence of ours.
        Interrupted: The person pressed Ctrl-C.
    """
    for tries in range(1, _STALE_TRIES + 1):
        try:
            return _run_once(define, runner, argv, _Try(invocation, output, unit, tries > 1))
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
    """One try of an invocation; ``stale`` says that another builder's work ended the last one."""

    invocation: str
    output: str
    unit: Unit
    stale: bool


def _run_once(
    define: Callable[[beam.Pipeline], Any], runner: str, argv: list[str], this: _Try
) -> Outcome:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from shardmill.transforms import outcome as outcomes
    from shardmill.transforms import progress

    watched = progress.watch(this.invocation, stale=this.stale) if runner == IN_MEMORY else None
    if watched is not None:
        watched.unit, (watched.per_unit, watched.refused) = this.unit, _UNITS[this.unit]
    try:
        options = PipelineOptions(argv)
        with _interruptible() as interrupted, contextlib.ExitStack() as stack:
            pipeline = beam.Pipeline(runner=_make_runner(runner), options=options)
            # Beam removes it only after a run that it began.
            stack.callback(shutil.rmtree, pipeline.local_tempdir, ignore_errors=True)
            define(pipeline)
            if watched is not None:
                stack.enter_context(show_progress(watched))
            try:
                pipeline.run().wait_until_finish()
            except BaseException as error:
                if interrupted.is_set():
                    raise Interrupted from error
                raise
    finally:
        progress.unwatch(this.invocation)
    outcome: Outcome | None = watched.outcome if watched else None
    if outcome is None:  # another process published
        outcome = outcomes.fetch(this.invocation, this.output)
    if outcome is None:
        where = f"in {this.output}: see its log" if this.output else "for want of --manifest"
        raise OutputError(f"The runner {runner} ended, but left no outcome {where}.")
    return outcome


def _make_runner(name: str) -> Any:
    if name != IN_MEMORY:
        return name
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    return FnApiRunner()


@contextlib.contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Notes Ctrl-C, which runners turn into errors of their own; a second one ends at once."""
    interrupted = threading.Event()

    def note(_signal: int, _frame: FrameType | None) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def show_progress(watched: Progress) -> Iterator[None]:
    """Shows a bar on a terminal, or a plain line now and then in a log, until the block ends."""
    from rich.console import Console

    console = Console(stderr=True)
    ended = threading.Event()
    show = _bar if console.is_terminal else _lines
    thread = threading.Thread(target=show, args=(watched, ended, console), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=5)


def _bar(watched: Progress, ended: threading.Event, console: Any) -> None:
    from rich import progress as bars

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[rate]}"),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[rejects]}"),
    )
    with bars.Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("matching", total=None, rate="", rejects="")
        while not ended.wait(0.1):
            speed = display.tasks[0].speed
            total = watched.total
            display.update(
                task,
                description=watched.phase,
                total=None if total is None else -(-total // watched.per_unit),
                completed=watched.done // watched.per_unit,
                rate=f"{speed:,.0f} {watched.unit}/s" if speed else "",
                rejects=f"{watched.rejects:,} {watched.refused}" if watched.rejects else "",
            )


def _scaled(watched: Progress) -> tuple[int, str]:
    """Returns how many inputs make one of the unit that is shown, and the unit's name."""
    few = watched.total is not None and watched.total < _FEW * watched.per_unit
    if watched.per_unit == 1 or not few:
        return watched.per_unit, watched.unit
    return watched.per_unit >> 10, watched.unit.replace("MiB", "KiB")


def _lines(watched: Progress, ended: threading.Event, console: Any) -> None:
    started = time.monotonic()
    pause = 5.0
    while not ended.wait(pause):
        pause = min(60.0, pause * 1.5)
        seconds = time.monotonic() - started
        scale, unit = _scaled(watched)
        total = f" of {watched.total / scale:,.0f}" if watched.total is not None else ""
        rate = watched.done / seconds
        left = (
            f", {(watched.total - watched.done) / rate:,.0f} s left"
            if watched.total and rate
            else ""
        )
        console.print(
            f"{watched.phase}: {watched.done / scale:,.0f}{total} {unit}, "
            f"{rate / scale:,.0f} {unit}/s{left}, {watched.rejects:,} {watched.refused}",
            highlight=False,
            soft_wrap=True,
        )


@contextlib.contextmanager
def quiet_library() -> Iterator[None]:
    """Keeps what native code writes to standard error off the screen, unless that is a bug."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except ShardmillError:
            raise
        except BaseException:
            said.seek(0)
            os.write(kept, said.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Keeps Beam's remarks on packages that are not installed off the screen while it loads."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
