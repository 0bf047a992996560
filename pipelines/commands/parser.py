"""The argument parser of every command."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from shardmill.pipelines.commands import COMMANDS, find_parser
from shardmill.pipelines.report.answer import Answer
from shardmill.schemas.errors import UsageError
from shardmill.schemas.option_types import Option, describe_options, options_of

RUNNERS = ("DirectRunner", "PrismRunner", "FlinkRunner", "DataflowRunner")
# Options that every build has, for its groups.
PLACES = "input output root update overwrite keep dry_run"
SHARDS = "num_shards shard_bytes shard_examples shard_name compression"
_WIDTH = 80
_BEAM_EPILOG = """

Flags are written --name=value. Every Apache Beam pipeline option works too
(--runner, --temp_location, ...). Exit codes: 0 {done}, 1 {failed},
2 usage error, 130 interrupted."""


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_WIDTH)


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error as a ``UsageError`` of one sentence.

    Attributes:
        options: Options of the command by name, if it has a table of them.
    """

    options: Mapping[str, Option[Any, Any]] = {}

    @property
    def suggestions(self) -> dict[str, Sequence[str]]:
        """Values that a shell suggests, by flag."""
        words = {f"--{name}": each.choices for name, each in self.options.items() if each.choices}
        return words | ({"--runner": RUNNERS} if "beam_options" in self.options else {})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments.

        The names of flags may have hyphens, as in ``--image-size``, and switches may have values,
        as in ``--overwrite=true``.
        """
        switches = [
            flag for each in self._actions if each.nargs == 0 for flag in each.option_strings
        ]
        spelt: dict[str, list[str]] = {f"{flag}=false": [] for flag in switches}
        spelt |= {f"{flag}=true": [flag] for flag in switches}
        words = map(_with_underscores, args or ())
        return super().parse_known_args(
            [word for each in words for word in spelt.get(each, [each])], namespace
        )

    def parse(self, argv: Sequence[str]) -> tuple[argparse.Namespace, Answer]:
        """Return the values of a command line, and how to answer.

        Raises:
            UsageError: A flag is unknown, missing or malformed.
        """
        flags, unknown = self.parse_known_args(argv)
        self.reject(unknown)
        return flags, Answer.take(vars(flags))

    @property
    def flags(self) -> list[str]:
        """The flags of the command."""
        return [flag for action in self._actions for flag in action.option_strings]

    def reject(self, arguments: Sequence[str]) -> None:
        """Report the first argument of those that the command does not have, if there is one.

        Raises:
            UsageError: There is one.
        """
        if not arguments:
            return
        flag = arguments[0].partition("=")[0]
        if not flag.startswith("-"):
            raise UsageError(
                f"{arguments[0]!r} is one path too many: quote a glob, as in '*.jpg', and write "
                "options as --name=value."
            )
        reject_others(flag)
        spelt = flag.replace("-", "_").replace("__", "--", 1)
        near = difflib.get_close_matches(spelt, self.flags, 1, 0.6)
        hint = f"did you mean {near[0]}?" if near else "see --help."
        raise UsageError(f"The flag {flag} is unknown; {hint}")

    def error(self, message: str) -> NoReturn:
        """Raise the message as a usage error."""
        raise UsageError(f"{message[:1].upper()}{message[1:]}; see {self.prog} --help.")


def reject_others(flag: str, beam_options: Iterable[str] = ()) -> None:
    """Report a flag that only other commands have.

    Args:
        flag: A flag that the command does not have.
        beam_options: Flags of Apache Beam.

    Raises:
        UsageError: Another command has it.
    """
    owners = [f"`shardmill {name}`" for name in COMMANDS if flag in find_parser(name).flags]
    if not owners:
        return
    belongs = f"{flag} belongs to {' and '.join(owners)}"
    if flag in beam_options:
        raise UsageError(
            f"{belongs}: write --beam_options={flag[2:]}=VALUE for Apache Beam's option of that "
            "name."
        )
    raise UsageError(f"{belongs}: remove it.")


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


def build_parser(
    command: str, description: str, example: str, table: type, groups: Mapping[str, str]
) -> Parser:
    """Return the parser of a command that builds a dataset, with a flag for each option.

    Args:
        command: Name of the command.
        description: What it does.
        example: A command line with its explanation, printed as it is.
        table: Class of the options.
        groups: Names of options by the title of their group in the help.
    """
    epilog = example + _BEAM_EPILOG.format(done="built or up to date", failed="failed")
    parser = command_parser(command, "--input=PATH --output=DIR [FLAGS]", description, epilog)
    for title, names in groups.items():
        add = parser.add_argument_group(title).add_argument
        add_options(parser, table, names, add)
        if title == "running":
            add_common(add, "tracebacks and Beam's log")
    return parser


def add_options(parser: Parser, table: type, names: str, add: Callable[..., Any]) -> None:
    """Add flags of options.

    A flag that is not given is left out of the parsed values: the class has the defaults. Values
    are texts, which the class parses.

    Args:
        parser: The parser.
        table: Class of the options.
        names: Names of some of the options, with blanks between them.
        add: Method of the parser or one of its groups.
    """
    parser.options, texts = options_of(table), describe_options(table)
    for name in names.split():
        metavar, text = texts.get(name, ("", ""))  # none without docstrings, as in python -OO
        if name in parser.options and parser.options[name].kind == "switch":
            add(f"--{name}", action="store_true", default=argparse.SUPPRESS, help=text)
        else:
            action = "append" if name == "beam_options" else "store"
            add(f"--{name}", action=action, default=argparse.SUPPRESS, metavar=metavar, help=text)


def add_common(add: Callable[..., Any], shows: str = "tracebacks") -> None:
    """Add the flags that every command has, by the method of a parser or a group."""
    add("--json", action="store_true", help="print the result as one JSON object")
    add("--quiet", action="store_true", help="print only errors and the requested output")
    add("--debug", action="store_true", help=f"show {shows}")


def _with_underscores(argument: str) -> str:
    """Return an argument with underscores in the name of its flag."""
    if not argument.startswith("--") or argument == "--":
        return argument
    name, equals, value = argument.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value
