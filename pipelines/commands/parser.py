"""The argument parser of every command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from shardmill.pipelines.report.answer import Answer
from shardmill.schemas.errors import UsageError

_WIDTH = 80


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_WIDTH)


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error as a ``UsageError`` of one sentence.

    Attributes:
        suggestions: Values that a shell suggests, by flag.
    """

    suggestions: Mapping[str, Sequence[str]] = {}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; the names of flags may have hyphens, as in ``--image-size``."""
        return super().parse_known_args(list(map(_with_underscores, args or ())), namespace)

    def parse(self, argv: Sequence[str]) -> tuple[argparse.Namespace, Answer]:
        """Return the values of a command line, and how to answer.

        Raises:
            UsageError: A flag is unknown, missing or malformed.
        """
        flags = self.parse_args(argv)
        return flags, Answer.take(vars(flags))

    def error(self, message: str) -> NoReturn:
        """Raise the message as a usage error."""
        raise UsageError(f"{message[:1].upper()}{message[1:]}; see {self.prog} --help.")


def command_parser(command: str, usage: str, description: str, epilog: str) -> Parser:
    """Return a parser without flags but ``--help``.

    Args:
        command: Name of the command.
        usage: What follows the command in the usage line.
        description: What it does, printed as it is.
        epilog: Examples and exit codes, printed as they are.
    """
    return Parser(
        prog=f"shardmill {command}",
        usage=f"shardmill {command} {usage}",
        description=description,
        epilog=epilog,
        formatter_class=_Help,
        allow_abbrev=False,
    )


def add_common(add: Callable[..., Any], shows: str = "tracebacks") -> None:
    """Add the flags that every command has, by the method of a parser or a group."""
    add("--json", action="store_true", help="print the result as one JSON object")
    add("--quiet", action="store_true", help="print errors only, and what was asked for")
    add("--debug", action="store_true", help=f"show {shows}")


def _with_underscores(argument: str) -> str:
    """Return an argument with underscores in the name of its flag."""
    if not argument.startswith("--") or argument == "--":
        return argument
    name, equals, value = argument.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value
