"""Following a job that runs elsewhere: its page, and how far it is by the parts it has finished."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from shardmill.pipelines.report.quiet import THREAD_PREFIX
from shardmill.schemas.errors import ShardmillError
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.runtime.progress import find_total

if TYPE_CHECKING:
    from shardmill.pipelines.runners import Job
    from shardmill.transforms.runtime.progress import Progress

_LEAST_PAUSE, _MOST_PAUSE = 1.0, 60.0  # seconds
_NEARLY = 0.9  # of the parts that were foreseen: where assembling may have begun
_SHARE = 0.02  # of the time that looking may take


@contextlib.contextmanager
def follow(
    watched: Progress, build: str, find_job: Callable[[], Job | None]
) -> Iterator[Callable[[], Job | None]]:
    """Keeps the counts of a job up to date, from a thread, until the block ends.

    Args:
        watched: The counts.
        build: Folder of the build, whose finished parts are counted; empty for none.
        find_job: Finds the job, once the runner shows it.

    Yields:
        A function that returns the job as it was found, if it was.
    """
    ended = threading.Event()
    found: list[Job] = []

    def work() -> None:
        pause = _LEAST_PAUSE
        while not ended.wait(pause):
            started = time.monotonic()
            if not found:
                job = find_job()
                if job is not None:
                    found.append(job)
                    watched.notices.append(f"job: {job.id}{'  ' if job.page else ''}{job.page}")
            # A hiccup of the storage is the job's to report, not of who looks on.
            with contextlib.suppress(ShardmillError, OSError):
                look(watched, build)
            took = time.monotonic() - started
            pause = min(_MOST_PAUSE, max(_LEAST_PAUSE, took / _SHARE))

    thread = threading.Thread(target=work, name=f"{THREAD_PREFIX}follow", daemon=True)
    thread.start()
    try:
        yield lambda: found[0] if found else None
    finally:
        ended.set()
        thread.join(timeout=5)


def look(watched: Progress, build: str) -> None:
    """Brings counts up to date with what lies in a build folder.

    Args:
        watched: The counts.
        build: The folder; empty for none.

    Raises:
        ShardmillError: It cannot be listed.
    """
    if not build:
        watched.phase = "running"
        return
    total = watched.total if watched.total is not None else find_total(build)
    if total is None or watched.phase == "assembling":
        return
    done = _finished(build, "parts")
    runs = 0 if done else _finished(build, "runs")
    watched.total, watched.done = total, max(done, watched.done)
    if runs:
        watched.phase = f"reading ({runs:,} ranges done)"
    elif done >= _NEARLY * total and _any(join(build, "shards")):
        watched.total = watched.done
        watched.phase = "assembling"
    else:
        watched.phase = "encoding"


def _any(folder: str) -> bool:
    return any(True for _ in open_storage(folder).list_dir(folder))


def _finished(build: str, folder: str) -> int:
    """Returns how many sidecars a folder of a build has."""
    path = join(build, folder)
    return sum(entry.path.endswith(".json") for entry in open_storage(path).list_dir(path))
