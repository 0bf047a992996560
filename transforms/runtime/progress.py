"""Progress and outcomes: what the command shows while a pipeline runs.

Only the process that started a pipeline watches it. A worker in another process finds nobody
watching, counts with Beam's metrics alone (``metrics``), and leaves small files: how many parts
there will be, beside the parts, and the outcome.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.storage import join, open_storage


@dataclass
class Progress:
    """Counts of one running pipeline; each is written by one thread and read by another.

    Attributes:
        phase: What is being done.
        total: Inputs to go through, once that is known.
        done: Inputs gone through.
        rejects: Inputs refused so far.
        unit: What inputs are called.
        per_unit: How many inputs make one unit.
        refused: What refused ones are called.
        outcome: What came of it, in the end.
        stale: Whether an earlier try ended because another builder took its files away.
        notices: Lines to be shown once.
    """

    phase: str = "matching"
    total: int | None = None
    done: int = 0
    rejects: int = 0
    unit: str = "images"
    per_unit: int = 1
    refused: str = "rejected"
    outcome: Any = None
    stale: bool = False
    notices: deque[str] = field(default_factory=deque)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def step(self, *, rejected: bool) -> None:
        """Counts one input."""
        with self.lock:
            self.done += 1
            self.rejects += rejected

    def add(self, inputs: int, rejects: int) -> None:
        """Counts several inputs at once."""
        with self.lock:
            self.done += inputs
            self.rejects += rejects

    def begin(self, phase: str, inputs: int) -> None:
        """Enters a phase, or stays in it, with more inputs to go through."""
        with self.lock:
            self.phase = phase
            self.total = (self.total or 0) + inputs


_watched: dict[str, Progress] = {}


def watch(invocation: str, *, stale: bool = False) -> Progress:
    """Starts watching an invocation in this process; see ``Progress`` for ``stale``."""
    _watched[invocation] = Progress(stale=stale)
    return _watched[invocation]


def unwatch(invocation: str) -> None:
    """Stops watching."""
    _watched.pop(invocation, None)


def progress_of(invocation: str) -> Progress | None:
    """Returns who watches an invocation in this process, if anybody."""
    return _watched.get(invocation)


def leave_total(build: str, parts: int) -> None:
    """Leaves in a build folder how many parts there will be, for who watches from elsewhere."""
    open_storage(build).replace(
        join(build, shard_names.PROGRESS), json.dumps({"parts": parts}).encode()
    )


def find_total(build: str) -> int | None:
    """Returns what ``leave_total`` left in a build folder, or None."""
    try:
        return int(json.loads(open_storage(build).read(join(build, shard_names.PROGRESS)))["parts"])
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return None
