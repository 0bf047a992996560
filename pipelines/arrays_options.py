"""Flags of ``shardmill arrays``."""

from __future__ import annotations

from shardmill.pipelines.arrays_config import ArraysConfig
from shardmill.pipelines.options import (
    Group,
    add_places,
    add_running,
    add_shards,
    build_parser,
    parse_build,
)
from shardmill.pipelines.parser import Parser


def arrays_parser() -> Parser:
    """Returns the parser of ``shardmill arrays``."""
    parser = build_parser("arrays", "Turns NumPy arrays into a published GZIP TFRecord dataset.")
    add_places(
        parser.add_argument_group("what is read and written"),
        "a .npy, an .npz, or a folder of .npy files",
        links=False,
    )
    _add_arrays(parser.add_argument_group("labels and features"))
    _add_splits(parser.add_argument_group("splits"))
    add_shards(parser.add_argument_group("records and shards"))
    add_running(parser.add_argument_group("running"), "reads under way at a time")
    return parser


def _add_arrays(group: Group) -> None:
    add = group.add_argument
    add("--labels", metavar="FILE", help="a .npy of labels: whole numbers or texts")
    add("--label", metavar="NAME",
        help="the array that is the label (default: the one called y, label or labels; empty: "
        "none)")  # fmt: skip
    add("--arrays", metavar="LIST", help="names of the arrays to take (default: all)")


def _add_splits(group: Group) -> None:
    add = group.add_argument
    add("--splits", metavar="SHARES", help="train:0.9,validation:0.1 (default)")
    add("--seed", type=int, metavar="N", help="another shuffle and other splits (default: 0)")


def parse_arrays(argv: list[str]) -> tuple[ArraysConfig, list[str], bool]:
    """Returns the config, the Beam options, and whether to debug.

    Raises:
        UsageError: A flag is unknown, missing or malformed.
    """
    values, rest, debug = parse_build(arrays_parser(), ArraysConfig, argv)
    return ArraysConfig(**values), rest, debug
