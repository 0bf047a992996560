"""Hides output of libraries: logs, remarks on import, errors of Beam's threads."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, TextIO, cast

from shardmill.schemas.errors import ShardmillError

THREAD_PREFIX = "shardmill-"  # of the names of Shardmill's threads
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_run_failed = threading.Event()


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hide what native code writes to standard error, unless the block raises a foreign error."""
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
    """Hide what Beam logs on import about packages that are not installed, and import it faster.

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
        for each, handler in before.items():
            signal.signal(each, handler)
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
    # Beam's loggers set their own levels, which override that of the root.
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        if not _run_failed.is_set():
            logging.disable(before)


@contextlib.contextmanager
def quiet_threads() -> Iterator[None]:
    """Hide errors of Beam's threads if its log is hidden.

    They fail when the server that they talk to goes away, which the main thread reports. If the
    block raises, the process is about to exit: see ``close_stderr_after_failure``.
    """
    if logging.root.manager.disable < logging.CRITICAL:
        yield
        return
    stderr = sys.stderr
    sys.stderr = cast("TextIO", _OwnThreads(stderr))  # where errors of threads are printed, too
    try:
        yield
    except BaseException:
        _run_failed.set()
        raise
    sys.stderr = stderr


class _OwnThreads:
    """Standard error without what Beam's threads print: tracebacks of errors in its worker."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        thread = threading.current_thread()
        if thread is threading.main_thread() or thread.name.startswith(THREAD_PREFIX):
            self._file.write(text)
        return len(text)


def close_stderr_after_failure() -> None:
    """Redirect standard error to the null device after a failed run on another machine.

    Beam's threads keep running until the process exits, and print their own errors.
    """
    if _run_failed.is_set():
        sys.stderr.flush()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)
