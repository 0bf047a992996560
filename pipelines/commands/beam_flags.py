"""Parsing command lines that mix Shardmill's flags with Beam's pipeline options."""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardmill.pipelines.commands.parser import Parser, reject_others
from shardmill.pipelines.report.answer import Answer
from shardmill.pipelines.report.quiet import quiet_import
from shardmill.schemas.errors import UsageError

# Options of Beam's S3 and HDFS clients, which no build uses.
_STORAGE_FLAGS = ("--s3_", "--hdfs_")


def parse_flags(parser: Parser, argv: Sequence[str]) -> tuple[dict[str, Any], list[str], Answer]:
    """Return the values of Shardmill's flags, Beam's options, and how to answer.

    Args:
        parser: Parser of the command.
        argv: Arguments after the command.

    Raises:
        UsageError: A flag is unknown, missing or malformed, or belongs to another command.
    """
    # They must be given, or all of their values without the names, in this order.
    positional = [name for name in ("input", "output") if f"--{name}" in parser.flags]
    known, beam_flags = parser.parse_known_args(argv)
    values: dict[str, Any] = vars(known)
    answer = Answer.take(values)
    if not values.keys() & set(positional):
        beam_flags = _take_positional(values, beam_flags, parser, positional)
    names = beam_option_names() if beam_flags else frozenset()
    for flag in beam_flags:  # the name of an option of Beam's may be one of ours
        reject_others(flag.partition("=")[0], names)
    # Before Beam is imported, which takes two seconds: a mistyped flag is reported at once.
    parser.reject([each for each in beam_flags[:1] if not each.startswith("-")])
    flags = [each for each in beam_flags if names and each.startswith("--")]
    parser.reject([each for each in flags if each.partition("=")[0] not in names])
    # argparse would report a missing --input before a misspelt one.
    missing = [f"--{name}" for name in positional if name not in values]
    if missing:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    check_beam_flags(beam_flags, parser)
    return values, beam_flags, answer


def _take_positional(
    values: dict[str, Any], argv: list[str], parser: Parser, positional: Sequence[str]
) -> list[str]:
    """Move arguments without a flag at the beginning into values; return the other arguments.

    Args:
        values: Values by name.
        argv: Arguments that no flag of Shardmill's took.
        parser: The parser, whose mistyped flags are an error.
        positional: Names of the flags that these arguments replace; the only one may be a list.
    """
    given = list(itertools.takewhile(lambda each: not each.startswith("-"), argv))
    for each in given:
        if f"--{each.partition('=')[0]}" in parser.flags:
            raise UsageError("not-a-flag", each=each)
    if given and len(positional) == 1:
        values[positional[0]] = given
        return argv[len(given) :]
    values |= zip(positional, given, strict=False)
    return argv[min(len(positional), len(given)) :]


def check_beam_flags(argv: Sequence[str], parser: Parser) -> None:
    """Check that flags are Beam's and have an effect.

    Args:
        argv: Flags that are not Shardmill's.
        parser: Parser of the command, for suggestions.

    Raises:
        UsageError: One is not, and the message names the nearest flag; or it configures a
            storage of Beam's.
    """
    if not argv:
        return
    for argument in argv:
        if argument.startswith(_STORAGE_FLAGS):
            raise UsageError("flag-unsupported", flag=argument.partition("=")[0])
    with quiet_import():
        from apache_beam.options.pipeline_options import PipelineOptions

    beam = Parser(prog="shardmill", add_help=False, allow_abbrev=False)
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(beam)  # noqa: SLF001 - how Beam itself collects its flags
    parser.reject(beam.parse_known_args(argv)[1])


def beam_option_names() -> frozenset[str]:
    """Return every flag that Beam's source of pipeline options names; none if it is not found."""
    package = importlib.util.find_spec("apache_beam")
    for folder in (package.submodule_search_locations or ()) if package else ():
        source = Path(folder, "options", "pipeline_options.py")
        if source.is_file():
            return frozenset(re.findall(r"--[\w-]+", source.read_text(encoding="utf-8")))
    return frozenset()
