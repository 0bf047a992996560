"""From flags, Shardmill's own beside every Beam pipeline option, to a config."""

from __future__ import annotations

import dataclasses
import difflib
import os
import shlex
from typing import Any

from shardmill.pipelines.build_config import BuildConfig
from shardmill.pipelines.flags.images import images_parser
from shardmill.pipelines.flags.parser import Parser, PlainParser
from shardmill.pipelines.images_config import ImagesConfig
from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage import OPTIONS_VARIABLE

_STORAGE_FLAGS = ("--s3_", "--hdfs_")


def parse_images(argv: list[str]) -> tuple[ImagesConfig, list[str], bool]:
    """Returns the config, the Beam options, and whether to debug.

    Raises:
        UsageError: A flag is unknown, missing or malformed.
    """
    values, rest, debug = parse_build(images_parser(), ImagesConfig, argv)
    return ImagesConfig(**values), rest, debug


def parse_build(
    parser: Parser, config: type[BuildConfig], argv: list[str]
) -> tuple[dict[str, Any], list[str], bool]:
    """Returns the values of flags, the Beam options, and whether to debug.

    Args:
        parser: Knows the flags.
        config: Has a field for each.
        argv: The arguments.

    Raises:
        UsageError: A flag is unknown, missing or malformed.
    """
    known, rest = parser.parse_known_args(argv)
    values: dict[str, Any] = vars(known)
    debug = values.pop("debug", False)
    check_beam_flags(rest, [f"--{field.name}" for field in dataclasses.fields(config)])
    # Only now: a misspelt --input is an unknown flag first.
    missing = [f"--{name}" for name in ("input", "output") if name not in values]
    if missing:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    return values, rest, debug


def check_beam_flags(argv: list[str], own: list[str]) -> None:
    """Checks that the flags Shardmill does not know are Beam's, and shares those of storages.

    Raises:
        UsageError: One is not; the message names the nearest flag.
    """
    if not argv:
        return
    from apache_beam.options.pipeline_options import (
        PipelineOptions,
    )

    parser = PlainParser(prog="shardmill", add_help=False, allow_abbrev=False)
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)  # noqa: SLF001 - how Beam itself collects its flags
    _, unknown = parser.parse_known_args(argv)
    if not unknown:
        share_storage_flags(argv)
        return
    flag = unknown[0].split("=", 1)[0]
    if not flag.startswith("-"):
        raise UsageError(f"{flag!r} is no flag: write options as --name=value.")
    near = difflib.get_close_matches(flag.replace("-", "_").replace("__", "--", 1), own, 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else "see --help."
    raise UsageError(f"The flag {flag} is unknown; {hint}")


def share_storage_flags(argv: list[str]) -> None:
    """Lets this process and those that it starts reach storages as the flags say.

    Args:
        argv: Beam's flags; a pipeline hands them to the workers of a runner by itself.
    """
    found: list[str] = []
    wanted = False
    for argument in argv:
        if argument.startswith("--"):
            wanted = argument.startswith(_STORAGE_FLAGS)
        found += [argument] * wanted
    if found:
        os.environ[OPTIONS_VARIABLE] = shlex.join(found)
