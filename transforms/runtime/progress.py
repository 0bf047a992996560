"""Progress: the counts that a command shows while a pipeline runs.

Only the process that started a run shows its progress. Workers in other processes count with
Beam's metrics alone (``metrics``), and write the number of parts that they expect to the build
folder, for the command that monitors the job.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.storage import join, open_storage


@dataclass(eq=False)
class Progress:
    """Counts of one run: workers write them, the display reads them.

    Attributes:
        phase: Name of the current phase.
        total: Inputs to process, or None until that is known.
        done: Inputs processed.
        rejects: Inputs rejected so far.
        unit: Name of the unit that is shown.
        per_unit: Inputs in one unit.
        rejects_name: Word for rejected inputs; empty where they are not counted.
        notices: Lines to be shown once.
        counted: Identities that ``add_once`` has counted.
        is_interrupted: Whether the run must end.
    """

    phase: str = "matching"
    total: int | None = None
    done: int = 0
    rejects: int = 0
    unit: str = "images"
    per_unit: int = 1
    rejects_name: str = "rejected"
    notices: deque[str] = field(default_factory=deque)
    counted: set[Any] = field(default_factory=set)
    is_interrupted: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, inputs: int, rejects: int = 0) -> None:
        """Count processed inputs, and how many of them were rejected.

        Raises:
            KeyboardInterrupt: The run was interrupted.
        """
        if self.is_interrupted:
            raise KeyboardInterrupt
        with self.lock:
            self.done += inputs
            self.rejects += rejects

    def add_once(self, identity: Any, inputs: int) -> None:
        """Count inputs unless that was done: each phase of an analysis reads them again."""
        with self.lock:
            if identity not in self.counted:
                self.done += inputs
            self.counted.add(identity)

    def extend(self, phase: str, inputs: int) -> None:
        """Enter a phase, or stay in it, with more inputs to process."""
        with self.lock:
            self.phase = phase
            self.total = (self.total or 0) + inputs


_collecting: list[Progress] = []
_UNCOLLECTED = Progress()


@contextlib.contextmanager
def collect(progress: Progress) -> Iterator[None]:
    """Count the work of this process in the progress of a run until the block ends."""
    _collecting.append(progress)
    try:
        yield
    finally:
        _collecting.remove(progress)


def interrupt() -> None:
    """Make the work of this process fail when it is counted next.

    Python drops an exception that a signal handler raises in a destructor or the callback of a weak
    reference, such as at the end of a thread: the run would go on.
    """
    for progress in _collecting:
        progress.is_interrupted = True


def current() -> Progress:
    """Return the progress that counts the work of this process.

    Counts are not shown in processes that did not start the run, nor where several runs share
    this process: their workers are threads that cannot be assigned to one of them.
    """
    collecting = tuple(_collecting)
    if len(collecting) == 1:
        return collecting[0]
    return _UNCOLLECTED


def is_collected() -> bool:
    """Return whether this process started a run whose workers are its threads."""
    return bool(_collecting)


def leave_total(build: str, parts: int) -> None:
    """Write the expected number of parts to a build folder, for the command that monitors it."""
    open_storage(build).replace(
        join(build, shard_names.PROGRESS), json.dumps({"parts": parts}).encode()
    )


def find_total(build: str) -> int | None:
    """Return the number of parts that ``leave_total`` wrote to a build folder, or None."""
    try:
        return int(json.loads(open_storage(build).read(join(build, shard_names.PROGRESS)))["parts"])
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return None
