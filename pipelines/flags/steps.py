"""Flags of ``shardmill steps``."""

from __future__ import annotations

from shardmill.pipelines.flags.parser import Parser, add_debug

_EPILOG = """\
example:
  shardmill steps ds --split=train --batch_size=32"""


def steps_parser() -> Parser:
    """Returns the parser of ``shardmill steps``."""
    parser = Parser(
        "steps", "DIR --batch_size=N [FLAGS]", "Steps per epoch, from the manifest.", _EPILOG
    )
    add = parser.add_argument
    add("manifest", metavar="DIR", help="the folder of a dataset, or a manifest")
    add("--split", default="train", metavar="SPLIT",
        help="a split, or several as in train+validation (default: train)")  # fmt: skip
    add("--batch_size", type=int, required=True, metavar="N", help="the global batch")
    add("--drop_remainder", action="store_true", help="leave out a last batch that is not full")
    add("--replicas", type=int, default=1, metavar="N",
        help="workers that the shards are dealt to: the full batches of the smallest "
        "count")  # fmt: skip
    add("--json", action="store_true", help="print an object with all numbers")
    add_debug(parser)
    return parser
