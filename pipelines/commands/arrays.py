"""``shardmill arrays``."""

from __future__ import annotations

from shardmill.pipelines.commands import build_flags
from shardmill.pipelines.commands.build import parse_build, run_build
from shardmill.pipelines.commands.parser import Parser

_EXAMPLE = """\
example, an archive with the arrays x and y:
  shardmill arrays --input=mnist.npz --output=ds"""


def main(argv: list[str]) -> int:
    """Build and publish a dataset of arrays; return the exit code."""
    return run_build("arrays", *parse_build("arrays", argv))


def make_parser() -> Parser:
    """Return the parser of the command."""
    parser = build_flags.build_parser(
        "arrays", "Build a GZIP TFRecord dataset from NumPy arrays.", _EXAMPLE
    )
    paths = parser.add_argument_group("input and output")
    build_flags.add_paths(paths, "a .npy, an .npz, or a folder of .npy files", walks=False)
    add = parser.add_argument_group("labels and features").add_argument
    add("--labels", metavar="FILE", help="a .npy of labels: integers or texts")
    add("--label", metavar="NAME",
        help="the array that is the label (default: the one called y, label or labels; empty: "
        "none)")  # fmt: skip
    add("--arrays", metavar="LIST", help="names of the arrays to read (default: all)")
    splits = parser.add_argument_group("splits")
    splits.add_argument("--splits", metavar="SHARES", help="train:0.9,validation:0.1 (default)")
    build_flags.add_seed(splits)
    build_flags.add_shards(parser.add_argument_group("records and shards"))
    build_flags.add_running(parser.add_argument_group("running"), "concurrent reads per worker")
    parser.suggestions = {
        **build_flags.SHARED_SUGGESTIONS,
        "--splits": ("train:0.9,validation:0.1",),
    }
    return parser
