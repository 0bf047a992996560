"""``shardmill completion``: prints a script of shtab's, from the parsers of all commands."""

from __future__ import annotations

import argparse

from shardmill.pipelines.commands import COMMANDS, find_parser
from shardmill.pipelines.commands.parser import Parser, add_common, command_parser
from shardmill.pipelines.report.answer import Answer

SHELLS = ("bash", "zsh", "fish", "tcsh")
# Those of Beam's flags that the docs name.
_BEAM_FLAGS = (
    "--project", "--region", "--temp_location", "--flink_master", "--flink_job_server_jar",
    "--environment_type", "--environment_config", "--parallelism", "--prism_location",
)  # fmt: skip
_EPILOG = """\
Add this line to the start-up file of the shell:
  bash, in ~/.bashrc                    eval "$(shardmill completion bash)"
  zsh, in ~/.zshrc, after compinit      eval "$(shardmill completion zsh)"
  fish, in ~/.config/fish/config.fish   shardmill completion fish | source
  tcsh, in ~/.tcshrc                    source ~/.shardmill.tcsh
    after once: shardmill completion tcsh > ~/.shardmill.tcsh"""
# fish passes --name=value as one word, of which shtab would complete the whole as a path.
_FISH_FILE = "(__fish_complete_path (commandline -ct | string replace -r -- '^--[a-z_]+=' ''))"
# bash splits words at "=": drop it, so that shtab's function sees --name=value as --name value.
_BASH_WRAPPER = """
_shardmill_without_equals() {
  local -a words=()
  local index cword=$COMP_CWORD
  for index in "${!COMP_WORDS[@]}"; do
    if [[ ${COMP_WORDS[index]} != = ]]; then
      words+=("${COMP_WORDS[index]}")
    elif (( index == COMP_CWORD )); then
      words+=("")
    elif (( index < COMP_CWORD )); then
      (( cword-- ))
    fi
  done
  local -a COMP_WORDS=("${words[@]}")
  local COMP_CWORD=$cword
  _shtab_shardmill
}
complete -o bashdefault -F _shardmill_without_equals shardmill
"""


def make_parser() -> Parser:
    """Return the parser of the command."""
    description = "Print a script that makes a shell complete commands, flags and values."
    parser = command_parser("completion", "SHELL", description, _EPILOG)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    add_common(parser)
    return parser


def main(argv: list[str]) -> int:
    """Print the script for a shell; return the exit code."""
    flags = make_parser().parse_args(argv)
    answer, shell = Answer.take(vars(flags)), flags.shell
    import shtab

    script = shtab.complete(_all_commands(shell), shell)
    script += _BASH_WRAPPER if shell == "bash" else ""
    answer.give({"shell": shell, "script": script})
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
