"""Monitors a job that runs in other processes: prints its page, and counts its finished parts."""

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

_MIN_PAUSE, _MAX_PAUSE = 1.0, 60.0  # seconds
_NEARLY_DONE = 0.9  # of the expected parts: from here on, assembling may have started
_MAX_SHARE = 0.02  # of the time that is spent listing files


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

    def monitor() -> None:
        pause = _MIN_PAUSE
        while not ended.wait(pause):
            started = time.monotonic()
            if not jobs:
                job = find_job()
                if job is not None:
                    jobs.append(job)
                    progress.notices.append(f"job: {job.id}{'  ' if job.page else ''}{job.page}")
            # The job reports errors of its storage itself.
            with contextlib.suppress(ShardmillError, OSError):
                update_progress(progress, build)
            took = time.monotonic() - started
            pause = min(_MAX_PAUSE, max(_MIN_PAUSE, took / _MAX_SHARE))

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
