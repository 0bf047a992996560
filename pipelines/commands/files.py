"""``shardmill files``: imports neither Apache Beam nor TensorFlow nor NumPy."""

from __future__ import annotations

import os
from dataclasses import dataclass

from shardmill.loaders.selection import select
from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas import option_types as of
from shardmill.schemas.dataset.read_manifest import open_manifest
from shardmill.schemas.dataset.shard_names import is_generation
from shardmill.schemas.numbers import printable
from shardmill.schemas.storage import join


@dataclass(kw_only=True)
class FilesOptions:
    """Options of ``shardmill files``.

    Attributes:
        dataset: ``DIR``: folder of a dataset, or a manifest
        split: ``SPLIT``: a split, or several as in train+validation
    """

    usage = "DIR [FLAGS]"
    summary = "Print the path of each shard of the current version, one on a line."
    example = """\
example:
  shardmill files ds --split=train"""
    dataset: str
    split: of.Text = of.text("train")


def run(flags: FilesOptions, answer: Answer) -> int:
    """Print the paths; return the exit code."""
    *_, folder, manifest = open_manifest(flags.dataset)
    paths = [join(folder, part.shard.file) for part in select(manifest, flags.split).parts]
    name = os.path.basename(folder)
    version = name if is_generation(name) else None
    answer.give({"split": flags.split, "version": version, "files": paths})
    for path in [] if answer.json else paths:
        print(printable(path))
    return 0
