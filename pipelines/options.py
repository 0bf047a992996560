"""Flags: Shardmill's own, in Beam's style, beside every Beam pipeline option."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import shlex
from typing import Any

from shardmill.pipelines.build_config import COMPRESSIONS, BuildConfig
from shardmill.pipelines.config import ImagesConfig
from shardmill.pipelines.parser import Parser
from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage import OPTIONS_VARIABLE
from shardmill.transforms.geometry import RESIZES
from shardmill.transforms.labels import LABEL_FROM
from shardmill.transforms.pixels import ENCODINGS, RESAMPLINGS

_STORAGE_FLAGS = ("--s3_", "--hdfs_")


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=80)


def build_parser(command: str, description: str) -> Parser:
    """Returns a parser of a command that builds a dataset, without flags."""
    return Parser(
        prog=f"shardmill {command}",
        description=description,
        epilog="Every Apache Beam pipeline option works too (--runner, --temp_location, ...). "
        "Exit codes: 0 done or up to date, 1 failed, 2 usage, 130 interrupted.",
        formatter_class=_Help,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )


def images_parser() -> Parser:
    """Returns the parser of ``shardmill images``."""
    parser = build_parser(
        "images", "Turns a folder of images into a published GZIP TFRecord dataset."
    )
    places = parser.add_argument_group("what is read and written")
    add_places(places, "a folder, glob, listing (.csv) or image")
    places.add_argument("--limit", type=int, metavar="N", help="take a fair sample of N images")
    _add_labels(parser.add_argument_group("labels and splits"))
    _add_pixels(parser.add_argument_group("pixels"))
    shards = parser.add_argument_group("records and shards")
    shards.add_argument(
        "--features", metavar="LIST", help="NAME=SOURCE,... chooses and renames features"
    )
    add_shards(shards)
    shards.add_argument("--shard_by", metavar="WHAT", help="label: a set of shards for each label")
    add_running(parser.add_argument_group("running"), "decoding threads a worker")
    return parser


Group = argparse._ArgumentGroup  # noqa: SLF001 - argparse has no public name for it


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


def _add_labels(group: Group) -> None:
    add = group.add_argument
    add("--label_from", metavar="WHERE", help=f"{', '.join(LABEL_FROM)} (default: directory)")
    add("--label_pattern", metavar="REGEX", help="has a group (?P<label>...)")
    add("--labels", metavar="FILE", help="one label a line, line number = class id")
    add("--splits", metavar="SHARES",
        help="train:0.9,validation:0.1 (default), or directory, or listing")  # fmt: skip
    add("--group_pattern", metavar="REGEX", help="what it matches in keys stays in one split")
    add("--seed", type=int, metavar="N", help="another shuffle and other splits (default: 0)")


def _add_pixels(group: Group) -> None:
    add = group.add_argument
    add("--image_size", metavar="SIZE", help="224 (default) or 180x320 (height x width)")
    add("--resize", metavar="HOW", help=f"{', '.join(RESIZES)} (default: stretch)")
    add("--interpolation", metavar="FILTER", help=f"{', '.join(RESAMPLINGS)} (default: bilinear)")
    add("--only_shrink", action="store_true", help="never enlarge an image")
    add("--reducing_gap", type=float, metavar="X",
        help="decode JPEGs at a fraction that stays X times larger than the target "
        "(default: 3; 0: always in full)")  # fmt: skip
    add("--icc", metavar="HOW", help="ignore colour profiles (default) or convert to srgb")
    add("--encoding", metavar="TYPE", help=f"{', '.join(ENCODINGS)} (default: jpeg)")
    add("--quality", type=int, metavar="Q", help="of JPEGs, 1 to 100 (default: 95)")
    add("--channels", type=int, metavar="N", help="3 (default), 1 (grey) or 4 (with alpha)")


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
    add("--debug", action="store_true", help="show tracebacks and Beam's log")


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

    parser = Parser(prog="shardmill", add_help=False, allow_abbrev=False)
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
