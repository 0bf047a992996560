"""Run the code and the commands of the docs, and compare their output with the page."""

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
# Durations, times and names of generations, which differ from run to run.
_CHANGING = [
    (re.compile(r"^  time .*\n", re.MULTILINE), ""),
    (re.compile(r"^  [\d.,]+ s, [\d.,]+ \w*B/s$", re.MULTILINE), "  (time)"),
    (re.compile(r"finished .* ago, at \S+,"), "finished (time),"),
    (re.compile(r"built \d{4}-\d\d-\d\d \d\d:\d\d"), "built (time)"),
    (re.compile(r"gen-\d{8}T\d{6}Z-[0-9a-f]{12}"), "gen-(time)"),
]
# Characters that need a shell.
_SHELL = re.compile(r"[|<>;&`$*]")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: The page's path below the root of the repository.
        line: Line number of its first line.
        language: The language after the opening fence.
        text: Its contents.
    """

    page: str
    line: int
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first command or line."""
        return self.text.strip().splitlines()[0].removeprefix("$ ")


def blocks_of(path: Path, root: Path = ROOT) -> list[Block]:
    """Return the fenced blocks of a page of a checkout in their order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(
            path.relative_to(root).as_posix(),
            text.count("\n", 0, found.start(2)) + 1,
            found[1],
            found[2],
        )
        for found in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    ]


def commands_of(block: Block) -> list[tuple[str, str]]:
    """Return each command of a shell block, and the output that follows it.

    In a ``console`` block, commands begin with ``$``. A backslash joins lines.
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
    """A folder in which the commands of a page are run, one after the other.

    ``shardmill`` runs in this process if the command needs no shell, so that Beam is loaded once.
    Other commands run in bash, with the ``shardmill`` of this environment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.names: dict[str, Any] = {"__name__": "a_page"}

    def run(self, block: Block) -> None:
        """Run a block, and compare its output if the page shows it."""
        if block.language == "python":
            run_checked(block.text, self.names)
            return
        for command, shown in commands_of(block):
            where = f"{block.page}:{block.line}: {command}"
            if re.search(r"\bjq ", command) and not shutil.which("jq"):
                continue  # jq is not a dependency
            code, output = self._run(command)
            fails = re.search(r"^(shardmill: |  damaged )", shown, re.MULTILINE) is not None
            assert (code != 0) == fails, f"{where}\n{output}"
            if block.language == "console":
                alike(shown, output.replace(str(self.folder), "/data"), where)

    def _run(self, command: str) -> tuple[int, str]:
        words = shlex.split(command, comments=True)
        unquoted = re.sub(r"'[^']*'|\"[^\"$`]*\"", "", command.split(" #", maxsplit=1)[0])
        if words[0] == "shardmill" and not _SHELL.search(unquoted):
            return _called(words[1:])
        path = f"{Path(sys.executable).parent}{os.pathsep}/usr/bin{os.pathsep}/bin"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.folder,
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path, "COLUMNS": "100"},
        )
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


def alike(shown: str, output: str, where: str) -> None:
    """Assert that a page shows an output; ``...`` matches any lines."""
    for pattern, instead in _CHANGING:
        shown, output = pattern.sub(instead, shown), pattern.sub(instead, output)
    pattern = r"".join(
        r"(?:.*\n)*" if line.strip() == "..." else re.escape(line.rstrip()) + r" *\n"
        for line in shown.splitlines()
    )
    if not re.fullmatch(pattern, output):  # pytest would indent the message of an assert
        raise AssertionError(f"{where}\nthe page shows\n{shown}\nthe command prints\n{output}")


def shardmill_commands(block: Block) -> Iterator[list[str]]:
    """Yield the arguments of each ``shardmill`` command of a shell block."""
    for line in block.text.replace("\\\n", " ").splitlines():
        found = re.search(r"(?:^|[\s/])shardmill (\w.*)", line)
        if found and found[1].split()[0] in cli.COMMANDS:
            yield shlex.split(found[1].split(" | ")[0], comments=True)
