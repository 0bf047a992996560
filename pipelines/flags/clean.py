"""Flags of ``shardmill clean``."""

from __future__ import annotations

from shardmill.pipelines.flags.parser import Parser, add_debug

_DESCRIPTION = """\
Removes what unfinished builds left behind in an output: build folders,
outcomes of runs, unfinished files. Completes an unfinished publish first. The
published dataset is never touched."""
_EPILOG = """\
example, to see what would go:
  shardmill clean ds --dry_run"""


def clean_parser() -> Parser:
    """Returns the parser of ``shardmill clean``."""
    parser = Parser("clean", "DIR [FLAGS]", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("directory", metavar="DIR", help="the output of a build")
    add("--dry_run", action="store_true", help="only say what would be removed")
    add("--older_than", default="1h", metavar="TIME",
        help="keep what changed less long ago, as a build may be running: 90s, 15m, 1h, 2d, or 0 "
        "to keep nothing (default: 1h)")  # fmt: skip
    add_debug(parser)
    return parser
