"""The progress of a command: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shardmill.pipelines.report.json_log import write_log
from shardmill.pipelines.report.quiet import THREAD_PREFIX
from shardmill.schemas.numbers import human_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from shardmill.transforms.runtime.progress import Progress

_FIRST_PAUSE, _MAX_PAUSE = 5.0, 60.0  # seconds between two lines of a log
_hidden = contextvars.ContextVar("hidden", default=False)


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
                completed=shown_count(progress) // progress.per_unit,
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


def shown_count(progress: Progress) -> int:
    """Return what was counted, but no more than the total, which is an estimate of some work."""
    return progress.done if progress.total is None else min(progress.done, progress.total)


def progress_line(progress: Progress, seconds: float) -> str:
    """Return the progress as one line of a log.

    Args:
        progress: The counts.
        seconds: Time since the start.
    """
    if progress.total is None and not progress.done:
        return f"{progress.phase}: {seconds:,.0f} s"
    rate = progress.done / seconds
    counted = shown_count(progress)
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
