"""What a person sees while a command works: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shardmill.pipelines.report.quiet import THREAD_PREFIX

if TYPE_CHECKING:
    from shardmill.transforms.runtime.progress import Progress

_FEW = 10  # MiB, below which KiB are shown


@contextlib.contextmanager
def show_progress(watched: Progress) -> Iterator[None]:
    """Shows a bar on a terminal, or a plain line now and then in a log, until the block ends."""
    from rich.console import Console

    console = Console(stderr=True)
    ended = threading.Event()
    show = _bar if console.is_terminal else _lines
    arguments = (watched, ended, console)
    thread = threading.Thread(target=show, args=arguments, name=f"{THREAD_PREFIX}show", daemon=True)
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
            while watched.notices:
                display.console.print(watched.notices.popleft(), highlight=False, soft_wrap=True)
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
    due = started + pause
    while not ended.wait(min(1.0, max(0.0, due - time.monotonic()))):
        while watched.notices:
            console.print(watched.notices.popleft(), highlight=False, soft_wrap=True)
        if time.monotonic() < due:
            continue
        console.print(
            progress_line(watched, time.monotonic() - started), highlight=False, soft_wrap=True
        )
        pause = min(60.0, pause * 1.5)
        due = time.monotonic() + pause


def progress_line(watched: Progress, seconds: float) -> str:
    """Returns how far a pipeline is, as one line of a log.

    Args:
        watched: Its counts.
        seconds: Since it began.
    """
    if watched.total is None and not watched.done:
        return f"{watched.phase}: {seconds:,.0f} s"
    scale, unit = _scaled(watched)
    total = f" of {watched.total / scale:,.0f}" if watched.total is not None else ""
    rate = watched.done / seconds
    # Numbers that come from outside may be about one more than was foreseen.
    left = max(0, (watched.total or 0) - watched.done)
    remaining = f", {left / rate:,.0f} s left" if left and rate else ""
    refused = f", {watched.rejects:,} {watched.refused}" if watched.refused else ""
    number = f"{rate / scale:,.0f}" if rate >= 10 * scale else f"{rate / scale:,.1f}"
    return (
        f"{watched.phase}: {watched.done / scale:,.0f}{total} {unit}, "
        f"{number} {unit}/s{remaining}{refused}"
    )
