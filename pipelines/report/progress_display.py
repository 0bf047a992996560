"""What a person sees while a command works: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shardmill.schemas.errors import ShardmillError

if TYPE_CHECKING:
    from shardmill.transforms.runtime.progress import Progress

OURS = "shardmill-"  # what names of our own threads begin with
_ending = threading.Event()
_FEW = 10  # MiB, below which KiB are shown


@contextlib.contextmanager
def show_progress(watched: Progress) -> Iterator[None]:
    """Shows a bar on a terminal, or a plain line now and then in a log, until the block ends."""
    from rich.console import Console

    console = Console(stderr=True)
    ended = threading.Event()
    show = _bar if console.is_terminal else _lines
    arguments = (watched, ended, console)
    thread = threading.Thread(target=show, args=arguments, name=f"{OURS}show", daemon=True)
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


@contextlib.contextmanager
def quiet_logs(*, debug: bool) -> Iterator[None]:
    """Keeps Beam's log off the screen: whole tracebacks of errors that end as one sentence.

    Args:
        debug: Whether it is wanted.
    """
    if debug:
        logging.getLogger().setLevel(logging.INFO)
        yield
        return
    logging.getLogger().setLevel(logging.CRITICAL)  # to the very end, where servers are stopped
    # They set levels of their own, so that the root's does not do meanwhile.
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        if not _ending.is_set():
            logging.disable(before)


def last_words_said() -> None:
    """Shows nothing more where a run elsewhere has failed, and its threads here work on.

    They print what befalls them themselves, until the process has ended.
    """
    if _ending.is_set():
        sys.stderr.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)


@contextlib.contextmanager
def quiet_threads() -> Iterator[None]:
    """Keeps errors of Beam's threads off the screen where its log is kept off.

    They fail when the server that they talk to goes, which the main thread tells in one sentence.
    If the block raises, the process is about to end: see ``last_words_said``.
    """
    if logging.root.manager.disable < logging.CRITICAL:
        yield
        return
    before = threading.excepthook

    def tell(failed: threading.ExceptHookArgs) -> None:
        if failed.thread is not None and failed.thread.name.startswith(OURS):
            before(failed)

    threading.excepthook = tell
    try:
        yield
    except BaseException:
        _ending.set()
        raise
    threading.excepthook = before


def show_counters(counters: Mapping[str, int | tuple[int, int, int, int]]) -> None:
    """Shows Beam's counters of a run, a line each.

    Args:
        counters: By name; distributions as (count, sum, least, most).
    """
    for name, value in sorted(counters.items()):
        number = value if isinstance(value, int) else "count {} sum {} min {} max {}".format(*value)
        print(f"counter {name}: {number}", file=sys.stderr)
