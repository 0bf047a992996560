"""``shardmill completion``: real shells complete commands, flags, values and files."""

import os
import pty
import selectors
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardmill.pipelines.commands import COMMANDS, find_parser
from tests.support.fault_tools import sentence_here

SECONDS = 60  # of a busy machine
# Shells show what they are given instead of running it.
SHOW = {
    "bash": 'shardmill() { printf "<%s>" "$@"; echo; echo ready; }',
    "zsh": 'shardmill() { printf "<%s>" "$@"; echo; echo ready; }',
}
START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}


def script_of(shell: str) -> str:
    words = [sys.executable, "-m", "shardmill.pipelines.cli", "completion", shell]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def read_until(terminal: int, text: bytes) -> bytes:
    """Return the output of a shell up to a text."""
    seen, end = b"", time.monotonic() + SECONDS
    with selectors.DefaultSelector() as selector:  # select() rejects descriptors above 1,023
        selector.register(terminal, selectors.EVENT_READ)
        while text not in seen:
            assert selector.select(max(0.0, end - time.monotonic())), seen
            seen += os.read(terminal, 65536)
    return seen


def complete(shell: str, lines: list[str], folder: Path) -> list[list[str]]:
    """Type lines with a tab at their end; return the arguments that the shell then runs."""
    (folder / f"script.{shell}").write_text(script_of(shell))
    setup = f". ./script.{shell}\n{SHOW[shell]}\n"
    if shell == "zsh":
        setup = f"autoload -U compinit; compinit -u -D; setopt nobeep\n{setup}"
    (folder / "setup").write_text(f"{setup}PS1='> '; echo set up\n")
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(folder)}
        os.execvpe(START[shell][0], START[shell], environment)
    try:
        os.write(terminal, b". ./setup\n")
        read_until(terminal, b"set up\r\n")
        results = []
        for line in lines:
            os.write(terminal, f"shardmill {line}\t".encode())
            os.write(terminal, b"\n")
            shown = read_until(terminal, b"ready\r\n").decode().splitlines()
            answer = next(part for part in reversed(shown) if part.startswith("<"))
            results.append(answer.strip("<>").split("><"))
        return results
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


CASES = {
    "im": ["images"],
    "images --enc": ["images", "--encoding="],
    "images --encoding=j": ["images", "--encoding=jpeg"],
    "rows --encoding=lat": ["rows", "--encoding=latin-1"],
    "images --update=c": ["images", "--update=content"],
    "images --inp": ["images", "--input="],
    "images --input=pho": ["images", "--input=photos/"],
    "images pho": ["images", "photos/"],
    "images --overw": ["images", "--overwrite"],
    "verify --dee": ["verify", "--deep"],
    "images --splits=train:": ["images", "--splits=train:0.9,validation:0.1"],
    "rows --infi": ["rows", "--infinity="],
}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes(shell, tmp_path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "photos").mkdir()
    results = complete(shell, list(CASES), tmp_path)
    expected = dict(CASES)
    if shell == "zsh":  # removes what it has added to a word when Enter follows
        expected = {line: [word.rstrip("=/") for word in words] for line, words in CASES.items()}
    assert dict(zip(CASES, results, strict=True)) == expected


def test_fish_completes(tmp_path) -> None:
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    (tmp_path / "script.fish").write_text(script_of("fish"))
    (tmp_path / "photos").mkdir()
    for line, words in CASES.items():
        command = f"source script.fish; complete -C 'shardmill {line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        offered = {row.split("\t")[0] for row in done.stdout.splitlines()}
        assert words[-1].removesuffix("=") in {word.removesuffix("=") for word in offered}, line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_have_each_flag_of_each_command(shell) -> None:
    script = script_of(shell)
    for command in COMMANDS:
        for flag in find_parser(command).flags:
            if flag.startswith("--") and "=" not in flag:
                assert (f"-l {flag[2:]} " if shell == "fish" else flag) in script, flag


def test_an_unknown_shell_is_one_sentence(capsys) -> None:
    assert "use bash, zsh or fish" in sentence_here(capsys, "completion", "tcsh", code=2)
