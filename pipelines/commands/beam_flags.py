"""Parsing command lines that mix Shardmill's flags with Beam's pipeline options."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardmill.pipelines.commands.parser import Parser
from shardmill.pipelines.report.answer import Answer
from shardmill.pipelines.report.quiet import quiet_import
from shardmill.schemas.errors import UsageError

# Options of Beam's S3 and HDFS clients, which no build uses.
_STORAGE_FLAGS = ("--s3_", "--hdfs_")


def parse_flags(
    parser: Parser, argv: list[str], required: Sequence[str]
) -> tuple[dict[str, Any], list[str], Answer]:
    """Return the values of Shardmill's flags, Beam's options, and how to answer.

    Args:
        parser: Parser of the command.
        argv: Arguments after the command.
        required: Names of flags that must be given; or all of their values without the names, in
            this order.

    Raises:
        UsageError: A flag is unknown, missing or malformed.
    """
    known, beam_flags = parser.parse_known_args(argv)
    values: dict[str, Any] = vars(known)
    answer = Answer.take(values)
    actions = parser._actions  # noqa: SLF001 - argparse has no public list of them
    own = [flag for action in actions for flag in action.option_strings]
    if not values.keys() & set(required):
        wanted = [action for action in actions if action.dest in required]
        beam_flags = _take_places(values, beam_flags, wanted, own)
    _reject(find_foreign(beam_flags), own)
    # argparse would report a missing --input before a misspelt one.
    missing = [f"--{name}" for name in required if name not in values]
    if missing:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    check_beam_flags(beam_flags, own)
    return values, beam_flags, answer


def _take_places(
    values: dict[str, Any], argv: list[str], wanted: Sequence[argparse.Action], own: Sequence[str]
) -> list[str]:
    """Move arguments without a flag at the beginning into values; return the other arguments.

    Args:
        values: Values by name.
        argv: Arguments that no flag of Shardmill's took.
        wanted: Flags that these arguments replace; the only one may be a list.
        own: Shardmill's flags; a mistyped one is not a place.
    """
    places = list(itertools.takewhile(lambda each: not each.startswith("-"), argv))
    if not places:
        return argv
    _reject(next((each for each in places if f"--{each.partition('=')[0]}" in own), ""), own)
    if wanted[0].nargs:
        values[wanted[0].dest] = places
        return argv[len(places) :]
    values |= zip([action.dest for action in wanted], places, strict=False)
    return argv[min(len(places), len(wanted)) :]


def check_beam_flags(argv: list[str], own: Sequence[str]) -> None:
    """Check that flags are Beam's and have an effect.

    Args:
        argv: Flags that are not Shardmill's.
        own: Shardmill's flags, for suggestions.

    Raises:
        UsageError: One is not, and the message names the nearest flag; or it configures a
            storage of Beam's.
    """
    if not argv:
        return
    reject_storage_flags(argv)
    with quiet_import():
        from apache_beam.options.pipeline_options import PipelineOptions

    parser = Parser(prog="shardmill", add_help=False, allow_abbrev=False)
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)  # noqa: SLF001 - how Beam itself collects its flags
    _, unknown = parser.parse_known_args(argv)
    _reject(unknown[0] if unknown else "", own)


def _reject(argument: str, own: Sequence[str]) -> None:
    if not argument:
        return
    flag = argument.partition("=")[0]
    if not flag.startswith("-"):
        raise UsageError(f"{flag!r} is not a flag: write options as --name=value.")
    near = difflib.get_close_matches(flag.replace("-", "_").replace("__", "--", 1), own, 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else "see --help."
    raise UsageError(f"The flag {flag} is unknown; {hint}")


def find_foreign(argv: Sequence[str]) -> str:
    """Return an argument that cannot be an option of Beam's, or an empty text.

    Does not import Beam, which takes two seconds: a mistyped flag is reported at once.
    """
    if argv and not argv[0].startswith("-"):
        return argv[0]
    names = beam_option_names() if argv else ()
    flags = [argument for argument in argv if argument.startswith("--")] if names else []
    return next((flag for flag in flags if flag.partition("=")[0] not in names), "")


def beam_option_names() -> frozenset[str]:
    """Return every flag that Beam's source of pipeline options names; none if it is not found."""
    package = importlib.util.find_spec("apache_beam")
    for folder in (package.submodule_search_locations or ()) if package else ():
        source = Path(folder, "options", "pipeline_options.py")
        if source.is_file():
            return frozenset(re.findall(r"--[\w-]+", source.read_text(encoding="utf-8")))
    return frozenset()


def reject_storage_flags(argv: Sequence[str]) -> None:
    """Reject options of Beam's own S3 and HDFS clients.

    Raises:
        UsageError: There is one.
    """
    for argument in argv:
        if argument.startswith(_STORAGE_FLAGS):
            raise UsageError(
                f"The flag {argument.partition('=')[0]} is not supported: s3:// takes its "
                "credentials, region and endpoint from the AWS_... variables or ~/.aws, and "
                "hdfs:// is not supported."
            )
