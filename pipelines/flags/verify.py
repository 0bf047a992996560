"""Flags of ``shardmill verify``."""

from __future__ import annotations

from shardmill.pipelines.flags.parser import Parser, add_debug

_DESCRIPTION = """\
Checks every byte of a dataset against its manifest, and every example against
its schema."""
_EPILOG = """\
example:
  shardmill verify ds

Exit codes: 0 all is well, 1 something is not, 2 usage, 130 interrupted."""


def verify_parser() -> Parser:
    """Returns the parser of ``shardmill verify``."""
    parser = Parser("verify", "DIR [FLAGS]", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("dataset", metavar="DIR", help="a dataset's folder, or a manifest of shardmill count")
    add("--processes", type=int, metavar="N", help="how many read side by side (default: cores)")
    add("--json", action="store_true", help="say it as JSON")
    add_debug(parser)
    return parser
