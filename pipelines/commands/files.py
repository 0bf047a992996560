"""``shardmill files``: imports neither Apache Beam nor TensorFlow nor NumPy."""

from __future__ import annotations

from shardmill.loaders.steps import files
from shardmill.pipelines.commands.parser import Parser, add_debug, command_parser
from shardmill.pipelines.report.terminal import printable

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
    add_debug(parser)
    return parser


def main(argv: list[str]) -> int:
    """Print the paths; return the exit code."""
    flags = make_parser().parse_args(argv)
    for path in files(flags.dataset, flags.split):
        print(printable(path))
    return 0
