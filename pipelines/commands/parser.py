"""The argument parser of every command."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import re
from argparse import SUPPRESS
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from shardmill.pipelines.commands import COMMANDS, find_parser
from shardmill.pipelines.limits import parse_limits
from shardmill.pipelines.option_file import LIMITS, divide_options, read_options
from shardmill.pipelines.report.terminal import Answer, quiet_import
from shardmill.schemas.arguments import invalid_number
from shardmill.schemas.errors import UsageError, format_names
from shardmill.schemas.option_types import (
    Option,
    describe_options,
    options_of,
    propose,
    several_values,
)

_Help = partial(argparse.RawDescriptionHelpFormatter, max_help_position=28, width=80)
# Options of Beam's S3 and HDFS clients, which no build uses.
_STORAGE_FLAGS = ("--s3_", "--hdfs_")
CONFIG = "config"


class _Switch(argparse.Action):
    """Stores whether a flag is on, or the word after its equals sign."""

    def __call__(
        self, _: object, namespace: argparse.Namespace, __: object, flag: str | None = None
    ) -> None:
        """Store the value; argparse finds ``--name=word`` before it divides it at ``=``."""
        word = (flag or "").partition("=")[2]
        setattr(namespace, self.dest, {"": True, "true": True, "false": False}.get(word, word))


class _Join(argparse.Action):
    """Joins the lists of a flag that is repeated."""

    def __call__(
        self, _: object, namespace: argparse.Namespace, text: Any, __: object = None
    ) -> None:
        """Store the text after that of an earlier flag, if there is one."""
        earlier = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, text if earlier is None else f"{earlier},{text}")


# Actions of options that take one value; those of Beam for several values differ.
_SINGLE = (argparse._StoreAction, argparse._StoreConstAction)  # noqa: SLF001 - they have no other names


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error as a ``UsageError`` of one sentence.

    Attributes:
        table: Class of the options of the command.
    """

    table: Any

    @property
    def options(self) -> dict[str, Option[Any, Any]]:
        """The options of the command by name."""
        return options_of(self.table)

    def check_once(self, argv: Sequence[str]) -> None:
        """Check that no flag that takes one value is repeated.

        Raises:
            UsageError: One is.
        """
        given: dict[str, list[str]] = {}
        for argument in argv:
            name, _, value = argument.partition("=")
            action = self._option_string_actions.get(name)
            if isinstance(action, _SINGLE):
                given.setdefault(name, []).append(value or "True")
        for name, values in given.items():
            if len(values) > 1:
                raise several_values(name[2:], format_names(values))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments, whose flags may have hyphens, as in ``--image-size``."""
        return super().parse_known_args([*map(_with_underscores, args or ())], namespace)

    def add_switch_values(self) -> None:
        """Let switches have values, as in ``--overwrite=true``; the help does not list these."""
        for action in self._actions:
            if action.nargs != 0:
                continue
            for flag in action.option_strings:
                for word in ("true", "false"):
                    self._option_string_actions[f"{flag}={word}"] = action

    def parse(self, argv: Sequence[str]) -> tuple[Any, Answer]:
        """Return the options of a command line, and how to answer.

        Args:
            argv: Arguments after the command.

        Raises:
            UsageError: A flag is unknown, missing or malformed.
        """
        flags, unknown = self.parse_known_args(argv)
        self.reject(unknown)
        values = vars(flags)
        answer = Answer.take(values)
        return self.table(**values), answer

    def add_config(self) -> None:
        """Add the flag that names a file of options."""
        group = self.add_argument_group("recipe")
        text = "TOML file with the flags in its table [options]; flags of the command line win"
        group.add_argument(f"--{CONFIG}", default=SUPPRESS, metavar="FILE", help=text)

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
        raise UsageError(f"The flag {flag} is unknown; {propose(spelt, self.flags, 'see --help.')}")

    def error(self, message: str) -> NoReturn:
        """Raise the message as a usage error."""
        problem = message[:1].upper() + message[1:]
        raise UsageError(f"{problem}; see {self.prog} --help.")


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
        commands = " and ".join(owners)
        option = flag[2:]
        raise UsageError(
            f"{flag} belongs to {commands}: write --beam_options={option}=VALUE for Apache "
            "Beam's option of that name."
        )
    commands = " and ".join(owners)
    raise UsageError(f"{flag} belongs to {commands}: remove it.")


def make_parser(command: str, table: Any) -> Parser:
    """Return the parser of a command: the flags of its table, and those that every command has.

    Args:
        command: Name of the command.
        table: Class of the options; its other attributes are arguments without a flag. It has
            ``usage``, what follows the command in the usage line; ``summary`` and ``example``,
            printed as they are; perhaps ``notes`` for the end, and ``groups``: names of options by
            the title of a group.
    """
    parser = Parser(
        prog=f"shardmill {command}",
        usage=f"shardmill {command} {table.usage}",
        description=table.summary,
        epilog=table.example + getattr(table, "notes", ""),
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.table = table
    log = " and Beam's log" if "beam_options" in parser.options else ""
    groups = getattr(table, "groups", {"": " ".join(field.name for field in fields(table))})
    for title, names in groups.items():
        add = (parser.add_argument_group(title) if title else parser).add_argument
        _add_options(table, names.split(), add)
        if title in ("", "running"):
            for flag, text in (
                ("--json", "print the result as one JSON object"),
                ("--quiet", "print only errors and the requested output"),
                ("--debug", f"show tracebacks{log}"),
            ):
                add(flag, action=_Switch, nargs=0, default=False, help=text)
            how = "write errors, progress and summary as lines of text or of JSON (default: text)"
            add("--log_format", choices=("text", "json"), default="text", help=how)
    parser.add_switch_values()
    return parser


def _add_options(table: type, names: Iterable[str], add: Callable[..., Any]) -> None:
    """Add options of a table.

    A flag that is not given is left out of the parsed values: the class has the defaults. Values
    are texts, which the class parses.

    Args:
        table: Class of the options.
        names: Names of some of the options.
        add: Method of the parser or one of its groups.
    """
    options, texts = options_of(table), describe_options(table)
    paths = options_of(table, required=True)
    declared = {field.name: field for field in fields(table)}
    for name in names:
        metavar, text = texts.get(name, ("", ""))  # none without docstrings, as in python -OO
        text = text.replace("%", "%%")  # argparse formats it
        option = options.get(name)
        if option is not None and option.kind == "switch":
            words = [f"--{name}={word}" for word in option.choices]
            add(f"--{name}", *words, action=_Switch, nargs=0, default=SUPPRESS, help=text)
        elif option is not None or name in ("input", "output"):
            how: dict[str, Any] = {"required": option is not None and option.required}
            if name == "beam_options":
                how = {"action": "append"}
            if option is not None and option.is_list:
                how |= {"action": _Join}
            if option is None and paths[name].is_list:
                how = {"action": "extend", "nargs": "+"}
            add(f"--{name}", **how, default=SUPPRESS, metavar=metavar, help=text)
        else:
            is_optional = declared[name].default is not MISSING
            how = {"nargs": "?", "default": SUPPRESS} if is_optional else {}
            add(name, **how, metavar=metavar, help=text)


def _with_underscores(argument: str) -> str:
    """Return an argument with underscores in the name of its flag."""
    if not argument.startswith("--") or argument == "--":
        return argument
    name, equals, value = argument.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value


def parse_flags(parser: Parser, argv: Sequence[str]) -> tuple[dict[str, Any], list[str], Answer]:
    """Return the values of Shardmill's flags, Beam's options, and how to answer.

    Args:
        parser: Parser of the command.
        argv: Arguments after the command.

    Raises:
        UsageError: A flag is unknown, missing or malformed, or belongs to another command.
    """
    # They must be given, or their values without the names, in this order.
    positional = [name for name in ("input", "output") if f"--{name}" in parser.flags]
    namespace, beam_flags = parser.parse_known_args(argv)
    values: dict[str, Any] = vars(namespace)
    answer = Answer.take(values)
    config = values.pop(CONFIG, None)
    if config == "":
        raise UsageError("--config= is empty: give a TOML file, or leave the flag out.")
    file_values, file_beam_flags = _read_config(config, parser) if config else ({}, [])
    beam_flags = _take_positional(values, beam_flags, parser, positional, file_values)
    values = {**file_values, **values}
    beam_flags = [*file_beam_flags, *beam_flags]  # of two equal flags, Beam takes the last
    names = beam_option_names() if beam_flags else frozenset()
    for flag in beam_flags:  # the name of an option of Beam's may be one of ours
        reject_others(flag.partition("=")[0], names)
    # Before Beam is imported, which takes two seconds: a mistyped flag is reported at once.
    parser.reject([flag for flag in beam_flags[:1] if not flag.startswith("-")])
    flags = [flag for flag in beam_flags if names and flag.startswith("--")]
    parser.reject([flag for flag in flags if flag.partition("=")[0] not in names])
    # argparse would report a missing --input before a misspelt one.
    missing = [f"--{name}" for name in positional if name not in values]
    if missing:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    check_beam_flags(beam_flags, parser)
    return values, beam_flags, answer


def _read_config(path: str, parser: Parser) -> tuple[dict[str, Any], list[str]]:
    """Return the values of Shardmill's options in a file, and Apache Beam's flags."""
    options = read_options(path)
    in_mapping = options.pop("beam_options", {})
    names = ["input", "output", *parser.options]
    values, others = divide_options(path, options, names, beam_option_names())
    parse = parser.options["beam_options"].parse
    limits = values.get(LIMITS)
    if isinstance(limits, Mapping):  # an error names the file
        parse_limits(f"{path}: [{LIMITS}]", limits)
    flags = [*parse("beam_options", in_mapping), *parse("beam_options", others)]
    check_beam_flags(flags, parser, once=True)
    return values, flags


def _take_positional(
    values: dict[str, Any],
    argv: list[str],
    parser: Parser,
    positional: Sequence[str],
    file_values: Collection[str],
) -> list[str]:
    """Move arguments without a flag at the beginning into values; return the other arguments.

    Args:
        values: Values by name.
        argv: Arguments that no flag of Shardmill's took.
        parser: The parser, whose mistyped flags are an error.
        positional: Names of the flags that these arguments replace; the only one may be a list.
        file_values: Names of the options that ``--config`` gives. If it gives the output alone,
            all arguments are inputs; else they replace both paths of the file, or fill the gap.
    """
    given = list(itertools.takewhile(lambda word: not word.startswith("-"), argv))
    for word in given:
        if f"--{word.partition('=')[0]}" in parser.flags:
            raise UsageError(f"{word!r} is not a flag: write it as --{word}.")
    free = [name for name in positional if name not in values]
    if "output" in file_values and "input" not in file_values:
        free = [name for name in free if name != "output"]  # all of them are inputs
    elif len(given) < len(free):
        free = [name for name in free if name not in file_values]
    if given and free == ["input"]:
        values["input"] = given
        return argv[len(given) :]
    if len(given) > len(free) > 1:  # several inputs, and the output
        *inputs, output = given
        values |= {"input": inputs, "output": output}
        return argv[len(given) :]
    values |= zip(free, given, strict=False)
    return argv[min(len(free), len(given)) :]


def check_beam_flags(argv: Sequence[str], parser: Parser, *, once: bool = False) -> None:
    """Check that flags are Beam's and have an effect.

    Args:
        argv: Flags that are not Shardmill's.
        parser: Parser of the command, for suggestions.
        once: Whether a flag that takes one value may not be repeated. On a command line the last
            one wins.

    Raises:
        UsageError: One is not, and the message names the nearest flag; or it configures a
            storage of Beam's; or it is repeated.
    """
    if not argv:
        return
    for argument in argv:
        if argument.startswith(_STORAGE_FLAGS):
            flag = argument.partition("=")[0]
            raise UsageError(
                f"The flag {flag} is not supported: s3:// takes its credentials, region and "
                "endpoint from the AWS_... variables or ~/.aws, and hdfs:// is not supported."
            )
    with quiet_import():
        from apache_beam.options.pipeline_options import PipelineOptions

    beam = Parser(prog="shardmill", add_help=False, allow_abbrev=False)
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(beam)  # noqa: SLF001 - how Beam itself collects its flags
    beam.add_switch_values()
    values, unknown = beam.parse_known_args(argv)
    parser.reject(unknown)
    if once:
        beam.check_once(argv)
    if (values.direct_num_workers or 0) < 0:  # Beam fails with a traceback
        raise invalid_number(name="--direct_num_workers", value=values.direct_num_workers, least=0)


def beam_option_names() -> frozenset[str]:
    """Return every flag that Beam's source of pipeline options names; none if it is not found."""
    package = importlib.util.find_spec("apache_beam")
    for folder in (package.submodule_search_locations or ()) if package else ():
        source = Path(folder, "options", "pipeline_options.py")
        if source.is_file():
            return frozenset(re.findall(r"--[\w-]+", source.read_text(encoding="utf-8")))
    return frozenset()
