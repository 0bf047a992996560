"""Runs the code and the commands of a page of the docs, and checks what they are said to give."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.pipelines import cli
from tests.conftest import ROOT
from tests.support.docs_code import run_checked

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = ("sh", "console", "python")
# What differs from run to run: how long it took, when it was.
_CHANGING = [
    (re.compile(r"^  time .*\n", re.MULTILINE), ""),
    (re.compile(r"^  [\d.,]+ s, [\d.,]+ \w*B/s$", re.MULTILINE), "  (time)"),
    (re.compile(r"finished .* ago, at \S+,"), "finished (time),"),
    (re.compile(r"built \d{4}-\d\d-\d\d \d\d:\d\d"), "built (time)"),
]
# What only a shell does.
_SHELL = re.compile(r"[|<>;&`$*]")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: The page's path below the root of the repository.
        line: Where its text begins.
        language: What stands behind the fence.
        text: What is in it.
    """

    page: str
    line: int
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line, by which tables know it."""
        return self.text.strip().splitlines()[0].removeprefix("$ ")


def blocks_of(path: Path) -> list[Block]:
    """Returns the fenced blocks of a page in their order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(
            path.relative_to(ROOT).as_posix(), text.count("\n", 0, found.start(2)) + 1,
            found[1], found[2],
        )
        for found in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    ]  # fmt: skip


def commands_of(block: Block) -> list[tuple[str, str]]:
    """Returns each command of a block of shell, and the output that follows it.

    In a ``console`` block ``$`` stands before a command. A backslash joins lines.
    """
    text = block.text.replace("\\\n", " ")
    if block.language == "console":
        assert text.startswith("$ "), f"{block.page}:{block.line}: no command"
        parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
        return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]
    if re.search(r"^(for|while|if) .*[^e]$", text, re.MULTILINE):
        return [(text, "")]  # a script
    return [(line, "") for line in text.splitlines() if line.split("#")[0].strip()]


class Shell:
    """A folder in which a page is followed, command by command.

    ``shardmill`` runs in this process where the line needs nothing of a real shell: it need not
    load Beam each time then. All else runs in bash, with the ``shardmill`` beside this Python.
    """

    def __init__(self, folder: Path, *others: Path) -> None:
        self.folders = [path.resolve() for path in (folder, *others)]
        self.names: dict[str, Any] = {"__name__": "a_page"}

    def run(self, block: Block) -> None:
        """Runs a block, and checks its output where it shows some."""
        if block.language == "python":
            run_checked(block.text, self.names)
            return
        for command, shown in commands_of(block):
            where = f"{block.page}:{block.line}: {command}"
            if re.search(r"\bjq ", command) and not shutil.which("jq"):
                continue  # a program of the reader's; nothing of ours runs in it
            code, said = self._run(command)
            fails = re.search(r"^(shardmill: |  damaged )", shown, re.MULTILINE) is not None
            assert (code != 0) == fails, f"{where}\n{said}"
            if block.language == "console":
                for folder in self.folders:
                    said = said.replace(str(folder), "/data")
                alike(shown, said, where)

    def _run(self, command: str) -> tuple[int, str]:
        words = shlex.split(command, comments=True)
        unquoted = re.sub(r"'[^']*'|\"[^\"$`]*\"", "", command.split(" #", maxsplit=1)[0])
        if words[0] == "shardmill" and not _SHELL.search(unquoted):
            return _called(words[1:])
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=self.folders[0], check=False,
            capture_output=True, text=True, env={**os.environ, "PATH": path, "COLUMNS": "100"},
        )  # fmt: skip
        return done.returncode, done.stdout + (done.stderr if done.returncode else "")


def _called(arguments: list[str]) -> tuple[int, str]:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(arguments)
        except SystemExit as ended:  # --help
            code = int(ended.code or 0)
    out.seek(0)
    err.seek(0)
    return code, out.read() + (err.read() if code else "")


def alike(shown: str, said: str, where: str) -> None:
    """Checks that a page shows what was said; ``...`` stands for any lines."""
    for pattern, instead in _CHANGING:
        shown, said = pattern.sub(instead, shown), pattern.sub(instead, said)
    pattern = r"".join(
        r"(?:.*\n)*" if line.strip() == "..." else re.escape(line.rstrip()) + r" *\n"
        for line in shown.splitlines()
    )
    if not re.fullmatch(pattern, said):  # pytest would indent the message of an assert
        raise AssertionError(f"{where}\nthe page shows\n{shown}\nit says\n{said}")


def shardmill_commands(block: Block) -> Iterator[list[str]]:
    """Yields the arguments of each ``shardmill`` that a block of shell calls."""
    for line in block.text.replace("\\\n", " ").splitlines():
        found = re.search(r"(?:^|[\s/])shardmill (\w.*)", line)
        if found and found[1].split()[0] in cli.COMMANDS:
            yield shlex.split(found[1].split(" | ")[0], comments=True)
