"""``shardmill completion``: prints a script of shtab's, from the parsers of all commands."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from shardmill.pipelines.commands import COMMANDS, find_parser
from shardmill.pipelines.commands.parser import Parser
from shardmill.pipelines.report.answer import Answer

SHELLS = ("bash", "zsh", "fish", "tcsh")
# Those of Beam's flags that the docs name.
_BEAM_FLAGS = (
    "--project", "--region", "--temp_location", "--flink_master", "--flink_job_server_jar",
    "--environment_type", "--environment_config", "--parallelism", "--prism_location",
)  # fmt: skip
# fish passes --name=value as one word, of which shtab would complete the whole as a path.
_FISH_FILE = "(__fish_complete_path (commandline -ct | string replace -r -- '^--[a-z_]+=' ''))"


@dataclass(kw_only=True)
class CompletionOptions:
    """Options of ``shardmill completion``.

    Attributes:
        shell: ``SHELL``: bash, zsh, fish, tcsh
    """

    usage: ClassVar = "SHELL"
    summary: ClassVar = "Print a script that makes a shell complete commands, flags and values."
    example: ClassVar = """\
Add this line to the start-up file of the shell:
  bash, in ~/.bashrc                    eval "$(shardmill completion bash)"
  zsh, in ~/.zshrc, after compinit      eval "$(shardmill completion zsh)"
  fish, in ~/.config/fish/config.fish   shardmill completion fish | source
  tcsh, in ~/.tcshrc                    source ~/.shardmill.tcsh
    after once: shardmill completion tcsh > ~/.shardmill.tcsh"""
    shell: str = field(metadata={"choices": SHELLS})


def run(flags: CompletionOptions, answer: Answer) -> int:
    """Print the script for a shell; return the exit code."""
    import shtab

    script = shtab.complete(_all_commands(flags.shell), flags.shell)
    if flags.shell == "bash":
        script += Path(__file__).with_name("completion.bash").read_text(encoding="utf-8")
    answer.give({"shell": flags.shell, "script": script})
    if not answer.json:
        print(script)
    return 0


def _all_commands(shell: str) -> argparse.ArgumentParser:
    """Return one parser with a subparser for each command, annotated for shtab."""
    parser = argparse.ArgumentParser(prog="shardmill", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers()
    for command, text in COMMANDS.items():
        flags = find_parser(command)
        if "--runner" in flags.suggestions:
            for flag in ("--runner", *_BEAM_FLAGS):
                flags.add_argument(flag, metavar="FILE" if "jar" in flag else "TEXT")
        for action in flags._actions:  # noqa: SLF001 - argparse has no public list of them
            _annotate(action, flags, shell)
        commands.add_parser(command, description=text, help=text, parents=[flags], add_help=False)
    return parser


def _annotate(action: argparse.Action, parser: Parser, shell: str) -> None:
    """Set what shtab reads: choices, the kind of path, and in zsh that values may follow ``=``."""
    import shtab

    file = {**shtab.FILE, "fish": _FISH_FILE}
    paths = {"PATH": file, "FILE": file, "DIR": shtab.DIRECTORY}
    flag = action.option_strings[-1] if action.option_strings else ""
    if flag in parser.suggestions:
        action.choices = parser.suggestions[flag]
    elif action.metavar in paths:
        action.complete = paths[str(action.metavar)]  # type: ignore[attr-defined]
    if shell == "zsh" and flag and action.nargs != 0:
        action.option_strings = [f"{flag}="]
