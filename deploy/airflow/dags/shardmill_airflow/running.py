"""Running a command so that each of its lines is told, and none of its processes stays behind."""

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
_LONGEST = 4000  # characters of a line that a log shows
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x08")
_OTHERS = ("AIRFLOW__", "PYTHON", "VIRTUAL_ENV", "__PYVENV", "UV_")  # of Airflow's own environment


@dataclass
class Lines:
    """Cuts what a stream says into lines as a log wants them."""

    rest: bytes = b""

    def add(self, data: bytes) -> Iterator[str]:
        """Yields the lines that are finished with some more bytes; none of them is empty."""
        *whole, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) > 1 << 16:
            whole.append(self.rest)
            self.rest = b""
        yield from filter(None, map(_shown, whole))

    def end(self) -> Iterator[str]:
        """Yields what was said after the last line's end."""
        yield from self.add(b"\n")


def _shown(line: bytes) -> str:
    text = _COLOURS.sub("", line.decode(errors="replace").rstrip("\r"))
    # Progress bars draw a line over and over: what stood there in the end is enough.
    text = text.rpartition("\r")[2].rstrip()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


@dataclass
class Command:
    """A command that runs; see ``keeper``.

    Attributes:
        argv: The program and its arguments. There is no shell.
        last: The last line on each stream, by whether it is standard error.
    """

    argv: Sequence[str]
    process: subprocess.Popen[bytes]
    last: dict[bool, str] = field(default_factory=dict)
    sentence: str = ""

    @classmethod
    def start(cls, argv: Sequence[str], env: Mapping[str, str], grace: float) -> Command:
        """Starts a command.

        Args:
            argv: The program and its arguments.
            env: All of its environment.
            grace: Seconds that it has to end after SIGTERM.
        """
        said, complained = os.pipe(), os.pipe()
        # The keeper holds the reading ends too: a command that is ending must not meet a pipe that
        # nobody reads, only because the task was killed.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", _KEEPER, str(grace), *argv],
            stdin=subprocess.PIPE, stdout=said[1], stderr=complained[1], env=dict(env),
            pass_fds=(said[0], complained[0]), start_new_session=True, cwd="/",
        )  # fmt: skip
        os.close(said[1])
        os.close(complained[1])
        command = cls(argv, process)
        command._streams = {said[0]: False, complained[0]: True}
        return command

    _streams: dict[int, bool] = field(default_factory=dict)

    def lines(self) -> Iterator[tuple[bool, str]]:
        """Yields each line as it comes, and whether it is of standard error, until the end."""
        cutters = {stream: Lines() for stream in self._streams}
        with selectors.DefaultSelector() as selector:
            for stream in self._streams:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                # Looked at first: what is ready then is all that was ever said. A process that got
                # away might keep the pipes open for good.
                ended = self.process.poll() is not None
                ready = selector.select(0 if ended else 1)
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fd)
                    found = cutters[key.fd].add(data) if data else cutters[key.fd].end()
                    yield from self._noted(self._streams[key.fd], found)
                if ended and not ready:
                    break
        for stream in self._streams:
            os.close(stream)
        self._streams = {}

    def _noted(self, complained: bool, lines: Iterator[str]) -> Iterator[tuple[bool, str]]:
        for line in lines:
            self.last[complained] = line
            if complained and line.startswith("shardmill: "):
                self.sentence = line
            yield complained, line

    def leave(self) -> None:
        """Asks it to end, and has it killed when it does not; returns at once."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def failure(self, code: int) -> str:
        """Returns why it failed, in one sentence: its own, where it said one."""
        what = " ".join(self.argv[:2])
        if self.sentence:
            return self.sentence
        if code == 128 + signal.SIGKILL:
            return (
                f"{what} was killed by SIGKILL, most often for want of memory: give it more, or "
                "--threads=1. The next try goes on from the parts that are finished."
            )
        said = self.last.get(True) or self.last.get(False) or "it said nothing"
        if code == keeper.CANNOT_RUN:
            return f"{said} Set the path of the command in the settings."
        return f"{what} ended with exit code {code}: {said}"


def clean_environment(added: Mapping[str, str]) -> dict[str, str]:
    """Returns this process's environment without what is meant for Airflow and its Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}
    return {**kept, "PYTHONUNBUFFERED": "1", **added}
