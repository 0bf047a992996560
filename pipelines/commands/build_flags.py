"""Flags that the commands which build a dataset share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from shardmill.pipelines.commands.parser import Parser, add_common, command_parser
from shardmill.pipelines.dataset_options import DatasetOptions, describe_options
from shardmill.schemas.tfrecord.gzip_member import COMPRESSIONS

RUNNERS = ("DirectRunner", "PrismRunner", "FlinkRunner", "DataflowRunner")
SHARED_SUGGESTIONS = {"--compression": COMPRESSIONS, "--runner": RUNNERS}
# Options that every command has, for its groups.
PLACES = "input output root follow_links update overwrite keep dry_run"
SHARDS = "num_shards shard_bytes shard_examples shard_name compression"
_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float}

_EPILOG = """\
{example}

Flags are written --name=value. Every Apache Beam pipeline option works too
(--runner, --temp_location, ...). Exit codes: 0 built or up to date, 1 failed,
2 usage error, 130 interrupted."""


def build_parser(
    command: str, description: str, example: str, options: type[DatasetOptions],
    groups: Mapping[str, str],
) -> Parser:  # fmt: skip
    """Return the parser of a command that builds a dataset, with a flag for each option.

    A flag that is not given is left out of the parsed values: the config has the defaults.

    Args:
        command: Name of the command.
        description: What it does.
        example: A command line with its explanation, printed as it is.
        options: Class of the options.
        groups: Names of options by the title of their group in the help.
    """
    parser = command_parser(
        command, "--input=PATH --output=DIR [FLAGS]", description, _EPILOG.format(example=example)
    )
    parser.argument_default = argparse.SUPPRESS
    types = {each.name: str(each.type).removesuffix(" | None") for each in fields(options)}
    texts = describe_options(options)
    for title, names in groups.items():
        add = parser.add_argument_group(title).add_argument
        for name in names.split():
            metavar, text = texts.get(name, ("", ""))  # none without docstrings, as in python -OO
            if types[name] == "bool":
                add(f"--{name}", action="store_true", help=text)
            else:
                add(f"--{name}", type=_TYPES.get(types[name], str), metavar=metavar, help=text)
        if title == "running":
            add_common(add, "tracebacks and Beam's log")
    return parser
