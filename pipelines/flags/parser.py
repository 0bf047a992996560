"""The parser of every command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import NoReturn

from shardmill.schemas.errors import UsageError

_WIDTH = 80


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_WIDTH)


class PlainParser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Raises the message as a usage error."""
        raise UsageError(f"{message[:1].upper()}{message[1:]}; see {self.prog} --help.")


class Parser(PlainParser):
    """The parser of a command.

    Attributes:
        words: The values that a flag may have, where there are few, by its name.
    """

    def __init__(self, command: str, usage: str, description: str, epilog: str) -> None:
        """Makes a parser that knows ``--help``.

        Args:
            command: Of ``shardmill``.
            usage: What follows the command.
            description: What it does; as it is to be shown.
            epilog: Examples and exit codes; as they are to be shown.
        """
        super().__init__(
            prog=f"shardmill {command}",
            usage=f"shardmill {command} {usage}",
            description=description,
            epilog=epilog,
            formatter_class=_Help,
            allow_abbrev=False,
        )
        self.words: Mapping[str, Sequence[str]] = {}


def add_debug(parser: argparse.ArgumentParser | Group, shows: str = "tracebacks") -> None:
    """Adds ``--debug``."""
    parser.add_argument("--debug", action="store_true", help=f"show {shows}")


Group = argparse._ArgumentGroup  # noqa: SLF001 - argparse has no public name for it
