"""Completion in real shells, and ``--help``."""

import argparse
import os
import pty
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardmill.pipelines.commands import COMMANDS, find_parser
from shardmill.pipelines.commands.beam_flags import parse_flags
from shardmill.pipelines.commands.completion import SHELLS

ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
# What bash does when Tab is pressed at the end of a line: it splits words, also at "=".
PRESS_TAB = r"""
eval "$(shardmill completion bash)"
while IFS= read -r line; do
  COMPREPLY=() COMP_WORDS=()
  for word in ${line//=/ = }; do COMP_WORDS+=("$word"); done
  if [[ $line == *' ' ]]; then COMP_WORDS+=(''); fi
  COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
  _shardmill_without_equals
  printf '%s|' "${COMPREPLY[@]}"; echo
done
"""


def run_shell(*command: str, stdin: str = "", cwd: Path) -> str:
    done = subprocess.run(
        command, input=stdin, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    return done.stdout


def complete(folder: Path, lines: list[str]) -> list[list[str]]:
    stdin = "".join(f"{line}\n" for line in lines)
    output = run_shell("bash", "-c", PRESS_TAB, stdin=stdin, cwd=folder)
    return [[word for word in line.split("|") if word] for line in output.splitlines()]


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos.csv").touch()
    return tmp_path


RESIZES = ["stretch", "fit", "pad", "crop", "none"]
CASES = {
    "shardmill ": list(COMMANDS),
    "shardmill im": ["images"],
    "shardmill images --resi": ["--resize"],
    "shardmill images --resize=": RESIZES,
    "shardmill images --resize ": RESIZES,
    "shardmill images --resize=p": ["pad"],
    "shardmill images --overwrite --input=photos --resize=p": ["pad"],
    "shardmill images --interpolation b": ["box", "bilinear", "bicubic"],
    "shardmill images --input=ph": ["photos", "photos.csv"],
    "shardmill images --output=ph": ["photos"],
    "shardmill images --seed=": [],
    "shardmill rows --header=": ["first", "none"],
    "shardmill arrays --runner=F": ["FlinkRunner"],
    "shardmill count --check=": ["records", "index"],
    "shardmill steps ph": ["photos"],
    "shardmill completion f": ["fish"],
}


def test_bash_completes_commands_flags_and_values(folder) -> None:
    completed = complete(folder, list(CASES))
    assert dict(zip(CASES, map(sorted, completed), strict=True)) == {
        line: sorted(words) for line, words in CASES.items()
    }


def test_bash_completes_every_flag(tmp_path) -> None:
    for command, words in zip(
        COMMANDS, complete(tmp_path, [f"shardmill {name} --" for name in COMMANDS]), strict=True
    ):
        actions = find_parser(command)._actions
        shown = [action for action in actions if action.help != argparse.SUPPRESS]
        flags = {flag for action in shown for flag in action.option_strings if flag[:2] == "--"}
        assert flags <= set(words), command


def test_interactive_bash_completes_a_value_after_an_equals_sign(tmp_path) -> None:
    process, terminal = pty.fork()
    if not process:
        os.chdir(tmp_path)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], {**ENVIRONMENT, "PS1": "$ "})
    os.write(terminal, b'eval "$(shardmill completion bash)"; echo READ""Y\n')
    output, deadline = b"", time.monotonic() + 30
    while b"READY" not in output:
        output += os.read(terminal, 4096)
    os.write(terminal, b"shardmill images --resize=p\t")
    while b"--resize=pad " not in output and time.monotonic() < deadline:
        output += os.read(terminal, 4096)
    os.write(terminal, b"\x15exit\n")
    os.waitpid(process, 0)
    os.close(terminal)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(folder) -> None:
    lines = ("shardmill images --resize=p", "shardmill im", "shardmill images --input=photos.")
    presses = "; ".join(f"complete -C {shlex.quote(line)}" for line in lines)
    output = run_shell("fish", "-c", f"shardmill completion fish | source; {presses}", cwd=folder)
    assert [line.split("\t")[0] for line in output.splitlines()] == [
        "--resize=pad", "images", "--input=photos.csv",
    ]  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_valid_in_its_shell(shell, tmp_path) -> None:
    script = run_shell("shardmill", "completion", shell, cwd=tmp_path)
    assert "image_size" in script
    if shell == "zsh":
        assert '"--resize=[' in script  # so that zsh completes --resize=VALUE
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    if shell == "tcsh":
        return  # it has no option that only parses
    done = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_rejects_an_unknown_shell(capsys) -> None:
    from shardmill.pipelines import cli

    assert cli.main(["completion", "powershell"]) == 2
    error = capsys.readouterr().err
    assert "'powershell'" in error
    assert "bash" in error


LIGHT = """
import contextlib, io, sys
from shardmill.pipelines import cli
from shardmill.pipelines.commands import COMMANDS
for command in COMMANDS:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        cli.main([command, "--help"])
    lines = output.getvalue().splitlines()
    assert lines[0].startswith(f"usage: shardmill {command} "), lines[0]
    assert max(map(len, lines)) <= 80, lines
    assert lines[-1].strip(), "no epilog"
for mistake in (["--imagesize=5"], ["--quality=high"], ["stray"], ["--runner=X"], []):
    assert cli.main(["images", "--input=a", *mistake]) == 2
assert cli.main(["completion", "bash"]) == 0
cli.main(["help"])
heavy = {"apache_beam", "numpy", "pyarrow", "PIL", "rich"} & set(sys.modules)
assert not heavy, heavy
"""


def test_help_mistakes_and_completion_import_nothing_heavy(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIGHT], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    usage = done.stdout[done.stdout.index("usage: shardmill COMMAND") :].splitlines()
    assert max(map(len, usage)) <= 80
    for line in usage:
        if line.startswith("  shardmill "):  # the example is a command that parses
            words = shlex.split(line)
            parse_flags(find_parser(words[1]), words[2:], "input", "output")
