"""What the flags of all commands that build a dataset have in common."""

from __future__ import annotations

import argparse

from shardmill.pipelines.flags.parser import Group, Parser, add_debug
from shardmill.schemas.tfrecord.gzip_member import COMPRESSIONS

RUNNERS = ("DirectRunner", "PrismRunner", "FlinkRunner", "DataflowRunner")
SHARED_WORDS = {"--compression": COMPRESSIONS, "--runner": RUNNERS}

_EPILOG = """\
{example}

Flags are written --name=value. Every Apache Beam pipeline option works too
(--runner, --temp_location, ...). Exit codes: 0 done or up to date, 1 failed,
2 usage, 130 interrupted."""


def build_parser(command: str, description: str, example: str) -> Parser:
    """Returns a parser of a command that builds a dataset, without flags.

    Args:
        command: Of ``shardmill``.
        description: What it does.
        example: A command line and more, as it is to be shown.
    """
    parser = Parser(
        command, "--input=PATH --output=DIR [FLAGS]", description, _EPILOG.format(example=example)
    )
    parser.argument_default = argparse.SUPPRESS
    return parser


def add_places(group: Group, inputs: str, *, links: bool = True) -> None:
    """Adds the flags of what is read and written.

    Args:
        group: Where to add them.
        inputs: What an input may be.
        links: Whether folders are walked, where links may lead elsewhere.
    """
    add = group.add_argument
    add("--input", metavar="PATH", help=inputs)
    add("--output", metavar="DIR", help="folder of the new dataset")
    add("--root", metavar="DIR", help="keys are paths relative to it (default: the input's folder)")
    if links:
        add("--follow_links", action="store_true", help="follow links that lead outside the root")
    add("--overwrite", action="store_true", help="replace another dataset at --output")
    add("--dry_run", action="store_true", help="say what would be done, write nothing")


def add_shards(group: Group) -> None:
    """Adds the flags of how many shards there are and what they are called."""
    add = group.add_argument
    add("--num_shards", type=int, metavar="N", help="exact number of shards in each split")
    add("--shard_bytes", metavar="SIZE", help="about this large (default: 128MiB)")
    add("--shard_examples", type=int, metavar="N", help="about this many examples a shard")
    add("--shard_name", metavar="PATTERN",
        help="fields {split} {index:05d} {total:05d} {records} {label}")  # fmt: skip
    add("--compression", metavar="TYPE", help=f"{' or '.join(COMPRESSIONS)} (default: gzip)")


def add_running(group: Group, threads: str) -> None:
    """Adds the flags of how a build runs.

    Args:
        group: Where to add them.
        threads: What ``--threads`` means.
    """
    add = group.add_argument
    add("--max_reject_fraction", type=float, metavar="X",
        help="fail when more inputs than this share are rejected (default: 0.05)")  # fmt: skip
    add("--threads", type=int, metavar="N", help=f"{threads} (default: one a core)")
    add_debug(group, "tracebacks and Beam's log")
