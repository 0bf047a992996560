"""Flags of ``shardmill count``."""

from __future__ import annotations

import argparse

from shardmill.pipelines.flags.building import RUNNERS
from shardmill.pipelines.flags.parser import Parser, add_debug

_EPILOG = """\
example:
  shardmill count --input=taxi --manifest=taxi.json

Every Apache Beam pipeline option works too. Exit codes: 0 all counted, 1 a
file is damaged or the run failed, 2 usage, 130 interrupted."""


def count_parser() -> Parser:
    """Returns the parser of ``shardmill count``."""
    description = "Counts the records of TFRecord files, anybody's, and checks them."
    parser = Parser("count", "--input PATH [PATH ...] [FLAGS]", description, _EPILOG)
    parser.argument_default = argparse.SUPPRESS
    add = parser.add_argument
    add("--input", nargs="+", action="extend", metavar="PATH",
        help="folders, globs, files, or lists of paths (.txt, .csv)")  # fmt: skip
    add("--manifest", metavar="FILE", help="where the manifest goes")
    add("--check", metavar="HOW", help="records: read all and check every CRC (default); "
        "index: trust sound indexes, read as little as counting needs")  # fmt: skip
    add("--root", metavar="DIR", help="names are relative to it (default: the input's folder)")
    add("--follow_links", action="store_true", help="follow links that lead outside the root")
    add("--processes", type=int, metavar="N", help="how many read side by side (default: cores)")
    add_debug(parser, "tracebacks and Beam's log")
    parser.words = {"--check": ("records", "index"), "--runner": RUNNERS}
    return parser
