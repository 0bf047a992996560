"""A shell completes commands, flags and values, as the shells themselves see it; and help."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardmill.pipelines.cli import COMMANDS
from shardmill.pipelines.flags import find_parser

# What bash does when the tabulator is pressed at the end of a line: it fills these in, and calls.
PRESS = r"""
eval "$(shardmill completion bash)"
while IFS= read -r line; do
  COMP_LINE=$line COMP_POINT=${#line} COMP_TYPE=9 COMPREPLY=()
  IFS=' ' read -ra COMP_WORDS <<< "$line"
  if [[ $line == *' ' ]]; then COMP_WORDS+=(''); fi
  COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
  _python_argcomplete shardmill "${COMP_WORDS[COMP_CWORD]}" '' 2> /dev/null
  printf '%s|' "${COMPREPLY[@]}"; echo
done
"""


def run_shell(*command: str, stdin: str = "", cwd: Path) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, input=stdin, cwd=cwd, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def complete(folder: Path, *lines: str) -> list[list[str]]:
    said = run_shell("bash", "-c", PRESS, stdin="".join(f"{line}\n" for line in lines), cwd=folder)
    return [[word.strip() for word in line.split("|") if word] for line in said.splitlines()]


def test_bash_completes(tmp_path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos.csv").touch()
    cases = {
        "shardmill ": ["--help", "--version", *COMMANDS],
        "shardmill im": ["images"],
        "shardmill images --resi": ["--resize"],
        "shardmill images --resize=": ["stretch", "fit", "pad", "crop", "none"],
        "shardmill images --resize=p": ["pad"],
        "shardmill images --interpolation b": ["box", "bilinear", "bicubic"],
        "shardmill images --input=ph": ["photos/", "photos.csv"],
        "shardmill images --output=ph": ["photos/"],
        "shardmill images --seed=": [],
        "shardmill rows --header=": ["first", "none"],
        "shardmill arrays --runner=F": ["FlinkRunner"],
        "shardmill count --check=": ["records", "index"],
        "shardmill steps ph": ["photos/"],
        "shardmill completion f": ["fish"],
    }
    found = complete(tmp_path, *cases)
    assert [sorted(words) for words in found] == [sorted(words) for words in cases.values()]


@pytest.mark.parametrize("command", COMMANDS)
def test_bash_completes_every_flag(command, tmp_path) -> None:
    (found,) = complete(tmp_path, f"shardmill {command} --")
    flags = {action.option_strings[-1] for action in find_parser(command)._actions[1:]
             if action.option_strings}  # fmt: skip
    assert flags <= set(found)
    assert flags


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(tmp_path) -> None:
    press = 'complete -C "shardmill images --resize=p"; complete -C "shardmill im"'
    said = run_shell("fish", "-c", f"shardmill completion fish | source; {press}", cwd=tmp_path)
    assert said.splitlines() == ["--resize=pad", f"images\t{COMMANDS['images']}"]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_what_is_printed_is_for_that_shell(shell, tmp_path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = run_shell("shardmill", "completion", shell, cwd=tmp_path)
    done = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_shell_that_nobody_knows(tmp_path) -> None:
    command = [sys.executable, "-m", "shardmill.pipelines.cli", "completion", "tcsh"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "'tcsh'" in done.stderr
    assert "bash" in done.stderr


LIGHT = """
import contextlib, io, sys
from shardmill.pipelines import cli
for command in cli.COMMANDS:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        cli.main([command, "--help"])
    lines = said.getvalue().splitlines()
    assert lines[0].startswith(f"usage: shardmill {command} "), lines[0]
    assert max(map(len, lines)) <= 80, lines
    assert lines[-1].strip(), "no epilog"
cli.main(["help"])
heavy = {"apache_beam", "pyarrow", "PIL", "rich"} & set(sys.modules)
assert not heavy, heavy
"""


def test_help_is_light_and_fits_80_columns(tmp_path) -> None:
    command = [sys.executable, "-c", LIGHT]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    for line in done.stdout.splitlines():
        if line.startswith("  shardmill "):  # the example is a command that parses
            words = shlex.split(line)
            find_parser(words[1]).parse_args(words[2:])
