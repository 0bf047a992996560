"""``shardmill files``: imports neither Apache Beam nor TensorFlow nor NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardmill.loaders.steps import files
from shardmill.pipelines.report.answer import Answer
from shardmill.schemas import option_types as of
from shardmill.schemas.printable import printable


@dataclass(kw_only=True)
class FilesOptions:
    """Options of ``shardmill files``.

    Attributes:
        dataset: ``DIR``: folder of a dataset, or a manifest
        split: ``SPLIT``: a split, or several as in train+validation
    """

    usage: ClassVar = "DIR [FLAGS]"
    summary: ClassVar = "Print the path of each shard of the current version, one on a line."
    example: ClassVar = """\
example:
  shardmill files ds --split=train"""
    dataset: str
    split: of.Text = of.text("train")


def run(flags: FilesOptions, answer: Answer) -> int:
    """Print the paths; return the exit code."""
    paths = files(flags.dataset, flags.split)
    answer.give({"split": flags.split, "files": paths})
    for path in [] if answer.json else paths:
        print(printable(path))
    return 0
