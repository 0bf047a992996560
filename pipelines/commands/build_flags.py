"""Flags that the commands which build a dataset share."""

from __future__ import annotations

import argparse

from shardmill.pipelines.commands.parser import Group, Parser, add_common, command_parser
from shardmill.schemas.tfrecord.gzip_member import COMPRESSIONS

RUNNERS = ("DirectRunner", "PrismRunner", "FlinkRunner", "DataflowRunner")
SHARED_SUGGESTIONS = {"--compression": COMPRESSIONS, "--runner": RUNNERS}

_EPILOG = """\
{example}

Flags are written --name=value. Every Apache Beam pipeline option works too
(--runner, --temp_location, ...). Exit codes: 0 built or up to date, 1 failed,
2 usage error, 130 interrupted."""


def build_parser(command: str, description: str, example: str) -> Parser:
    """Return the parser of a command that builds a dataset, without flags.

    A flag that is not given is left out of the parsed values: the config has the defaults.

    Args:
        command: Name of the command.
        description: What it does.
        example: A command line with its explanation, printed as it is.
    """
    parser = command_parser(
        command, "--input=PATH --output=DIR [FLAGS]", description, _EPILOG.format(example=example)
    )
    parser.argument_default = argparse.SUPPRESS
    return parser


def add_paths(group: Group, inputs: str, *, walks: bool = True) -> None:
    """Add the flags that name what is read and written.

    Args:
        group: Group of the help text.
        inputs: What ``--input`` accepts.
        walks: Whether folders are walked, so that links may lead outside the root.
    """
    add = group.add_argument
    add("--input", metavar="PATH", help=inputs)
    add("--output", metavar="DIR", help="folder of the new dataset")
    add("--root", metavar="DIR", help="keys are paths relative to it (default: the input's folder)")
    if walks:
        add("--follow_links", action="store_true", help="follow links that lead outside the root")
    add("--update", action="store_true",
        help="publish a new version if inputs or options changed, else do nothing")  # fmt: skip
    add("--overwrite", action="store_true", help="build from scratch and replace the dataset")
    add("--keep", type=int, metavar="N",
        help="earlier versions to keep, for readers and rollback (default: 1)")  # fmt: skip
    add("--dry_run", action="store_true", help="print what would be built, write nothing")


def add_seed(group: Group) -> None:
    """Add ``--seed``."""
    group.add_argument(
        "--seed", type=int, metavar="N", help="seed of the shuffle and the splits (default: 0)"
    )


def add_shards(group: Group) -> None:
    """Add the flags of the number and names of shards."""
    add = group.add_argument
    add("--num_shards", type=int, metavar="N",
        help="exact number of shards in each split, even to one record")  # fmt: skip
    add("--shard_bytes", metavar="SIZE", help="target size of a shard (default: 128MiB)")
    add("--shard_examples", type=int, metavar="N", help="target number of examples per shard")
    add("--shard_name", metavar="PATTERN",
        help="fields {split} {index:05d} {total:05d} {records} {label}")  # fmt: skip
    add("--compression", metavar="TYPE", help=f"{' or '.join(COMPRESSIONS)} (default: gzip)")


def add_running(group: Group, counted: str, flag: str = "--threads") -> None:
    """Add the flags that say how a build runs.

    Args:
        group: Group of the help text.
        counted: What ``--threads`` counts.
        flag: Name of that flag.
    """
    add = group.add_argument
    add("--max_reject_fraction", type=float, metavar="X",
        help="fail if a larger fraction of inputs is rejected (default: 0.05)")  # fmt: skip
    add(flag, type=int, metavar="N", help=f"{counted} (default: one per core)")
    add_common(group, "tracebacks and Beam's log")
