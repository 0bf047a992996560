"""Standard error as a log of JSON objects: one a line, with time, level, message and fields."""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any, TextIO, cast


class _JsonLog:
    """Standard error whose lines, also those of libraries, become objects."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._held = defaultdict[int, str](str)  # of each thread: print() writes in pieces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def isatty(self) -> bool:
        """Return that no progress bar can be shown."""
        return False

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        *lines, self._held[thread] = f"{self._held[thread]}{text}".split("\n")
        self._log_lines(lines)
        return len(text)

    def end(self) -> None:
        """Write what had no end of line."""
        self._log_lines([*self._held.values()])
        self._held.clear()

    def _log_lines(self, lines: Iterable[str]) -> None:
        for line in filter(str.strip, lines):
            message = line.removeprefix("shardmill: ")  # of a sentence about what went wrong
            self.log("info" if message == line else "error", message)

    def log(self, level: str, message: str, **fields: Any) -> None:
        """Write one object, in one call: threads write too."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        entry = {"time": now, "level": level, "message": message, **fields}
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


def has_log() -> bool:
    """Return whether standard error is such a log."""
    return hasattr(sys.stderr, "log")


def write_log(level: str, message: str, **fields: Any) -> bool:
    """Write an object to standard error, if that is such a log; return whether it is."""
    if has_log():
        cast("_JsonLog", sys.stderr).log(level, message, **fields)
    return has_log()


def logged(run: Callable[[], int]) -> int:
    """Return the exit code of a command; from now on, standard error is such a log.

    An unexpected error, or any with --debug, is an object too.
    """
    log = _JsonLog(sys.stderr)
    sys.stderr = cast("TextIO", log)
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - the process ends
        write_log("error", str(error), traceback=traceback.format_exc())
        return 1
    finally:
        log.end()
