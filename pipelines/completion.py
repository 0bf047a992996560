"""What a shell may complete: commands, their flags, and the values that flags have."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import cast

import argcomplete
from argcomplete import shell_integration
from argcomplete.completers import (
    ChoicesCompleter,
    DirectoriesCompleter,
    FilesCompleter,
    SuppressCompleter,
)

from shardmill.pipelines.flags import Parser, find_parser

# Of Beam's flags, those that Shardmill's pages speak of.
_BEAM_FLAGS = (
    "--runner", "--project", "--region", "--temp_location", "--flink_master",
    "--flink_job_server_jar", "--environment_type", "--environment_config", "--parallelism",
    "--prism_location",
)  # fmt: skip


def answer(commands: Mapping[str, str]) -> None:
    """Tells the shell that asked what may come next; does not return.

    Args:
        commands: What each does, by its name.
    """
    argcomplete.autocomplete(
        make_parser(commands), always_complete_options="long", default_completer=SuppressCompleter()
    )


def make_parser(commands: Mapping[str, str]) -> argparse.ArgumentParser:
    """Returns one parser of all commands, whose actions know how they are completed."""
    parser = argparse.ArgumentParser(prog="shardmill", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="the version")
    choices = parser.add_subparsers(prog="shardmill", parser_class=cast("type[Parser]", _parser_of))
    for command, text in commands.items():
        choices.add_parser(command, help=text)
    return parser


def _parser_of(*, prog: str, **_others: object) -> Parser:
    parser = find_parser(prog.rsplit(maxsplit=1)[-1])
    if "--runner" in parser.words:
        for flag in _BEAM_FLAGS:
            parser.add_argument(flag, metavar="FILE" if "jar" in flag else "TEXT")
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to them
        name = action.option_strings[-1] if action.option_strings else action.dest
        if name in parser.words:
            _complete(action, ChoicesCompleter(dict.fromkeys(parser.words[name], "")))
        elif action.metavar in ("PATH", "FILE"):
            _complete(action, FilesCompleter())
        elif action.metavar == "DIR":
            _complete(action, DirectoriesCompleter())
    return parser


def _complete(action: argparse.Action, completer: Callable[..., object]) -> None:
    action.completer = completer  # type: ignore[attr-defined] # where argcomplete looks for it


def script(shell: str) -> str:
    """Returns what a shell must read so that it asks."""
    return shell_integration.shellcode(["shardmill"], shell=shell)
