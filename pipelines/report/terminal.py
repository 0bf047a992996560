"""Output of a command: its answer, progress and lines of a log, without libraries' messages.

It answers with text for people, with one JSON object, or with errors only.

Progress is a bar on a terminal and plain lines elsewhere; with ``--log_format=json``, each line is
an object with time, level, message and fields.
"""

from __future__ import annotations

import contextlib
import contextvars
import gc
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, cast

from shardmill.schemas.errors import ShardmillError
from shardmill.schemas.numbers import human_bytes, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from shardmill.pipelines.report.layout import Layout
    from shardmill.transforms.runtime.progress import Progress


_FIRST_PAUSE, _MAX_PAUSE = 5.0, 60.0  # seconds between two lines of a log
_hidden = contextvars.ContextVar("hidden", default=False)
THREAD_PREFIX = "shardmill-"  # of the names of Shardmill's threads
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_threads_remain = threading.Event()


class Answer(NamedTuple):
    """The flags that every command has.

    Attributes:
        json: Whether standard output is one JSON object.
        quiet: Whether summaries, notes and progress are left out.
        debug: Whether to show tracebacks, and Beam's log.
    """

    json: bool = False
    quiet: bool = False
    debug: bool = False

    @classmethod
    def take(cls, values: dict[str, Any]) -> Answer:
        """Remove the flags from parsed values, and return them."""
        values.pop("log_format", None)  # main has made standard error such a log
        return cls(*(values.pop(name, False) for name in cls._fields))

    def give(self, value: dict[str, Any]) -> None:
        """Print the JSON object, if that is wanted; its ``status`` is ``ok`` unless it has one."""
        if self.json:
            print(json.dumps({"status": "ok", **value}))

    def say(self, line: str) -> None:
        """Print a line of a summary for people."""
        if not self.json and not self.quiet:
            print(printable(line), flush=True)

    def show(self, render: Callable[[Layout], Iterable[RenderableType]]) -> None:
        """Print a summary for people; see ``layout.print_to_stdout``."""
        if not self.json and not self.quiet:
            from shardmill.pipelines.report.layout import print_to_stdout

            print_to_stdout(render)


@contextlib.contextmanager
def hide_progress(hide: bool) -> Iterator[None]:
    """Show no progress in the block, if ``hide``."""
    before = _hidden.set(hide)
    try:
        yield
    finally:
        _hidden.reset(before)


@contextlib.contextmanager
def show_progress(progress: Progress) -> Iterator[None]:
    """Show progress until the block ends: a bar on a terminal, else a line from time to time."""
    if _hidden.get():
        yield
        return
    from rich.console import Console

    console = Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)
    ended = threading.Event()
    show = _show_bar if console.is_terminal else _print_lines
    thread = threading.Thread(
        target=show, args=(progress, ended, console), name=f"{THREAD_PREFIX}show", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=5)


def _show_bar(progress: Progress, ended: threading.Event, console: Console) -> None:
    from rich import progress as bars

    rate, rejects = (f"{{task.fields[{name}]}}" for name in ("rate", "rejects"))
    counts = (bars.BarColumn(), bars.MofNCompleteColumn(), rate, bars.TimeRemainingColumn())
    columns = ("{task.description}", *counts, rejects)
    with bars.Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("matching", total=None, rate="", rejects="")
        while not ended.wait(0.1):
            _print_notices(progress, display.console)
            speed = display.tasks[0].speed
            total = progress.total
            display.update(
                task,
                description=progress.phase,
                total=None if total is None else -(-total // progress.per_unit),
                completed=capped_count(progress) // progress.per_unit,
                rate=f"{speed:,.0f} {progress.unit}/s" if speed else "",
                rejects=f"{progress.rejects:,} {progress.rejects_name}" if progress.rejects else "",
            )


def _print_lines(progress: Progress, ended: threading.Event, console: Console) -> None:
    started = time.monotonic()
    pause = _FIRST_PAUSE
    due = started + pause
    while not ended.wait(min(1.0, max(0.0, due - time.monotonic()))):
        _print_notices(progress, console)
        if time.monotonic() < due:
            continue
        line = progress_line(progress, time.monotonic() - started)
        fields = {"phase": progress.phase, "done": progress.done, "total": progress.total}
        if not write_log("info", line, **fields, rejects=progress.rejects):
            console.print(line)
        pause = min(_MAX_PAUSE, pause * 1.5)
        due = time.monotonic() + pause
    _print_notices(progress, console)  # of a short job


def _print_notices(progress: Progress, console: Console) -> None:
    while progress.notices:
        console.print(progress.notices.popleft())


def capped_count(progress: Progress) -> int:
    """Return the count, capped at the total, which is an estimate for some work."""
    if progress.total is None:
        return progress.done
    return min(progress.done, progress.total)


def progress_line(progress: Progress, seconds: float) -> str:
    """Return the progress as one line of a log.

    Args:
        progress: The counts.
        seconds: Time since the start.
    """
    if progress.total is None and not progress.done:
        return f"{progress.phase}: {seconds:,.0f} s"
    rate = progress.done / seconds
    counted = capped_count(progress)
    left = max(0, (progress.total or 0) - counted)
    remaining = f", {left / rate:,.0f} s left" if left and rate else ""
    rejects = f", {progress.rejects:,} {progress.rejects_name}" if progress.rejects_name else ""
    if progress.per_unit > 1:
        total = f" of {human_bytes(progress.total)}" if progress.total is not None else ""
        done = f"{human_bytes(counted)}{total}, {human_bytes(rate)}/s"
    else:
        total = f" of {progress.total:,}" if progress.total is not None else ""
        speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:,.1f}"
        done = f"{counted:,}{total} {progress.unit}, {speed} {progress.unit}/s"
    return f"{progress.phase}: {done}{remaining}{rejects}"


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hide native code's output to standard error, unless the block raises a foreign error."""
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except ShardmillError:
            raise
        except BaseException:
            hidden.seek(0)
            os.write(original, hidden.read())
            raise
        finally:
            os.dup2(original, 2)
            os.close(original)


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Hide Beam's messages about packages that are not installed, and import it faster.

    The garbage collector would search all of Beam's classes while they are imported and when the
    process exits, which together take a third of the time of the import.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; raised at the end of the block.
    """
    logging.disable(logging.ERROR)
    new, collecting = "apache_beam" not in sys.modules, gc.isenabled()
    gc.disable()
    try:
        with delayed_signals():  # which imports swallow now and then
            yield
    finally:
        if new and "apache_beam" in sys.modules:
            gc.freeze()
        if collecting:
            gc.enable()
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def delayed_signals() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM when the block ends; another one ends the process at once.

    Blocking them in this thread would not do: if another thread receives one, Python still runs
    its handler in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        held.append(number)
        signal.signal(number, signal.SIG_DFL)

    # Not one that is ignored, as Ctrl-C is by a command in the background of a script.
    before = {e: signal.signal(e, hold) for e in SIGNALS if callable(signal.getsignal(e))}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        for number in held:
            signal.raise_signal(number)


@contextlib.contextmanager
def quiet_logs(*, debug: bool) -> Iterator[None]:
    """Hide Beam's log: it has tracebacks of errors that the command reports as one sentence.

    Args:
        debug: Whether to show it.
    """
    if debug:
        logging.getLogger().setLevel(logging.INFO)
        yield
        return
    logging.getLogger().setLevel(logging.CRITICAL)  # until the process exits and stops servers
    # Beam's loggers set their own levels, which override the root's level.
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        if not _threads_remain.is_set():
            logging.disable(before)


def hide_thread_errors() -> None:
    """Hide errors of Beam's threads if its log is hidden, until the process exits.

    They fail when the server that they talk to goes away, which the main thread reports if the job
    still ran. The threads outlive the job, and the server may end at any time after it: see
    ``close_stderr_if_threads_remain``.
    """
    if logging.root.manager.disable < logging.CRITICAL or isinstance(sys.stderr, _OwnThreads):
        return
    sys.stderr = cast("TextIO", _OwnThreads(sys.stderr))  # errors of threads are printed there, too
    _threads_remain.set()


class _OwnThreads:
    """Standard error without the tracebacks that Beam's threads print about its worker."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        thread = threading.current_thread()
        if thread is threading.main_thread() or thread.name.startswith(THREAD_PREFIX):
            self._file.write(text)
        return len(text)


def close_stderr_if_threads_remain() -> None:
    """Redirect standard error to the null device after a run in other processes.

    Beam's threads keep running until the process exits, and print their own errors.
    """
    if _threads_remain.is_set():
        sys.stderr.flush()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)


class _JsonLog:
    """Standard error whose lines, including libraries' lines, become objects."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._held = defaultdict[int, str](str)  # of each thread: print() writes in pieces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def isatty(self) -> bool:
        """Return that no progress bar can be shown."""
        return False

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        *lines, self._held[thread] = f"{self._held[thread]}{text}".split("\n")
        self._log_lines(lines)
        return len(text)

    def end(self) -> None:
        """Write lines without an end."""
        self._log_lines([*self._held.values()])
        self._held.clear()

    def _log_lines(self, lines: Iterable[str]) -> None:
        for line in filter(str.strip, lines):
            message = line.removeprefix("shardmill: ")  # begins the sentence of an error
            self.log("info" if message == line else "error", message)

    def log(self, level: str, message: str, **fields: Any) -> None:
        """Write one object, in one call: threads write too."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        entry = {"time": now, "level": level, "message": message, **fields}
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


def has_log() -> bool:
    """Return whether standard error is such a log."""
    return hasattr(sys.stderr, "log")


def write_log(level: str, message: str, **fields: Any) -> bool:
    """Write an object to standard error, if that is such a log; return whether it is."""
    if has_log():
        cast("_JsonLog", sys.stderr).log(level, message, **fields)
    return has_log()


def logged(run: Callable[[], int]) -> int:
    """Return the exit code of a command; from now on, standard error is such a log.

    An unexpected error, or any with --debug, is an object too.
    """
    log = _JsonLog(sys.stderr)
    sys.stderr = cast("TextIO", log)
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - the process ends
        write_log("error", str(error), traceback=traceback.format_exc())
        return 1
    finally:
        log.end()
