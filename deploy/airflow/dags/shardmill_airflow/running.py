"""Runs a command, reads its output line by line, and leaves no process behind."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardmill_airflow import keeper

_KEEPER = str(Path(keeper.__file__).resolve())
_MAX_LINE = 4000  # characters of a line in the log
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x08")
_AIRFLOW_ONLY = ("AIRFLOW_", "_AIRFLOW_", "PYTHON", "VIRTUAL_ENV", "__PYVENV", "UV_")  # prefixes
_CONTEXT = "AIRFLOW_CTX_"


@dataclass
class Lines:
    """Splits the bytes of a stream into lines for a log."""

    rest: bytes = b""

    def add(self, data: bytes) -> Iterator[str]:
        """Yield the lines that more bytes complete; empty lines are left out."""
        *whole, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) > 1 << 16:
            whole.append(self.rest)
            self.rest = b""
        yield from filter(None, map(_shown, whole))

    def end(self) -> Iterator[str]:
        """Yield the text after the last line break."""
        yield from self.add(b"\n")


def _shown(line: bytes) -> str:
    text = _ESCAPES.sub("", line.decode(errors="replace").rstrip("\r"))
    # A progress bar redraws its line: keep its last state.
    return text.rpartition("\r")[2].rstrip()


def shortened(line: str) -> str:
    """Return a line as it is logged."""
    return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}..."


@dataclass
class Command:
    """A running command; see ``keeper``.

    Attributes:
        argv: The program and its arguments. There is no shell.
        process: The keeper's process.
        last: The last line of each stream, by whether it is standard error.
        sentence: The last error of ``shardmill`` on standard error.
    """

    argv: Sequence[str]
    process: subprocess.Popen[bytes]
    last: dict[bool, str] = field(default_factory=dict)
    sentence: str = ""

    @classmethod
    def start(cls, argv: Sequence[str], env: Mapping[str, str], grace: float) -> Command:
        """Start a command.

        Args:
            argv: The program and its arguments.
            env: Its whole environment.
            grace: Seconds that it has to exit after SIGTERM.
        """
        stdout, stderr = os.pipe(), os.pipe()
        # The keeper inherits the read ends too: when the task is killed, a command that is exiting
        # can still write to the pipes.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", _KEEPER, str(grace), *argv],
            stdin=subprocess.PIPE,
            stdout=stdout[1],
            stderr=stderr[1],
            env=dict(env),
            pass_fds=(stdout[0], stderr[0]),
            start_new_session=True,
            cwd="/",
        )
        os.close(stdout[1])
        os.close(stderr[1])
        command = cls(argv, process)
        command._streams = {stdout[0]: False, stderr[0]: True}
        return command

    _streams: dict[int, bool] = field(default_factory=dict)

    def lines(self) -> Iterator[tuple[bool, str]]:
        """Yield for each line whether it is of standard error, and its text, until the end."""
        splitters = {stream: Lines() for stream in self._streams}
        with selectors.DefaultSelector() as selector:
            for stream in self._streams:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                # Checked before select: what is ready then is all output of the command. A process
                # that left its group might keep the pipes open forever.
                ended = self.process.poll() is not None
                ready = selector.select(0 if ended else 1)
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fd)
                    lines = splitters[key.fd].add(data) if data else splitters[key.fd].end()
                    yield from self._record(self._streams[key.fd], lines)
                if ended and not ready:
                    break
        for stream in self._streams:
            os.close(stream)
        self._streams = {}

    def _record(self, is_stderr: bool, lines: Iterator[str]) -> Iterator[tuple[bool, str]]:
        for line in lines:
            self.last[is_stderr] = line
            if is_stderr and line.startswith("shardmill: "):
                self.sentence = line
            yield is_stderr, line

    def stop(self) -> None:
        """Make the keeper stop the command; returns at once."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def failure(self, code: int) -> str:
        """Return why it failed in one sentence: the command's own, if there is one."""
        what = " ".join(self.argv[:2])
        if self.sentence:
            return self.sentence
        if code == 128 + signal.SIGKILL:
            return (
                f"{what} was killed by SIGKILL, most often because the machine ran out of memory: "
                "add memory, or set --workers=1 (images) or --threads=1 (rows, arrays). "
                "The next attempt reuses the finished parts."
            )
        output = shortened(self.last.get(True) or self.last.get(False) or "it printed nothing")
        if code == keeper.CANNOT_RUN:
            return f"{output} Set the path of the command in the settings."
        return f"{what} ended with exit code {code}: {output}"


def clean_environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without the variables of Airflow and its Python.

    Those of Airflow may be its connections and variables; only the names of the task are kept.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_CONTEXT) or not name.startswith(_AIRFLOW_ONLY)
    }
    return {**kept, "PYTHONUNBUFFERED": "1", **added}
