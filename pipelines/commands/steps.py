"""``shardmill steps``: imports neither Apache Beam nor TensorFlow nor NumPy."""

from __future__ import annotations

import argparse
import sys

from shardmill.loaders.selection import Selection, select
from shardmill.loaders.steps import find_manifest, read_manifest, steps_per_epoch
from shardmill.pipelines.commands.parser import Parser, add_common, command_parser
from shardmill.schemas.option_types import parse_whole

_EPILOG = """\
example:
  shardmill steps ds --split=train --batch_size=32"""


def make_parser() -> Parser:
    """Return the parser of the command."""
    parser = command_parser(
        "steps", "DIR --batch_size=N [FLAGS]", "Steps per epoch, from the manifest.", _EPILOG
    )
    add = parser.add_argument
    add("manifest", metavar="DIR", help="folder of a dataset, or a manifest")
    add("--split", default="train", metavar="SPLIT",
        help="a split, or several as in train+validation, or train[:10%%] "
        "(default: train)")  # fmt: skip
    add("--batch_size", required=True, metavar="N", help="the global batch size")
    add("--drop_remainder", action="store_true", help="drop a last batch that is not full")
    add("--hosts", default="1", metavar="N",
        help="hosts that read equal shares: count the full batches of each")  # fmt: skip
    add("--whole_shards", action="store_true",
        help="each host reads whole shards, round-robin: count the batches of "
        "the smallest share")  # fmt: skip
    add_common(add)
    return parser


def main(argv: list[str]) -> int:
    """Print the number of steps; return the exit code."""
    flags, answer = make_parser().parse(argv)
    flags.batch_size = parse_whole("batch_size", flags.batch_size, 1)
    flags.hosts = parse_whole("hosts", flags.hosts, 1)
    folder, path = find_manifest(flags.manifest)
    manifest = read_manifest(folder, path)
    selection = select(manifest, flags.split)
    steps = steps_per_epoch(
        manifest, flags.split, flags.batch_size,
        remainder="drop" if flags.drop_remainder else None,
        hosts=flags.hosts, whole_shards=flags.whole_shards,
    )  # fmt: skip
    body = {"examples": selection.num_examples, "steps": steps}
    answer.give({**body, **vars(flags), "manifest": path})
    if not answer.json:
        print(steps)
    if not steps and not answer.quiet:
        print(f"shardmill: {_explain_zero(selection, flags)}", file=sys.stderr)
    return 0


def _explain_zero(selection: Selection, flags: argparse.Namespace) -> str:
    if not selection.num_examples:
        return f"0 steps: {selection.split} is empty."
    subject = "the share of a host" if flags.hosts > 1 else selection.split
    return f"0 steps: {subject} does not fill a batch; give a smaller --batch_size."
