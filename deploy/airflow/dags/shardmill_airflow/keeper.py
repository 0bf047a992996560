"""Run a command for a task that may be killed at any time, and leave no process running.

    keeper.py GRACE COMMAND [ARGUMENT...]

The task holds the write end of our standard input and never writes to it. When that end is closed,
by the task or because the task died, the command gets SIGTERM, and its process group SIGKILL after
GRACE seconds. Airflow kills a task five seconds after asking it to stop; cancelling a job on a
cluster takes longer, so this process outlives the task.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

CANNOT_RUN = 127
_PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(grace: float, argv: list[str]) -> int:
    """Run a command and return its exit code; 128 + n if signal n ended it."""
    awake = _wake_on_signals()
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - there are no threads here
        )
    except OSError as error:
        print(f"{argv[0]} cannot be run: {error.strerror}.", file=sys.stderr)
        return CANNOT_RUN
    deadline = 0.0
    while not _has_ended(child.pid):
        left = max(0.0, deadline - time.monotonic()) if deadline else None
        ready, _, _ = select.select([awake] if deadline else [awake, 0], [], [], left)
        signalled = awake in ready and any(number in _ENDING for number in os.read(awake, 64))
        if deadline and not ready:
            _kill_group(child.pid)
        elif not deadline and (signalled or (0 in ready and not os.read(0, 64))):
            # Not its group: cancelling its job may need the servers that it started.
            os.kill(child.pid, signal.SIGTERM)
            deadline = time.monotonic() + grace
    _kill_group(child.pid)  # its remaining processes; wait() below frees its pid
    code = child.wait()
    return 128 - code if code < 0 else code


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Make Linux send this process a signal when its parent dies; a no-op on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _wake_on_signals() -> int:
    """Return a file descriptor that receives the number of each signal as a byte."""
    awake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    for number in (*_ENDING, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return awake


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
