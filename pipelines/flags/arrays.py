"""Flags of ``shardmill arrays``."""

from __future__ import annotations

from shardmill.pipelines.flags.building import (
    SHARED_WORDS,
    add_places,
    add_running,
    add_shards,
    build_parser,
)
from shardmill.pipelines.flags.parser import Group, Parser

_EXAMPLE = """\
example, an archive with the arrays x and y:
  shardmill arrays --input=mnist.npz --output=ds"""


def arrays_parser() -> Parser:
    """Returns the parser of ``shardmill arrays``."""
    parser = build_parser(
        "arrays", "Turns NumPy arrays into a published GZIP TFRecord dataset.", _EXAMPLE
    )
    add_places(
        parser.add_argument_group("what is read and written"),
        "a .npy, an .npz, or a folder of .npy files",
        links=False,
    )
    _add_arrays(parser.add_argument_group("labels and features"))
    _add_splits(parser.add_argument_group("splits"))
    add_shards(parser.add_argument_group("records and shards"))
    add_running(parser.add_argument_group("running"), "reads under way at a time")
    parser.words = {**SHARED_WORDS, "--splits": ("train:0.9,validation:0.1",)}
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
