"""The argument parser of every command."""

from __future__ import annotations

import argparse
import difflib
from argparse import SUPPRESS
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

from shardmill.pipelines.commands import COMMANDS, find_parser
from shardmill.pipelines.input_kinds import InputKind
from shardmill.pipelines.report.answer import Answer
from shardmill.schemas.errors import UsageError
from shardmill.schemas.option_types import Option, describe_options, options_of

RUNNERS = ("DirectRunner", "PrismRunner", "FlinkRunner", "DataflowRunner")
_WIDTH = 80
Table = TypeVar("Table")
_BEAM_EPILOG = """

Flags are written --name=value. Every Apache Beam pipeline option works too
(--runner, --temp_location, ...). Exit codes: 0 {done}, 1 {failed},
2 usage error, 130 or 143 interrupted."""


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_WIDTH)


class _Switch(argparse.Action):
    """Stores True, or the word after the equals sign of a flag."""

    def __call__(
        self, _: object, namespace: argparse.Namespace, __: object, flag: str | None = None
    ) -> None:
        """Store the value; argparse finds ``--name=word`` before it divides it at ``=``."""
        setattr(namespace, self.dest, (flag or "").partition("=")[2] or True)


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error as a ``UsageError`` of one sentence.

    Attributes:
        options: Options of the command by name, if it has a table of them.
    """

    options: Mapping[str, Option[Any, Any]] = {}

    @property
    def suggestions(self) -> dict[str, Sequence[str]]:
        """Values that a shell suggests, by flag."""
        named = {f"--{name}": each for name, each in self.options.items() if each.kind != "switch"}
        words = {flag: each.choices for flag, each in named.items() if each.choices}
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

    def parse(self, argv: Sequence[str], table: type[Table]) -> tuple[Table, Answer]:
        """Return the values of a command line, and how to answer.

        Args:
            argv: Arguments after the command.
            table: Class of the values.

        Raises:
            UsageError: A flag is unknown, missing or malformed.
        """
        flags, unknown = self.parse_known_args(argv)
        self.reject(unknown)
        values = vars(flags)
        answer = Answer.take(values)
        return table(**values), answer

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
            raise UsageError("too-many-paths", path=arguments[0])
        reject_others(flag)
        spelt = flag.replace("-", "_").replace("__", "--", 1)
        near = difflib.get_close_matches(spelt, self.flags, 1, 0.6)
        hint = f"did you mean {near[0]}?" if near else "see --help."
        raise UsageError("flag-unknown", flag=flag, hint=hint)

    def error(self, message: str) -> NoReturn:
        """Raise the message as a usage error."""
        raise UsageError(
            "arguments-invalid", problem=message[:1].upper() + message[1:], command=self.prog
        )


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
    if flag in beam_options:
        raise UsageError(
            "flag-of-other-command-and-beam", flag=flag, owners=" and ".join(owners), name=flag[2:]
        )
    raise UsageError("flag-of-other-command", flag=flag, owners=" and ".join(owners))


def command_parser(
    command: str, usage: str, description: str, epilog: str, table: type | None = None
) -> Parser:
    """Return a parser with the flags that every command has, and those of a table.

    Args:
        command: Name of the command.
        usage: What follows the command in the usage line.
        description: What it does, printed as it is.
        epilog: Examples and exit codes, printed as they are.
        table: Class of the options; its other attributes are arguments without a flag. None for
            a parser without any flags.
    """
    parser = Parser(
        prog=f"shardmill {command}",
        usage=f"shardmill {command} {usage}",
        description=description,
        epilog=epilog,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    if table is not None:
        _add_options(parser, table, [each.name for each in fields(table)], parser.add_argument)
        add_common(parser.add_argument, parser.options)
    return parser


def build_parser(kind: InputKind) -> Parser:
    """Return the parser of a command that builds a dataset, with a flag for each option."""
    table = kind.load_options()
    epilog = table.example + _BEAM_EPILOG.format(done="built or up to date", failed="failed")
    usage = "--input=PATH --output=DIR [FLAGS]"
    parser = command_parser(kind.name, usage, table.summary, epilog)
    for title, names in table.groups.items():
        add = parser.add_argument_group(title).add_argument
        _add_options(parser, table, names.split(), add)
        if title == "running":
            add_common(add, parser.options)
    return parser


def _add_options(
    parser: Parser, table: type, names: Iterable[str], add: Callable[..., Any]
) -> None:
    """Add options of a table.

    A flag that is not given is left out of the parsed values: the class has the defaults. Values
    are texts, which the class parses.

    Args:
        parser: The parser.
        table: Class of the options.
        names: Names of some of the options.
        add: Method of the parser or one of its groups.
    """
    parser.options, texts = options_of(table), describe_options(table)
    types = {each.name: str(each.type) for each in fields(table)}
    for name in names:
        metavar, text = texts.get(name, ("", ""))  # none without docstrings, as in python -OO
        option = parser.options.get(name)
        if option is not None and option.kind == "switch":
            words = [f"--{name}={word}" for word in option.choices]
            add(f"--{name}", *words, action=_Switch, nargs=0, default=SUPPRESS, help=text)
        elif option is not None or name in ("input", "output"):
            how: dict[str, Any] = {"required": option is not None and option.required}
            if name == "beam_options":
                how = {"action": "append"}
            if option is None and "Sequence" in types[name]:
                how = {"action": "extend", "nargs": "+"}
            add(f"--{name}", **how, default=SUPPRESS, metavar=metavar, help=text)
        else:
            add(name, metavar=metavar, help=text)


def add_common(add: Callable[..., Any], options: Iterable[str] = ()) -> None:
    """Add the flags that every command has, by the method of a parser or a group."""
    log = " and Beam's log" if "beam_options" in options else ""
    add("--json", action="store_true", help="print the result as one JSON object")
    add("--quiet", action="store_true", help="print only errors and the requested output")
    add("--debug", action="store_true", help=f"show tracebacks{log}")


def _with_underscores(argument: str) -> str:
    """Return an argument with underscores in the name of its flag."""
    if not argument.startswith("--") or argument == "--":
        return argument
    name, equals, value = argument.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value
