"""``shardmill files``: imports neither Apache Beam nor TensorFlow nor NumPy."""

from __future__ import annotations

from shardmill.loaders.steps import files
from shardmill.pipelines.commands.parser import Parser, add_common, command_parser
from shardmill.schemas.printable import printable

_EPILOG = """\
example:
  shardmill files ds --split=train"""


def make_parser() -> Parser:
    """Return the parser of the command."""
    description = "Print the path of each shard of the current version, one on a line."
    parser = command_parser("files", "DIR [FLAGS]", description, _EPILOG)
    add = parser.add_argument
    add("dataset", metavar="DIR", help="folder of a dataset, or a manifest")
    add("--split", default="train", metavar="SPLIT",
        help="a split, or several as in train+validation (default: train)")  # fmt: skip
    add_common(add)
    return parser


def main(argv: list[str]) -> int:
    """Print the paths; return the exit code."""
    flags, answer = make_parser().parse(argv)
    paths = files(flags.dataset, flags.split)
    answer.give({"split": flags.split, "files": paths})
    for path in [] if answer.json else paths:
        print(printable(path))
    return 0
