"""Flags of ``shardmill show``."""

from __future__ import annotations

import argparse

from shardmill.pipelines.flags.parser import Parser, add_debug

_EPILOG = """\
examples:
  shardmill show ds
  shardmill show ds/train-00000-of-00008.tfrecord.gz --records=10"""


def show_parser() -> Parser:
    """Returns the parser of ``shardmill show``."""
    description = "What is in a dataset, in a folder of TFRecord files, or in one of them."
    parser = Parser("show", "PATH [FLAGS]", description, _EPILOG)
    add = parser.add_argument
    add("path", metavar="PATH",
        help="a dataset, its manifest, a folder, or any TFRecord file, packed or not")  # fmt: skip
    add("--records", type=number, default=3, metavar="N",
        help="how many of the first records (default: 3)")  # fmt: skip
    add("--split", default="", metavar="SPLIT", help="the split whose records are shown")
    add("--json", action="store_true", help="print an object with everything")
    add_debug(parser)
    return parser


def number(text: str) -> int:
    """Returns a number of records; argparse names it by this function's name."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative: give 0 or more")
    return value
