"""``shardmill files``: imports neither Apache Beam nor TensorFlow nor NumPy."""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.loaders.steps import files
from shardmill.pipelines.commands.parser import Parser, command_parser
from shardmill.schemas import option_types as of
from shardmill.schemas.printable import printable

_EPILOG = """\
example:
  shardmill files ds --split=train"""


@dataclass(kw_only=True)
class FilesOptions:
    """Options of ``shardmill files``.

    Attributes:
        dataset: ``DIR``: folder of a dataset, or a manifest
        split: ``SPLIT``: a split, or several as in train+validation
    """

    dataset: str
    split: of.Text = of.text("train")


def make_parser() -> Parser:
    """Return the parser of the command."""
    description = "Print the path of each shard of the current version, one on a line."
    return command_parser("files", "DIR [FLAGS]", description, _EPILOG, FilesOptions)


def main(argv: list[str]) -> int:
    """Print the paths; return the exit code."""
    flags, answer = make_parser().parse(argv, FilesOptions)
    paths = files(flags.dataset, flags.split)
    answer.give({"split": flags.split, "files": paths})
    for path in [] if answer.json else paths:
        print(printable(path))
    return 0
