"""Processes that end with the one that started them, however that one dies.

The starting process holds one end of a pipe, its lifeline. The kernel closes that end when the
process dies, also if it is killed. A process that the starting one has forked meanwhile may hold a
copy, so the watching process looks for its parent, too.
"""

from __future__ import annotations

import os
import select
import threading
from dataclasses import dataclass

_LOOK_MS = 1000  # how often a process looks for its parent


@dataclass(frozen=True)
class _Lifeline:
    """The pipe and the process that a child process watches.

    Attributes:
        descriptor: End of a pipe, whose other end the starting process holds.
        parent: Id of the starting process.
    """

    descriptor: int
    parent: int

    def is_cut(self, wait_ms: int = 0) -> bool:
        """Return whether the starting process has closed its end or died.

        Args:
            wait_ms: How long to wait for it, in milliseconds.
        """
        poll = select.poll()
        poll.register(self.descriptor, 0)  # waits for the end of the stream only
        return bool(poll.poll(wait_ms)) or os.getppid() != self.parent


_lifelines: list[_Lifeline] = []  # of this process


def end_with_parent(descriptor: int) -> None:
    """End this process as soon as the one that started it closes a pipe or dies.

    Args:
        descriptor: The end of the pipe that this process has.
    """
    lifeline = _Lifeline(descriptor, os.getppid())
    _lifelines.append(lifeline)

    def watch() -> None:
        while not lifeline.is_cut(_LOOK_MS):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def end_if_orphaned() -> None:
    """End this process at once if the one that started it has closed its pipe or died.

    Called right before a step that cannot be undone: the thread that watches may be late.
    """
    if any(lifeline.is_cut() for lifeline in _lifelines):
        os._exit(1)
